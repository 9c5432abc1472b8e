"""The note of a commit on links of a pond that a lake has no column for: see `lake/format/link_notes.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.lake.format.link_notes import ALONE_STEPS, CLEARED_BEFORE, CUT_STREAMS
from lakepond.pond import Pond
from lakepond.sampling.links import ALONE


def link_note(pond: Pond) -> dict[str, Any]:
    """The cut streams of a pond, the step before which it was cleared, and its steps that are alone.

    These as pairs [start, stop]; without what is empty or 0.
    """
    with pond.reading():
        pond.update()
        note: dict[str, Any] = {CUT_STREAMS: sorted(pond.links.cuts), CLEARED_BEFORE: pond.cleared}
        if pond.has_alone:
            alone = pond.links.join[pond.places(pond.ids())] == ALONE
            edges = np.flatnonzero(np.diff(alone, prepend=False, append=False)) + pond.oldest
            note[ALONE_STEPS] = edges.reshape(-1, 2).tolist()
    return {name: value for name, value in note.items() if value}
