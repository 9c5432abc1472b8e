"""How commands declare options, and how their values are read and checked: a wrong one is one sentence.

tyro reads `int | None` as "None or an integer" and says so in every message, and takes the word "None" for
"not given". Here None only means that an option was not given.
"""

from __future__ import annotations

import math
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from lakepond.errors import SpecError

Flag = Annotated[bool, arg(help_behavior_hint="")]
"""true if given; `--help` shows no default"""
Json = Annotated[bool, arg(help="print JSON instead of text", help_behavior_hint="")]
"""option --json"""
Place = Annotated[Positional[str], arg(metavar="PATH|URL")]
"""the first argument of commands that read a lake or a run, also in a bucket"""
KINDS = {
    int: ("INT", "an integer"),
    float: ("FLOAT", "a number"),
    str: ("STR", "text"),
    Path: ("PATH", "a path"),
}


def optional(metavar: str, default: str) -> Any:
    """The form of an option that is None unless given; `default` says in `--help` what applies then."""
    return arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


Newest = Annotated[int | None, optional("N", "the newest")]
"""option --commit"""
KeepAll = Annotated[int | None, optional("N", "keep all")]
"""options --keep-last and --keep-every"""


def at_least(least: float, **options: float | None) -> None:
    """`SpecError` if an option is less than `least` or not a finite number; None means "not given"."""
    for name, value in options.items():
        if value is not None and not (math.isfinite(value) and value >= least):
            raise SpecError(f"{_flag(name)} must be at least {least:g}, but is {value:.12g}.")


def between(least: float, most: float, **options: float) -> None:
    """`SpecError` if an option is not in [least, most]."""
    for name, value in options.items():
        if not least <= value <= most:
            raise SpecError(
                f"{_flag(name)} must be between {least:.12g} and {most:.12g}, but is {value:.12g}."
            )


def retention(keep_last: int | None, keep_every: int | None) -> None:
    """`SpecError` unless both are at least 1, and --keep-every is given only with --keep-last."""
    at_least(1, keep_last=keep_last, keep_every=keep_every)
    if keep_every is not None and keep_last is None:
        raise SpecError(f"--keep-every {keep_every} needs --keep-last, the number of newest commits to keep.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def registry() -> ConstructorRegistry:
    """The rules for numbers, and for numbers, words, texts and paths that need not be given."""
    rules = ConstructorRegistry()
    rules.primitive_rule(_rule)
    return rules


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kind: Any = info.type
    if info.type_origin in (typing.Union, types.UnionType):
        inner = [each for each in typing.get_args(kind) if each is not type(None)]
        kind = inner[0] if len(inner) == 1 else None
    elif kind not in (int, float):
        return None
    choices = typing.get_args(kind) if typing.get_origin(kind) is Literal else None
    if choices is None and kind not in KINDS:
        return None
    metavar, expected = KINDS[kind] if choices is None else ("{" + ",".join(choices) + "}", "")

    def read(words: list[str]) -> Any:
        try:
            return words[0] if choices else kind(words[0])
        except ValueError:
            raise ValueError(f"{words[0]!r} is not {expected}") from None

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: value is None or (value in choices if choices else isinstance(value, kind)),
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )
