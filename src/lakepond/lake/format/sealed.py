"""Sealed JSON: an object whose last key is a checksum of the text before it.

    {"format": 2, ..., "checksum": "5f0c..."}
    └── the digest of this part and a closing brace ──┘

The checksum covers the bytes of the file, so a reader does not have to write JSON in the same way. JSON is
strict: a number that is not finite is written as the string "NaN", "Infinity" or "-Infinity".
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

from lakepond.errors import LakeCorrupt, LakeTooNew, SpecError
from lakepond.lake.format.checksum import DIGEST_BYTES, digest_of
from lakepond.untrusted import parse_json, with_fresh_stack

P = ParamSpec("P")
T = TypeVar("T")
NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})
"""the strings that stand for numbers that are not finite"""
MOST_LEVELS = 100
"""of dicts and lists in a caller's data; a JSON parser takes one call per level, and Python 1,000 in all"""
_SEAL = b', "checksum": "'
_LENGTH = len(_SEAL) + 2 * DIGEST_BYTES + 2


def seal(content: dict[str, Any]) -> bytes:
    """The file with this content."""
    data = strict(content)
    return data[:-1] + _SEAL + digest_of(data).encode() + b'"}'


def unseal(data: bytes) -> dict[str, Any]:
    """The content of a file; ValueError unless its bytes are those that were written."""
    text, tail = data[:-_LENGTH] + b"}", data[-_LENGTH:]
    if tail != _SEAL + digest_of(text).encode() + b'"}':
        raise ValueError("its checksum does not match")
    content = parse_json(text)
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    return content


def parse(data: bytes) -> Any:
    """The content of a file whose checksum may not match, to see its version; None if it is not JSON."""
    try:
        return parse_json(data)
    except ValueError:
        return None


def reader(damaged: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that reads a file: `LakeCorrupt` for any failure that a damaged file can cause.

    Its message is `damaged`, formatted with the arguments of the function and with {error}. `LakeTooNew`
    passes unchanged. The function runs as `with_fresh_stack` does.
    """

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def reading(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return with_fresh_stack(lambda: read(*args, **kwargs))
            except LakeTooNew:
                raise
            except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
                given = signature(read).bind(*args, **kwargs).arguments
                raise LakeCorrupt(damaged.format(**given, error=error)) from error

        return reading

    return decorate


def strict(value: Any, *, indent: int | None = None) -> bytes:
    """A value as strict JSON, with strings in place of numbers that are not finite."""
    try:
        text = json.dumps(value, indent=indent, allow_nan=False)
    except ValueError:
        text = json.dumps(as_stored(value), indent=indent, allow_nan=False)
    return text.encode()


def check_levels(value: Any, what: str, level: int = 0) -> None:
    """Raise `SpecError` if a value that is to be stored as JSON is nested too deeply to be read anywhere."""
    if isinstance(value, (dict, list, tuple)):
        if level == MOST_LEVELS:
            raise SpecError(
                f"{what} is nested deeper than {MOST_LEVELS} levels of dicts and lists, or contains itself; "
                "store flatter data."
            )
        for each in value.values() if isinstance(value, dict) else value:
            check_levels(each, what, level + 1)


def as_stored(value: Any) -> Any:
    """A copy of a value as it is read back from strict JSON: also with lists for tuples, and text as keys."""
    return json.loads(json.dumps(value), parse_constant=str)
