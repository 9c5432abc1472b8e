"""`lakepond completion`: words for the Tab key."""

from __future__ import annotations

from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, make_dataclass
from functools import reduce
from io import StringIO
from operator import or_
from typing import Annotated, Any, Literal

from tyro.conf import Positional


@dataclass(frozen=True)
class Completion:
    """Print a script with which the shell completes commands, options and files.

    Example: source <(lakepond completion bash)

    Example: lakepond completion zsh > ~/.zfunc/_lakepond

    Example: lakepond completion fish > ~/.config/fish/completions/lakepond.fish
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """which shell"""

    def run(self) -> None:
        """Have tyro write it, from the same dataclasses that it parses."""
        import tyro

        from lakepond.cli import forms

        words, written = ["--tyro-write-completion", self.shell, "-"], StringIO()
        with redirect_stdout(written), suppress(SystemExit):
            tyro.cli(_all_commands(), prog="lakepond", args=words, config=forms())
        # what is no option may be a path: let bash complete it as it does elsewhere
        print(written.getvalue().replace("complete -F", "complete -o bashdefault -o default -F"))


def _all_commands() -> Any:
    """All commands as one choice; those whose libraries are not installed without their options."""
    import tyro

    from lakepond.cli import load
    from lakepond.cli.commands import COMMANDS

    choices = []
    for name, entry in COMMANDS.items():
        kind = make_dataclass(name, [])
        with suppress(ModuleNotFoundError):
            kind = load(name)
        choices.append(Annotated[kind, tyro.conf.subcommand(name, description=entry.summary)])
    return reduce(or_, choices)
