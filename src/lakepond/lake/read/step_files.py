"""The files of steps of one commit, through a bounded memory of the batches that were read last.

A batch is decoded as one, so reading single steps in random order would decode the same batches again and
again; the small columns of a million Atari steps are 35 MB. Rows are not kept.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from lakepond import forks
from lakepond.errors import LakeCorrupt
from lakepond.lake.format import columns as arrow
from lakepond.lake.format.steps import read_layout, read_steps
from lakepond.lake.format.tracks import Layout, Track
from lakepond.types import Array, Field, Spec, leaves

if TYPE_CHECKING:
    from lakepond.lake.read.reader import Stored

KEPT_BYTES = 64 << 20
"""plain columns that are kept"""
FOLLOWS = "follows_previous"
"""column: whether a step continues the previous one of its stream"""
OPEN_FILES = 256
"""files whose layout and tracks are kept"""


class Known(NamedTuple):
    """The layout of a file of steps, checked against the spec and the commit."""

    file: arrow.StepFileLayout
    layouts: tuple[Layout | None, ...]
    """for each leaf; None if its values are stored without deduplication"""
    tracks: tuple[Track | None, ...]

    @property
    def nbytes(self) -> int:
        """Memory for the tracks."""
        return sum(track.nbytes for track in self.tracks if track is not None)

    def check_windows(self, file: Path, columns: Mapping[str, Array]) -> None:
        """Raise `LakeCorrupt` unless the windows of some steps of the file are within their tracks."""
        for i, (layout, track) in enumerate(zip(self.layouts, self.tracks, strict=True)):
            if layout is not None and track is not None:
                starts = columns[f"windows[{i}]"]
                if len(starts) and (starts.min() < 0 or starts.max() + layout.length > len(track)):
                    raise LakeCorrupt(f"{file} has a window outside of its track; run `lakepond repair`.")


def column_fields(spec: Spec) -> dict[str, Field]:
    """The columns besides the observations, `stream` included, by their names in the file."""
    flag = Field((), "bool")
    found = dict(leaves(spec.action, "action"))
    found |= {"reward": spec.reward, "terminated": flag, "truncated": flag, **spec.extras}
    return found | {"stream": Field((), "int32")}


class StepsFiles:
    """Steps of any segment, any columns. One thread at a time is served."""

    def __init__(self, spec: Spec) -> None:
        self._columns = column_fields(spec)
        self._leaves: list[Field] = [field for _, field in leaves(spec.obs)]
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """Begin with nothing in memory; in a forked child, because a thread of the parent may be in here."""
        self._known: OrderedDict[tuple[str, tuple[int, ...]], Known] = OrderedDict()
        self._batches: OrderedDict[tuple[str, int], dict[str, Array]] = OrderedDict()
        self._held = 0
        self._lock = threading.RLock()

    def know(self, segment: Stored) -> Known:
        """The layout of a segment's file; `LakeCorrupt` if it does not match the lake."""
        with self._lock:
            key = segment.name, segment.head.shift
            known = self._known.get(key)
            if known is None:
                with segment.head.segments.using(segment.name) as file:
                    known = self.check(read_layout(file), segment, file)
                self._known[key] = known
                self._held += known.nbytes
            self._known.move_to_end(key)
            self._forget()
            return known

    def read(self, segment: Stored, places: Array) -> dict[str, Array]:
        """All columns of the steps at these places of a segment, sorted."""
        with self._lock:
            size = self.know(segment).file.batch
            edges = np.flatnonzero(np.diff(places // size, prepend=-1))
            parts = []
            for at, to in zip(edges.tolist(), [*edges[1:].tolist(), len(places)], strict=True):
                number = int(places[at]) // size
                batch = self._batch(segment, number)
                parts.append({name: values[places[at:to] - number * size] for name, values in batch.items()})
            read = parts[0]
            if len(parts) > 1:
                read = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            return _with_follows(read, len(places))

    def columns(self, segment: Stored, names: list[str], start: int, stop: int) -> dict[str, Array]:
        """Some columns of the steps at places [start, stop) of a segment; not kept in memory."""
        known = {column.name for column in self.know(segment).file.columns}
        with segment.head.segments.using(segment.name) as file:
            found = read_steps(
                file, [name for name in names if name != FOLLOWS or name in known], start, stop
            )
        return _with_follows(found, stop - start) if FOLLOWS in names else found

    def _batch(self, segment: Stored, number: int) -> Mapping[str, Array]:
        batch = self._batches.get((segment.name, number))
        if batch is None:
            layout = self.know(segment).file
            start = number * layout.batch
            with segment.head.segments.using(segment.name) as file:
                batch = read_steps(file, None, start, min(start + layout.batch, layout.steps), layout=layout)
            self._batches[segment.name, number] = batch
            self._held += _nbytes(batch)
        self._batches.move_to_end((segment.name, number))
        self._forget()
        return batch

    def _forget(self) -> None:
        while self._held > KEPT_BYTES and len(self._batches) > 1:
            self._held -= _nbytes(self._batches.popitem(last=False)[1])
        while len(self._known) > 1 and (self._held > KEPT_BYTES or len(self._known) > OPEN_FILES):
            self._held -= self._known.popitem(last=False)[1].nbytes

    def check(self, layout: arrow.StepFileLayout, segment: Stored, file: Path) -> Known:
        """The layout of a segment's file; `LakeCorrupt` if it does not match the lake."""
        try:
            return self._check(layout, segment)
        except (LookupError, ValueError, TypeError, OverflowError) as error:
            raise LakeCorrupt(f"{file} is damaged: {error}; run `lakepond repair`.") from error

    def _check(self, layout: arrow.StepFileLayout, segment: Stored) -> Known:
        if layout.steps != segment.segment.steps.steps:
            raise ValueError(
                f"it has {layout.steps} steps where {segment.segment.steps.steps} were committed"
            )
        found = {column.name: (column.dtype, column.shape) for column in layout.columns}
        wanted: dict[str, Any] = {n: (np.dtype(f.dtype), f.shape) for n, f in self._columns.items()}
        if FOLLOWS in found:  # not in files of earlier versions
            wanted[FOLLOWS] = (np.dtype(np.bool_), ())
        notes = dict(layout.notes)
        layouts: list[Layout | None] = []
        tracks: list[Track | None] = []
        for i, field in enumerate(self._leaves):
            if f"values[{i}]" in found:
                wanted[f"values[{i}]"] = (np.dtype(field.dtype), (2, *field.shape))
                layouts.append(None)
                tracks.append(None)
                continue
            wanted[f"windows[{i}]"] = (np.dtype("<i8"), (2,))
            layout_of = Layout(*json.loads(notes[f"layout[{i}]"]))
            if not layout_of.fits(field):
                raise ValueError(f"windows of {layout_of} cannot be observations of {field}")
            layouts.append(layout_of)
            tracks.append(Track(notes[f"track[{i}]"], segment.head.shift[i]))
        if found != wanted:
            raise ValueError(f"it has the columns {found}, the lake {wanted}")
        return Known(layout, tuple(layouts), tuple(tracks))


def _with_follows(columns: dict[str, Array], steps: int) -> dict[str, Array]:
    """In files without that column, each step continued the previous one of its stream."""
    return columns if FOLLOWS in columns else {**columns, FOLLOWS: np.ones(steps, np.bool_)}


def _nbytes(batch: Mapping[str, Array]) -> int:
    return sum(values.nbytes for values in batch.values())
