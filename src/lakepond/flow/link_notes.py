"""The note of a commit on links of a pond that a lake has no column for: see `lake/format/link_notes.py`."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.lake.format.link_notes import ALONE_STEPS, CUT_STREAMS
from lakepond.pond import Pond
from lakepond.sampling.links import ALONE


def link_note(pond: Pond) -> dict[str, Any]:
    """The cut streams of a pond, and its steps that are alone as pairs [start, stop]; without empty ones."""
    with pond.reading():
        pond.update()
        note: dict[str, Any] = {CUT_STREAMS: sorted(pond.links.cuts)}
        if pond.has_alone:
            alone = pond.links.join[pond.places(pond.ids())] == ALONE
            edges = np.flatnonzero(np.diff(alone, prepend=False, append=False)) + pond.oldest
            note[ALONE_STEPS] = edges.reshape(-1, 2).tolist()
    return {name: value for name, value in note.items() if value}
