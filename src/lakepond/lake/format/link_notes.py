"""Links that a lake has no column for, in the note of a commit, if there are any.

A lake stores whether a step follows the previous one of its stream. The note adds which streams were cut and
have no step since, and which steps were appended by `fill_from` and therefore belong to no sequence. It also
lists the steps of earlier commits whose end flags this one changes, for those who have read them already.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.format.commits import Commit
from lakepond.types import STREAM_MAX, Array

CUT_STREAMS, ALONE_STEPS, ENDED_STEPS = "cut_streams", "alone_steps", "ended_steps"


def cut_streams(commit: Commit) -> list[int]:
    """The streams whose next step starts an episode."""
    streams: Any = commit.note.get(CUT_STREAMS, [])
    if type(streams) is not list or not all(type(s) is int and 0 <= s <= STREAM_MAX for s in streams):
        raise LakeCorrupt(f"commit {commit.number} has an invalid note: {CUT_STREAMS}={streams!r}.")
    return streams


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
