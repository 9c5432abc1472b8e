"""The command line: `lakepond <command>`, one file a command, the same words as the library.

A command is a small frozen dataclass with a `run()`; its fields are its options, its docstring is its help
and ends with an example. To add one, write it in a file of its own and name it in `commands.py`: it is
imported when it is called, so `lakepond --help` imports none and `lakepond verify` no trainer. What is heavy
(NumPy, the library) is imported inside `run`.

    data to stdout, talk to stderr; with --json one JSON document on stdout and nothing else

    0    done; the answer is yes            3    a file of the lake is not what was written
    1    could not be done, or no           4    another process is writing: try again later
    2    wrong usage                        130  interrupted (143: SIGTERM, 129: SIGHUP)
"""

from __future__ import annotations

import logging
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from textwrap import wrap
from typing import Any, NoReturn, Protocol, cast

from lakepond._version import __version__
from lakepond.cli.commands import COMMANDS, KEEP, LOOK, MOVE, PLAN, SHELL, TRAIN
from lakepond.cli.words import printable
from lakepond.errors import (
    CloudCorrupt,
    ConfigError,
    LakeCorrupt,
    LakepondError,
    RunCorrupt,
    SpecError,
)
from lakepond.stopping import Terminated, terminate_as_interrupt

DONE, NO, USAGE, DAMAGED, BUSY, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 130, 141

EXTRAS = {"obstore": "cloud", "jax": "train", "optax": "train", "safetensors": "train", "matplotlib": "train"}
EXTRAS |= {"gymnax": "minatar", "gymnasium": "atari", "ale_py": "atari", "wandb": "wandb"}
EXTRAS |= {"tensorboardX": "tensorboard"}
"""which extra brings a library that is not part of the core"""

DESCRIPTION = "Replay for reinforcement learning that outgrows memory and survives the machine."
WITH_DEBUG_PRESET = (["compare"], *(["train", name] for name in ("single", "mixture", "live")))
MORE = "`lakepond COMMAND --help` tells options and an example; --debug shows tracebacks; see also --version."
EXAMPLES = (
    "lakepond plan --preset eigen2",
    "lakepond train erl --preset demo --out runs/demo",
    "lakepond watch runs/demo",
)


