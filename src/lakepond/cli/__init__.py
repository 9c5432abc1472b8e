"""The command line: `lakepond <noun> <verb>`, one file a noun.

    lakepond data fetch | synthetic | show

A command is a small frozen dataclass with a `run()`; its fields are its options and its docstring
is its help. To add one, write it in a file of its own and name it in `COMMANDS`. What is heavy
(NumPy, the library itself) is imported inside `run`, so that `--help` answers at once.

Data goes to stdout, talk to stderr. Exit codes: 0 done, 1 could not be done (one sentence says why),
2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any, Protocol, Union, cast

import tyro

from lakepond._version import __version__
from lakepond.cli.data import Data
from lakepond.errors import LakepondError

COMMANDS: dict[str, type[Command]] = {
    "data": Data,
}

DESCRIPTION = """Replay for reinforcement learning that outgrows memory and survives the machine.

Example: lakepond data synthetic --days 600 --out data/small.npz
`lakepond --version` tells the version."""


class Command(Protocol):
    """What an entry of `COMMANDS` must be able to do."""

    def run(self) -> None:
        """Do it; an error that is raised on purpose becomes one sentence on stderr."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words in (["--version"], ["-V"]):
        print(f"lakepond {__version__}")
        return 0
    try:
        _parse(words).run()
    except SystemExit as leaving:  # tyro has told its help (0) or the wrong usage (2)
        return leaving.code if isinstance(leaving.code, int) else 1
    except KeyboardInterrupt:
        return 130
    except (LakepondError, OSError) as error:
        print(f"lakepond: {_one_sentence(error)}", file=sys.stderr)
        return 1
    return 0


def _parse(words: list[str]) -> Command:
    choices = [Annotated[kind, tyro.conf.subcommand(name)] for name, kind in COMMANDS.items()]
    # A union needs two members even while there is one command: the second is never shown.
    kind: Any = Union[(*choices, Annotated[None, tyro.conf.Suppress])]
    command = tyro.cli(
        kind,
        prog="lakepond",
        description=DESCRIPTION,
        args=words,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes, tyro.conf.FlagCreatePairsOff),
    )
    return cast(Command, command)


def _one_sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return str(error)
