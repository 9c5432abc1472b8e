"""The command line: `lakepond <command>`.

A command is a small frozen dataclass with a `run()`; its fields are its options, its docstring is its help
and ends with an example. To add one, write it in a module, with commands that are like it, and name it in
`commands.py`. A command is imported when it is called, so `lakepond --help` imports none and
`lakepond verify` no trainer. Heavy modules (NumPy, JAX, the library) are imported inside `run`.

    data to stdout, messages to stderr; with --json one JSON document on stdout and nothing else

    0    done; the answer is yes            3    a file is damaged
    1    failed; or the answer is no        4    another process is writing: try again later
    2    wrong usage                        130  interrupted (143: SIGTERM, 129: SIGHUP)
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from itertools import pairwise
from textwrap import wrap
from typing import Any, NoReturn, Protocol, cast

from lakepond._version import __version__
from lakepond.cli.commands import COMMANDS, GROUPS, SUBCOMMANDS, Entry, runnable
from lakepond.cli.words import printable
from lakepond.errors import CloudCorrupt, ConfigError, LakeCorrupt, LakepondError, RunCorrupt, SpecError
from lakepond.stopping import Terminated, terminate_as_interrupt

DONE, NO, USAGE, DAMAGED, BUSY, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141

DESCRIPTION = (
    "Replay buffers for reinforcement learning that store each distinct row once, in memory and on disk."
)
WITH_TINY_PRESET = ("compare", "train single", "train mixture", "train live")
"""commands whose option `--debug` was a preset"""
WITH_OLD_NAMES = (*WITH_TINY_PRESET, "train erl")
"""commands with options that had other names in the last release"""
DEBUG_BEHIND = (
    "lakepond: --debug no longer selects a small preset: write --preset tiny for that, or put --debug before "
    "the command, `lakepond --debug COMMAND`, to see tracebacks."
)
MORE = (
    "`lakepond COMMAND --help` shows the options of a command and an example. `lakepond --debug COMMAND` "
    "shows tracebacks and more log messages. `lakepond --version` prints the version."
)
GROUP_MORE = "`lakepond {name} SUBCOMMAND --help` shows the options of a subcommand."
GROUP_EXAMPLES = {"train": "train erl --preset demo", "data": "data fetch pse"}
EXAMPLES = (
    "lakepond plan --preset eigen2",
    "lakepond train erl --preset demo --out runs/demo",
    "lakepond watch runs/demo",
)


class Command(Protocol):
    """What the class of a command must have.

    A command that changes something may also have `interrupted() -> str`: how to continue after Ctrl-C.
    """

    def run(self) -> int | None:
        """Run the command and return the exit code, None for 0; a `LakepondError` becomes one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("LAKEPOND_DEBUG"))
    try:
        if "--debug" in words[1:] and _command(words) in WITH_TINY_PRESET:
            print(DEBUG_BEHIND, file=sys.stderr)
            return USAGE
        code = _answer([word for word in words if word != "--debug"], debug)
        sys.stdout.flush()
    except BrokenPipeError:  # `lakepond ls | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def program() -> NoReturn:
    """The program `lakepond`: `main`, then the interpreter ends.

    Ctrl-C is ignored while it ends; otherwise it could print a traceback of a library.
    """
    for name in ("stdout", "stderr"):  # one that is closed (2>&-): print would take the other one for it
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _new_names(command: str, options: list[str]) -> list[str]:
    """The options of a command with the new names of those that were renamed in this release."""
    if command not in WITH_OLD_NAMES:
        return options
    from lakepond.runs.settings import RENAMED

    trainer = command.rpartition(" ")[2]
    new_names = {
        f"--{key.rpartition('.')[2]}".replace("_", "-"): f"--{new}".replace("_", "-")
        for key, new in RENAMED.items()
        if key.startswith(f"{trainer}.")
    }
    found = []
    for before, word in pairwise(["", *options]):
        name, equals, value = word.partition("=")
        old, new = name.replace("_", "-"), new_names.get(name.replace("_", "-"), name)
        if word == "--preset=debug" or (before, word) == ("--preset", "debug"):
            old, new = "--preset debug", "--preset tiny"
            word = word.replace("debug", "tiny")
        elif new != name:
            word = f"{new}{equals}{value}"
        if new != name:
            note = f"{old} is now called {new}; the old name works until the next release."
            print(f"lakepond: warning: {note}", file=sys.stderr)
        found.append(word)
    return found


def _command(words: list[str]) -> str:
    """The name of the command, like "compare" or "train erl"."""
    return " ".join(words[: 2 if words[:1] == ["train"] else 1])


def _answer(words: list[str], debug: bool) -> int:
    if words in (["--version"], ["-V"]):
        print(f"lakepond {__version__}")
        return DONE
    group, known = "", COMMANDS
    if words and words[0] in SUBCOMMANDS:
        group, *words = words
        known = SUBCOMMANDS[group]
    if words in (["--help"], ["-h"]) or (words == ["help"] and not group):
        print(overview(group))
        return DONE
    if not words or words[0] not in known:
        print(_unknown(group, words[0], known) if words else overview(group), file=sys.stderr)
        return USAGE
    return _run(f"{group} {words[0]}".strip(), words[1:], debug)


