"""The fields of a lake, in words that the page understands."""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.lake.read.lake import Lake
from lakepond.report.view import pictures
from lakepond.report.view.distribution import columns_of
from lakepond.report.view.kinds import Kind, kind_of
from lakepond.types import Field, leaves


def kinds(lake: Lake) -> list[tuple[str, Field, Kind]]:
    """Each observation of a step: its path, its field, and how it is shown."""
    fields: list[tuple[str, Field]] = list(leaves(lake.spec.obs, "obs"))
    found: list[tuple[str, Field, Kind]] = []
    for (path, field), rows in zip(fields, lake.reader.layouts(), strict=True):
        axis = None if rows is None else rows.axis
        size = 1 if rows is None or axis is None else field.shape[axis] // rows.length
        found.append((path, field, kind_of(field, axis, size)))
    return found


def tell_spec(lake: Lake) -> dict[str, Any]:
    """What a step is made of."""
    observed = [
        {"leaf": i, "path": path, **_tell_field(field), **_tell_kind(kind)}
        for i, (path, field, kind) in enumerate(kinds(lake))
    ]
    return {
        "commit": lake.commit.number,
        "observations": observed,
        "actions": [{"path": path, **_tell_field(f)} for path, f in leaves(lake.spec.action, "action")],
        "reward": _tell_field(lake.spec.reward),
        "extras": [{"path": name, **_tell_field(f)} for name, f in lake.spec.extras.items()],
        "columns": list(columns_of(lake)),
    }


def is_market(lake: Lake) -> bool:
    """Whether an action is a coefficient and a sale target for each of many instruments."""
    action = lake.spec.action
    return isinstance(action, Field) and len(action.shape) == 2 and action.shape[1] == 2


def _tell_field(field: Field) -> dict[str, Any]:
    return {"shape": list(field.shape), "dtype": np.dtype(field.dtype).name, "bytes": field.nbytes}


def _tell_kind(kind: Kind) -> dict[str, Any]:
    return {
        "kind": kind.name,
        "height": kind.height,
        "width": kind.width,
        "depth": kind.depth,
        "columns": kind.columns,
        "features": list(kind.features),
        "strip": pictures.frames_a_strip(kind, False) if kind.width else 0,
        "strip_of_stacks": pictures.frames_a_strip(kind, True) if kind.width else 0,
        "colours": pictures.channel_colours(kind.depth) if kind.name == "channels" else [],
    }
