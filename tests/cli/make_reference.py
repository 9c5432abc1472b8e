"""Writes docs/cli.md and the completion scripts from the commands: python tests/cli/make_reference.py."""

import os
import re
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path

import completions

from lakepond.cli import main
from lakepond.cli.commands import COMMANDS, SUBCOMMANDS
from lakepond.cli.completion import SCRIPTS

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
BEGIN = """# The command line

Written from `--help` by `python tests/cli/make_reference.py`, and checked by the tests.

Results go to stdout, messages to stderr. `--json` prints one JSON object on one line instead
([its keys](json.md)). An error is one sentence with a next step; `lakepond --debug COMMAND`, or
`LAKEPOND_DEBUG=1`, shows its traceback and more log messages.

| exit code | meaning |
|---|---|
| 0 | done; or the answer is yes: the lake is intact, the run fits, the machine is ready |
| 1 | failed; or the answer is no |
| 2 | wrong usage: an unknown option or an invalid value |
| 3 | a file is damaged: see `lakepond repair` |
| 4 | another process is writing the lake or the run: try again later |
| 130, 143, 129 | stopped by Ctrl-C, SIGTERM, SIGHUP: every commit is intact; how to continue is printed |

The Tab key completes commands, options and files after `source <(lakepond completion bash)`; for zsh and
fish see [`lakepond completion`](#lakepond-completion).
"""


def help_of(*words: str) -> str:
    """What `--help` prints on a terminal of 100 columns, without colours."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with redirect_stdout(TextIOWrapper(BytesIO(), "utf-8")) as answer:
            assert main([*words, "--help"]) == 0
            answer.seek(0)
            text = answer.read()
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return "\n".join(line.rstrip() for line in plain.strip().splitlines())


def section(words: list[str]) -> str:
    """A command and all below it."""
    text = help_of(*words)
    answer = f"\n{'#' * (len(words) + 1)} lakepond {' '.join(words)}\n\n```text\n{text}\n```\n"
    return answer + "".join(section([*words, word]) for word in SUBCOMMANDS.get(" ".join(words), {}))


def reference() -> str:
    """The whole page."""
    top = f"\n```text\n{help_of()}\n```\n"
    return BEGIN + top + "".join(section([name]) for name in COMMANDS)


def files() -> dict[Path, str]:
    """Every generated file and what it should hold."""
    scripts = {"bash": completions.bash, "zsh": completions.zsh, "fish": completions.fish}
    return {PAGE: reference()} | {SCRIPTS / f"lakepond.{name}": make() for name, make in scripts.items()}


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text)
