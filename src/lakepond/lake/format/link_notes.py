"""What a lake has no column for, in the note of a commit, if there is any.

A lake stores whether a step follows the previous one of its stream. The note adds which streams were cut and
have no step since, which steps were appended by `fill_from` and therefore belong to no sequence, and which
were removed from memory by `clear`. It also lists the steps of earlier commits whose end flags this one
changes, for those who have read them already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.sealed import as_stored, check_levels
from lakepond.types import STREAM_MAX, Array

CUT_STREAMS, ALONE_STEPS, ENDED_STEPS = "cut_streams", "alone_steps", "ended_steps"
CLEARED_BEFORE = "cleared_before"
MOST_VALUES = 1000
"""of one array in a note"""
OWN_KEYS = frozenset((CUT_STREAMS, ALONE_STEPS, ENDED_STEPS, CLEARED_BEFORE))


def stored_note(note: object) -> dict[str, Any]:
    """The note of a caller as a commit stores it, with NumPy values as numbers and lists.

    Raises `SpecError` for a type that it cannot store, for too many levels, and for a key of this module.
    """
    if not isinstance(note, dict):
        raise SpecError(f"a note must be a dict, not {type(note).__name__}.")
    check_levels(note, "the note of a commit")
    if taken := sorted(OWN_KEYS.intersection(note)):
        raise SpecError(f"the key {taken[0]!r} of a note is reserved for lakepond itself; use another one.")
    stored: dict[str, Any] = as_stored(_json_of(note, "note"))
    return stored


def _json_of(value: Any, where: str) -> Any:
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise SpecError(f"{where} has the key {key!r}; the keys of a note must be str.")
        return {key: _json_of(inner, f"{where}[{key!r}]") for key, inner in value.items()}
    if isinstance(value, np.ndarray | np.generic) and value.size <= MOST_VALUES:
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [_json_of(each, where) for each in value]
    if value is not None and not isinstance(value, str | int | float):
        raise SpecError(
            f"{where} is {type(value).__name__}; a note takes str, numbers, lists, dicts and NumPy arrays of "
            f"up to {MOST_VALUES:,} values."
        )
    return value


def cut_streams(commit: Commit) -> list[int]:
    """The streams whose next step starts an episode; earlier versions also wrote numbers of no stream."""
    streams: Any = commit.note.get(CUT_STREAMS, [])
    if type(streams) is not list or not all(type(stream) is int for stream in streams):
        raise LakeCorrupt(f"commit {commit.number} has an invalid note: {CUT_STREAMS}={streams!r}.")
    return [stream for stream in streams if 0 <= stream <= STREAM_MAX]


def cleared_before(commit: Commit) -> int:
    """The id of the first step that `clear` has left in memory; 0 if it was never called."""
    step: Any = commit.note.get(CLEARED_BEFORE, 0)
    if type(step) is not int or not 0 <= step <= commit.recorded:
        raise LakeCorrupt(f"commit {commit.number} has an invalid note: {CLEARED_BEFORE}={step!r}.")
    return step


def end_note(ends: Mapping[int, tuple[bool, bool]]) -> dict[str, Any]:
    """The steps whose end flags changed, as [step, terminated, truncated]; without them, an empty note."""
    return {ENDED_STEPS: [[step, *map(bool, flags)] for step, flags in ends.items()]} if ends else {}


def ended_steps(commit: Commit) -> dict[int, tuple[bool, bool]]:
    """The steps of earlier commits whose end flags a commit changes: terminated and truncated."""
    listed: Any = commit.note.get(ENDED_STEPS, [])
    try:
        found = {step: (terminated, truncated) for step, terminated, truncated in listed}
        valid = all(type(step) is int and {type(f) for f in flags} == {bool} for step, flags in found.items())
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise LakeCorrupt(f"commit {commit.number} has an invalid note: {ENDED_STEPS}={listed!r}.")
    return found


def are_alone(commit: Commit, ids: Array) -> Array:
    """Whether each of these steps is alone."""
    pairs: Any = commit.note.get(ALONE_STEPS, [])
    try:
        edges = np.array(pairs, np.int64).reshape(-1)
        valid = len(edges) == 2 * len(pairs) and (np.diff(edges) >= 0).all()
    except (TypeError, ValueError, OverflowError):
        valid = False
    if not valid:
        raise LakeCorrupt(f"commit {commit.number} has an invalid note: {ALONE_STEPS}={pairs!r}.")
    found: Array = np.searchsorted(edges, ids, side="right") % 2 == 1
    return found
