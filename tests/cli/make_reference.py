"""Writes docs/cli.md from what `--help` prints: python tests/cli/make_reference.py."""

import os
import re
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path

from lakepond.cli import main
from lakepond.cli.commands import COMMANDS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN = """# The command line

Written from `--help` by `python tests/cli/make_reference.py`, and checked by the tests.

Everything the library does is one command away, with the same words. What a command tells goes to stdout,
talk about it to stderr. `--json` prints one JSON object on one line instead ([its keys](json.md)). Errors are
one sentence with a next step; `--debug`, or `LAKEPOND_DEBUG=1`, shows where they come from, and logs more.

| exit code | meaning |
|---|---|
| 0 | done; the answer is yes: it is whole, it fits, it is ready |
| 1 | it could not be done, or the answer is no |
| 2 | wrong usage: an argument that cannot be |
| 3 | a file is not what was written: see `lakepond repair` |
| 4 | another process is writing it: try again later |
| 130, 143, 129 | stopped by Ctrl-C, SIGTERM, SIGHUP: every commit is intact; how to continue is printed |

The Tab key completes commands, options and files after `source <(lakepond completion bash)`; zsh and fish
likewise.
"""


def help_of(*words: str) -> str:
    """What `--help` prints on a terminal of 100 columns, without colours."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")) as told:
            assert main([*words, "--help"]) == 0
            told.seek(0)
            text = told.read()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return "\n".join(line.rstrip() for line in plain.strip().splitlines())


def below(text: str) -> list[str]:
    """The words that may follow, where a command has commands of its own."""
    if "─ subcommands ─" not in text:
        return []
    return re.findall(r"^│   • (\S+)", text, re.MULTILINE)


def section(words: list[str]) -> str:
    """A command and all below it."""
    text = help_of(*words)
    told = f"\n{'#' * (len(words) + 1)} lakepond {' '.join(words)}\n\n```text\n{text}\n```\n"
    return told + "".join(section([*words, word]) for word in below(text))


def reference() -> str:
    """The whole page."""
    top = f"\n```text\n{help_of()}\n```\n"
    return BEGIN + top + "".join(section([name]) for name in COMMANDS)


if __name__ == "__main__":
    PAGE.write_text(reference())