class Command(Protocol):
    """What an entry of `COMMANDS` must be able to do.

    A command that changes something may also have `interrupted() -> str`: how to go on after Ctrl-C.
    """

    def run(self) -> int | None:
        """Do it and return the exit code, None for 0; what is raised on purpose becomes one sentence."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words or bool(os.environ.get("LAKEPOND_DEBUG"))
    words = _without_debug(words)
    try:
        code = _answer(words, debug)
        sys.stdout.flush()
    except BrokenPipeError:  # `lakepond ls | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code


def program() -> NoReturn:
    """The program `lakepond`: `main`, then the interpreter ends.

    A Ctrl-C while it ends changes nothing any more; without this it would print a traceback of a library.
    """
    code = main()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(code)


def _without_debug(words: list[str]) -> list[str]:
    """The words less `--debug`; behind a command that trains on games it also stands for the tiny preset."""
    behind = "--debug" in words[1:]
    words = [word for word in words if word != "--debug"]
    if behind and any(words[: len(name)] == name for name in WITH_DEBUG_PRESET) and "--preset" not in words:
        words += ["--preset", "debug"]
    return words


def _answer(words: list[str], debug: bool) -> int:
    if words in (["--version"], ["-V"]):
        print(f"lakepond {__version__}")
        return DONE
    if words in (["--help"], ["-h"], ["help"]):
        print(overview())
        return DONE
    if not words or words[0] not in COMMANDS:
        print(overview() if not words else _unknown(words[0]), file=sys.stderr)
        return USAGE
    command: Command | None = None
    try:
        with _log_to_stderr(debug), terminate_as_interrupt():
            command = parse(words[0], words[1:])
            return command.run() or DONE
    except SystemExit as leaving:  # tyro has told its help (0) or the wrong usage (2)
        return leaving.code if isinstance(leaving.code, int) else NO
    except KeyboardInterrupt as stopped:
        hint = getattr(command, "interrupted", None)
        if hint is not None:
            with suppress(OSError):  # a terminal that hung up
                print(f"\nlakepond: stopped. {hint()}", file=sys.stderr)
        return 128 + stopped.signum if isinstance(stopped, Terminated) else INTERRUPTED
    except BrokenPipeError:
        raise
    except (LakepondError, OSError) as error:
        if debug:
            raise
        print(f"lakepond: {printable(one_sentence(error))}", file=sys.stderr)
        return exit_code(error)
    except MemoryError:
        if debug:
            raise
        needs = f"`lakepond {words[0]}` needs more memory than this machine has; see `lakepond plan`."
        print(f"lakepond: {needs}", file=sys.stderr)
        return NO
    except ModuleNotFoundError as error:
        extra = EXTRAS.get((error.name or "").partition(".")[0])
        if debug or extra is None:
            raise
        needs = f"`lakepond {words[0]}` needs {error.name}: pip install 'lakepond[{extra}]'."
        print(f"lakepond: {needs}", file=sys.stderr)
        return NO


def parse(name: str, words: list[str]) -> Command:
    """A command from the words after its name; raises SystemExit after its help or a wrong usage."""
    import tyro

    return cast(Command, tyro.cli(load(name), prog=f"lakepond {name}", args=words, config=forms()))


def forms() -> tuple[Any, ...]:
    """How fields become options."""
    from tyro.conf import FlagCreatePairsOff, OmitArgPrefixes, OmitSubcommandPrefixes

    return OmitArgPrefixes, OmitSubcommandPrefixes, FlagCreatePairsOff


def load(name: str) -> type[Any]:
    """The dataclass of a command."""
    module, _, kind = COMMANDS[name].home.partition(":")
    return cast(type[Any], getattr(import_module(f"lakepond.cli.{module}"), kind))


def overview() -> str:
    """What `lakepond --help` prints: every command with its summary, by group."""
    width = min(100, shutil.get_terminal_size().columns)
    lines = ["usage: lakepond [--debug] COMMAND ...", "", *wrap(DESCRIPTION, width)]
    for group in (PLAN, TRAIN, LOOK, KEEP, MOVE, SHELL):
        named = [(name, entry.summary) for name, entry in COMMANDS.items() if entry.group == group]
        if named:
            lines += ["", f"{group}:"]
            for name, summary in named:
                line = f"  {name:<12}{summary}"
                lines += wrap(line, width, subsequent_indent=" " * 14, break_on_hyphens=False)
    lines += ["", *(f"Example: {example}" for example in EXAMPLES), ""]
    return "\n".join([*lines, *wrap(MORE, width)])


def exit_code(error: BaseException) -> int:
    """What a script is told of an error that was raised on purpose."""
    if isinstance(error, LakeCorrupt | RunCorrupt | CloudCorrupt):
        return DAMAGED
    if isinstance(error, SpecError | ConfigError):
        return USAGE
    return BUSY if isinstance(error, BlockingIOError) else NO


def one_sentence(error: BaseException) -> str:
    """An error for people."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return str(error)


def _unknown(word: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, COMMANDS, 1)
    meant = f"did you mean `lakepond {near[0]}`? " if near else ""
    return f"lakepond: there is no command {word!r}; {meant}`lakepond --help` names them all."


@contextmanager
def _log_to_stderr(debug: bool) -> Iterator[None]:
    """What the library logs is talk: to stderr, warnings only unless all is asked for."""
    log, handler = logging.getLogger("lakepond"), _Stderr()
    handler.setFormatter(logging.Formatter("lakepond: %(message)s"))
    before = log.level
    log.setLevel(logging.DEBUG if debug else logging.WARNING)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


class _Stderr(logging.StreamHandler[Any]):
    """Writes to what sys.stderr is at that moment: a live display may have put itself in its place."""

    @property
    def stream(self) -> Any:
        return sys.stderr

    @stream.setter
    def stream(self, _: Any) -> None:
        pass
