"""Pickling of a replay: its content with each distinct row once, or the path and commit of its lake."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakepondError, LakeReadOnly
from lakepond.flow import lake_to_pond
from lakepond.flow.pond_and_lake import Outflow
from lakepond.flow.pond_to_lake import copy_of
from lakepond.lake.format.tracks import Track
from lakepond.lake.read.lake import Lake
from lakepond.lake.write.handover import Windows
from lakepond.pond import Pond, SlotWindows, column_fields
from lakepond.types import Array, RowLayout


def content_of(pond: Pond) -> dict[str, Any]:
    """Steps, rows, links and priorities of a pond: NumPy arrays, numbers and text."""
    with pond.reading():
        handed = copy_of(pond)
        places = pond.places(pond.ids())
        content: dict[str, Any] = {
            "oldest": pond.oldest,
            "columns": handed.columns,
            "join": pond.links.join[places],
            "cuts": pond.pending_cuts(),
            "layouts": [
                tuple(leaf.row_layout or ()) if leaf.layout_chosen else "open" for leaf in pond.leaves
            ],
            "weights": handed.priorities,
            "largest_priority": handed.largest_priority,
        }
    try:
        content["leaves"] = [_windows(leaf) if isinstance(leaf, Windows) else leaf for leaf in handed.leaves]
    finally:
        handed.release()
    return content


def lake_of(pond: Pond, outflow: Outflow) -> dict[str, Any]:
    """Commit the new steps of a pond; return where its lake is, and the newest commit."""
    with outflow.lock:
        outflow.commit_the_rest()
        if pond.priorities is not None and pond.size:
            outflow.commit({"automatic": True})
        last = outflow.background.flush()
        return {
            "path": str(outflow.path.absolute()),
            "cloud": outflow.url,
            "writer": outflow.background.writer.name,
            "commit": None if last is None else last.number,
            "oldest": pond.oldest,
            "cuts": pond.pending_cuts(),
        }


def _windows(leaf: Windows) -> dict[str, Array]:
    rows = np.empty((leaf.count, leaf.layout.row_bytes), np.uint8)
    at = 0
    for piece in leaf.rows():
        rows[at : at + len(piece)] = piece
        at += len(piece)
    return {"rows": rows, "runs": leaf.runs, "starts": leaf.starts}


def restore(pond: Pond, content: dict[str, Any]) -> tuple[type[LakepondError], str] | None:
    """Load the result of `content_of` or `lake_of` into a new pond of the same spec, capacity and alpha.

    Returns the error that recording to it raises, if it is read-only.
    """
    if "path" not in content:
        _restore_content(pond, content)
        return None
    path, writer, commit = (content[name] for name in ("path", "writer", "commit"))
    if commit is not None:
        segments = None
        if (url := content.get("cloud")) is not None:  # with a local budget, files may be there only
            from lakepond.flow.cloud_to_lake import lazy_segments

            segments = lazy_segments(Path(path), url, writer)
        with Lake.open(path, commit, writer=writer, segments=segments) as lake:
            lake_to_pond.resume(lake, pond, content["oldest"])
    pond.links.cuts.update(content["cuts"])
    return LakeReadOnly, (
        f"this replay is a copy of the one that writes {path}, as of commit {commit}, and can be sampled; "
        "record there, or open the lake here under a name of its own, writer='worker-1'."
    )


def _restore_content(pond: Pond, content: dict[str, Any]) -> None:
    pond.start_at(content["oldest"])
    for observations, layout in zip(pond.leaves, content["layouts"], strict=True):
        if layout != "open":
            observations.use_layout(RowLayout(*layout) if layout else None)
    if len(content["join"]):
        _append(pond, content)
    pond.links.cuts.update(content["cuts"])  # they concern the steps after these
    if pond.priorities is not None:
        with pond.reading():
            pond.update()
            places = pond.places(pond.ids())
            pond.priorities.restore(places, content["weights"], content["largest_priority"])


def _append(pond: Pond, content: dict[str, Any]) -> None:
    streams = content["columns"]["stream"].tolist()
    windows: list[SlotWindows | Array] = []
    pinned: dict[int, list[Array]] = {}
    try:
        for i, leaf in enumerate(content["leaves"]):
            if isinstance(leaf, dict):
                pond.keep_layout(i)
                pinned[i] = []
                slots = pond.load_rows(i, leaf["rows"], None)
                pinned[i].append(slots)
                track = Track(leaf["runs"].tobytes())
                windows.append(SlotWindows(slots[track[np.arange(len(track))]], leaf["starts"]))
            else:
                windows.append(leaf)
        values = [leaf if isinstance(leaf, SlotWindows) else leaf[:, k] for k in (0, 1) for leaf in windows]
        values += [content["columns"][name] for name, _ in column_fields(pond.spec)]
        pond.append(streams, values, join=content["join"])
    finally:
        for i, each in pinned.items():
            pond.release_layout(i, each)
