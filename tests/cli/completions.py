"""The scripts that `lakepond completion` prints, from the dataclasses of the commands."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from tyro.conf import Positional

from lakepond.cli import load
from lakepond.cli.commands import COMMANDS, SUBCOMMANDS, runnable

BASH = """\
_lakepond() {
  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= word words=
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    case "$command $word" in
@COMMANDS@
    esac
  done
  case "$command $prev" in
@CHOICES@
    *)
      case "$command" in
@OPTIONS@
      esac
      [[ $words == --* && $cur != -* ]] && words=;;
  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}
"""
BASH_END = "complete -o bashdefault -o default -F _lakepond lakepond\n"
POSITIONAL = {"completion": "bash zsh fish", "data fetch": "pse sp500 power"}
ZSH_END = """\
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  autoload -U +X bashcompinit && bashcompinit
  complete -o bashdefault -o default -F _lakepond lakepond
  _bash_complete -o bashdefault -o default -F _lakepond
else
  autoload -U +X compinit bashcompinit && compinit && bashcompinit
  complete -o bashdefault -o default -F _lakepond lakepond
fi
"""


class Option(typing.NamedTuple):
    """An option of a command."""

    flag: str
    choices: tuple[str, ...]
    """the values it may have; empty: any"""
    is_switch: bool


def options_of(kind: type[Any]) -> Iterator[Option]:
    """The options of a command, also those in dataclasses within it; positional arguments are left out."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        wanted, marks = _without_marks(hints[field.name])
        if dataclasses.is_dataclass(wanted):
            yield from options_of(typing.cast(type[Any], wanted))
        elif Positional[int].__metadata__[0] not in marks:  # type: ignore[attr-defined]
            name = next((mark.name for mark in marks if getattr(mark, "name", None)), field.name)
            flag = f"--{name.replace('_', '-')}"
            yield Option(flag, tuple(_choices(wanted)), field.default is False and wanted is bool)


def _without_marks(hint: Any) -> tuple[Any, list[Any]]:
    marks: list[Any] = []
    while typing.get_origin(hint) is Annotated:
        hint, *more = typing.get_args(hint)
        marks += more
    return hint, marks


def _choices(hint: Any) -> Iterator[str]:
    hint, _ = _without_marks(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        yield from map(str, inner)
    elif origin in (typing.Union, types.UnionType, tuple):
        for each in inner:
            yield from _choices(each)
    elif hint is bool:
        yield from ("True", "False")


def _commands() -> dict[str, list[Option]]:
    return {name: [*options_of(load(name)), Option("--help", (), True)] for name in runnable()}


def bash() -> str:
    """The script for bash."""
    return _bash_function() + BASH_END


def zsh() -> str:
    """The script for zsh: that of bash."""
    return "#compdef lakepond\n" + _bash_function() + ZSH_END


def _bash_function() -> str:
    known = _commands()
    commands, choices = list[str](), list[str]()
    options = [f'        "") words="{" ".join([*COMMANDS, "--debug", "--help", "--version"])}";;']
    for name in COMMANDS:
        commands.append(f'      " {name}") command="{name}";;')
    for name, below in SUBCOMMANDS.items():
        commands += [f'      "{name} {word}") command="{name} {word}";;' for word in below]
        options.append(f'        "{name}") words="{" ".join(below)}";;')
    for name, found in known.items():
        flags = " ".join(option.flag for option in found)
        options.append(f'        "{name}") words="{flags}";;')
        for option in found:
            if option.choices and not option.is_switch:
                choices.append(f'    "{name} {option.flag}") words="{" ".join(option.choices)}";;')
    choices += [f'    "{name} {name.split()[-1]}") words="{words}";;' for name, words in POSITIONAL.items()]
    parts = {"@COMMANDS@": commands, "@CHOICES@": choices, "@OPTIONS@": options}
    script = BASH
    for mark, lines in parts.items():
        script = script.replace(mark, "\n".join(lines))
    return script


def fish() -> str:
    """The script for fish."""
    lines = list[str]()
    for name, entry in COMMANDS.items():
        lines.append(_complete("__fish_use_subcommand", f"-f -a {name} -d {_quoted(entry.summary)}"))
    for name, below in SUBCOMMANDS.items():
        rest = " ".join(below)
        condition = f"__fish_seen_subcommand_from {name}; and not __fish_seen_subcommand_from {rest}"
        for word, entry in below.items():
            lines.append(_complete(condition, f"-f -a {word} -d {_quoted(entry.summary)}"))
    for name, found in _commands().items():
        condition = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in name.split())
        for option in found:
            value = (
                ""
                if option.is_switch
                else f" -x -a '{' '.join(option.choices)}'"
                if option.choices
                else " -r"
            )
            lines.append(_complete(condition, f"-l {option.flag.removeprefix('--')}{value}"))
        if name in POSITIONAL:
            lines.append(_complete(condition, f"-f -a '{POSITIONAL[name]}'"))
    return "\n".join(lines) + "\n"


def _complete(condition: str, rest: str) -> str:
    return f"complete -c lakepond -n '{condition}' {rest}"


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "\\'") + "'"