def _run(name: str, options: list[str], debug: bool) -> int:
    command: Command | None = None
    try:
        with _log_to_stderr(debug), terminate_as_interrupt():
            command = parse(name, _new_names(name, options))
            return command.run() or DONE
    except SystemExit as leaving:  # tyro has printed the help (0) or the wrong usage (2)
        return leaving.code if isinstance(leaving.code, int) else NO
    except KeyboardInterrupt as stopped:
        hint = getattr(command, "interrupted", None)
        if hint is not None:
            with suppress(OSError):  # the terminal was closed
                print(f"\nlakepond: stopped. {hint()}", file=sys.stderr)
        return 128 + stopped.signum if isinstance(stopped, Terminated) else INTERRUPTED
    except Exception as error:
        sentence = _sentence(error, f"`lakepond {name}`")
        if debug or sentence is None:
            raise
        print(f"lakepond: {printable(sentence)}", file=sys.stderr)
        return exit_code(error)


def _sentence(error: Exception, program: str) -> str | None:
    """An error for people; None for one that nobody raised on purpose, whose traceback is needed."""
    if isinstance(error, BrokenPipeError):  # handled by `main`
        return None
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    if isinstance(error, LakepondError | OSError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"{program} needs more memory than this machine has; see `lakepond plan`."
    if isinstance(error, ModuleNotFoundError):
        from lakepond.doctor.software import EXTRAS

        module = (error.name or "").partition(".")[0]
        for extra, modules in EXTRAS.items():
            if module in modules:
                return f"{program} needs {error.name}: pip install 'lakepond[{extra}]'."
    return None


def parse(name: str, words: list[str]) -> Command:
    """A command from the words after its name; raises SystemExit after printing its help or wrong usage."""
    import tyro
    from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes

    from lakepond.cli.options import registry

    forms = (OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff)
    return cast(
        Command,
        tyro.cli(load(name), prog=f"lakepond {name}", args=words, config=forms, registry=registry()),
    )


def load(name: str) -> type[Any]:
    """The dataclass of a command, by its words: "ls", "train erl"."""
    module, _, kind = runnable()[name].home.partition(":")
    return cast(type[Any], getattr(import_module(f"lakepond.cli.{module}"), kind))


def overview(name: str = "") -> str:
    """What `lakepond --help` prints, every command by group; or what `lakepond train --help` does."""
    width = min(100, shutil.get_terminal_size().columns)
    if name:
        lines = [f"usage: lakepond {name} SUBCOMMAND ...", "", *wrap(COMMANDS[name].summary, width), ""]
        lines += [*_listed(SUBCOMMANDS[name], width), "", f"Example: lakepond {GROUP_EXAMPLES[name]}", ""]
        return "\n".join([*lines, *wrap(GROUP_MORE.format(name=name), width)])
    lines = ["usage: lakepond [--debug] COMMAND ...", "", *wrap(DESCRIPTION, width)]
    for group in GROUPS:
        named = {name: entry for name, entry in COMMANDS.items() if entry.group == group}
        lines += ["", f"{group}:", *_listed(named, width)]
    lines += ["", *(f"Example: {example}" for example in EXAMPLES), ""]
    return "\n".join([*lines, *wrap(MORE, width)])


def _listed(named: Mapping[str, Entry], width: int) -> list[str]:
    lines = list[str]()
    for name, entry in named.items():
        line = f"  {name:<12}{entry.summary}"
        lines += wrap(line, width, subsequent_indent=" " * 14, break_on_hyphens=False)
    return lines


def exit_code(error: BaseException) -> int:
    """The exit code for an error that was raised on purpose."""
    if isinstance(error, LakeCorrupt | RunCorrupt | CloudCorrupt):
        return DAMAGED
    if isinstance(error, SpecError | ConfigError):
        return USAGE
    return BUSY if isinstance(error, BlockingIOError) else NO


def _unknown(group: str, word: str, known: Mapping[str, Entry]) -> str:
    from difflib import get_close_matches

    program = f"lakepond {group}".strip()
    near = get_close_matches(word, known, 1)
    meant = f"did you mean `{program} {near[0]}`? " if near else ""
    what = "option" if word.startswith("-") else "subcommand" if group else "command"
    return f"lakepond: there is no {what} {printable(word)!r}; {meant}`{program} --help` lists them all."


@contextmanager
def _log_to_stderr(debug: bool) -> Iterator[None]:
    """Print log messages of the library to stderr: warnings, or with --debug all of them."""
    log, handler = logging.getLogger("lakepond"), _Stderr()
    before = log.level
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class _Stderr(logging.Handler):
    """Writes to the current sys.stderr, which a live display may have replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):  # the terminal was closed
            print(f"lakepond: {self.format(record)}", file=sys.stderr, flush=True)
