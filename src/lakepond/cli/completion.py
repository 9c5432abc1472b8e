"""`lakepond completion`: print the script that makes a shell complete commands, options and their choices.

The scripts are files, written from the commands by tests/cli/make_reference.py: printing one imports no
other command, and pressing Tab starts no Python.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tyro.conf import Positional

SCRIPTS = Path(__file__).parent / "completions"


@dataclass(frozen=True)
class Completion:
    """Print a script that makes the shell complete commands, options and files.

    Example: source <(lakepond completion bash)

    Example: lakepond completion zsh > ~/.zfunc/_lakepond

    Example: lakepond completion fish > ~/.config/fish/completions/lakepond.fish
    """

    shell: Positional[Literal["bash", "zsh", "fish"]]
    """the shell"""

    def run(self) -> None:
        print((SCRIPTS / f"lakepond.{self.shell}").read_text(), end="")
