"""How the values of options are read: a wrong one is an error of one sentence.

tyro reads `int | None` as "None or an integer" and says so in every message, and takes the word "None" for
"not given". Here None only means that an option was not given.
"""

from __future__ import annotations

import types
import typing
from pathlib import Path
from typing import Any, Literal

from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

NAMES = {
    int: ("INT", "an integer"),
    float: ("FLOAT", "a number"),
    str: ("STR", "text"),
    Path: ("PATH", "a path"),
}


def registry() -> ConstructorRegistry:
    """The rules for numbers, and for numbers, words, texts and paths that need not be given."""
    rules = ConstructorRegistry()
    rules.primitive_rule(_rule)
    return rules


def _rule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
    kind: Any = info.type
    if info.type_origin in (typing.Union, types.UnionType):
        inner = [each for each in typing.get_args(kind) if each is not type(None)]
        if len(inner) != 1:
            return None
        (kind,) = inner
    elif kind not in (int, float):
        return None
    if typing.get_origin(kind) is Literal and all(isinstance(word, str) for word in typing.get_args(kind)):
        words = typing.get_args(kind)
        return _spec("{" + ",".join(words) + "}", str, lambda value: value in words, words)
    if kind not in NAMES:
        return None
    metavar, expected = NAMES[kind]

    def read(word: str) -> Any:
        try:
            return kind(word)
        except ValueError:
            raise ValueError(f"{word!r} is not {expected}") from None

    return _spec(metavar, read, lambda value: isinstance(value, kind))


def _spec(
    metavar: str,
    read: typing.Callable[[str], Any],
    fits: typing.Callable[[Any], bool],
    choices: tuple[str, ...] | None = None,
) -> PrimitiveConstructorSpec[Any]:
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=lambda words: read(words[0]),
        is_instance=lambda value: value is None or fits(value),
        str_from_instance=lambda value: [str(value)],
        choices=choices,
    )
