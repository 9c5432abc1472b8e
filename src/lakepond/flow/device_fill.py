"""lake ──fill──▶ device pond, in pieces; `lake_to_device` chooses the steps. Imports JAX."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lakepond.flow.lake_to_device import BLOCK, plan
from lakepond.lake.read.lake import Lake
from lakepond.pond.device import DevicePond, PondState
from lakepond.pond.device_load import load
from lakepond.types import Field

PIECE_BYTES = 32 << 20
"""bytes of rows copied to a device pond at a time, while the next ones are read"""


def pond_for(obs: Field, capacity: int) -> DevicePond:
    """A pond for `fill`, with rows for blocks of `BLOCK` steps and episodes of 16 steps on average."""
    runs = capacity // BLOCK + capacity // 16 + 2  # each takes a stack of rows more
    return DevicePond(obs, 1, capacity, rows=capacity + runs * obs.stack)


def fill(
    shape: DevicePond,
    pond: PondState | None,
    lake: Lake,
    rng: np.random.Generator,
    *,
    newest: int | None = None,
) -> tuple[DevicePond, PondState]:
    """Fill a pond of one lane with steps of a lake, as many as fit, each with the same probability.

    newest: from this many that were recorded last. pond: the state to reuse, invalid afterwards; None: a new
    one. If the rows that the steps need do not fit,
    a pond with more rows takes its place, so the shape is returned too; `SpecError` if the device has no
    memory for it.
    """
    steps = len(lake) if newest is None else min(newest, len(lake))
    chosen = plan(lake, min(shape.capacity, steps), rng=rng, newest=newest)
    if chosen.rows > shape.rows:
        shape, pond = replace(shape, rows=chosen.rows + chosen.rows // 16), None
    pieces = chosen.pieces(max(64, PIECE_BYTES // shape.row_bytes))
    return shape, load(shape, shape.init() if pond is None else pond, chosen.columns, pieces)
