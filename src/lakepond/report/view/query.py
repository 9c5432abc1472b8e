"""The fields of a query, `?commit=4&stream=0`, parsed and checked."""

from __future__ import annotations

from collections.abc import Mapping

from lakepond.errors import LakepondError

Query = Mapping[str, str]
LONGEST = 20
"""digits of a number"""


class BadQuery(LakepondError, ValueError):
    """A field of the query is missing or invalid."""


class Busy(LakepondError):
    """Another request of this kind is being answered; only one may be."""


def whole(query: Query, name: str, default: int | None = None) -> int:
    """A whole number."""
    text = query.get(name)
    if text is None and default is not None:
        return default
    try:
        if text is None or len(text) > LONGEST:
            raise ValueError
        return int(text)
    except ValueError:
        raise BadQuery(f"{name} is a whole number, not {text!r:.40}.") from None


def real(query: Query, name: str, default: float) -> float:
    """A number."""
    try:
        return float(query.get(name, default))
    except ValueError:
        raise BadQuery(f"{name} is a number, not {query[name]!r:.40}.") from None


def one_of(query: Query, name: str, choices: tuple[str, ...]) -> str:
    """One of some words; the first if the field is missing."""
    word = query.get(name, choices[0])
    if word not in choices:
        raise BadQuery(f"{name} is one of {list(choices)}, not {word!r:.40}.")
    return word


def commit_number(query: Query) -> int | None:
    """The number of the commit; None: the newest intact one."""
    return whole(query, "commit") if "commit" in query else None
