"""device pond ──pour──▶ lake: the rows of each lane in order, and the steps as a table; nothing is hashed.

The arrays of the pond come as NumPy, so this module does not import JAX. The rows of a lane become rows of
the lake in the same order, and the windows of a step become offsets into them. Each lane is a stream, so that
n-step returns and sequences can be followed in the lake::

    agent 0, environments 0..31  ▶  streams 0..31     agent 1, environments 0..31  ▶  streams 32..63     ...

Writing happens on the lake's own thread, while the agents continue.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from lakepond.closing import close_after
from lakepond.errors import LakeNotFound, SpecError
from lakepond.lake.format import description
from lakepond.lake.format.commits import Commit, Start
from lakepond.lake.format.link_notes import stored_note
from lakepond.lake.format.tracks import Layout
from lakepond.lake.read.assemble import batch_of
from lakepond.lake.read.lake import Lake, commit_to_follow
from lakepond.lake.write import writer as lake_writer
from lakepond.lake.write.commit_queue import Background
from lakepond.lake.write.disk_guard import parse_bytes
from lakepond.lake.write.handover import HandOver, Windows
from lakepond.paths import lake_folder
from lakepond.types import Array, Spec

PIECE_BYTES = 8 << 20
"""bytes of rows written at a time"""


class Lanes(NamedTuple):
    """The steps of one device pond to pour, as NumPy arrays."""

    rows: Array
    """(lanes, rows, *row): the ring of each lane"""
    steps: int
    """steps added so far to each lane"""
    oldest: Array
    """(lanes,): the first step to pour"""
    at: Array
    """(lanes, capacity)"""
    next_at: Array
    columns: dict[str, Array]
    """action, reward, terminated, truncated: (lanes, capacity, ...)"""


class DeviceLake:
    """A lake that device ponds are poured into; its only writer."""

    def __init__(
        self,
        path: str | Path,
        spec: Spec,
        *,
        commit: int | Start | None = None,
        codec: str = "zstd",
        max_steps: int | None = None,
        keep_last: int | None = None,
        min_free: int | str = 0,
    ) -> None:
        """Create a lake, or continue one from its newest commit or from the commit with that number.

        max_steps: older steps are dropped; keep_last: newest commits that are kept besides those of
        checkpoints, None: all; min_free: free disk space below which nothing is written, like "1GB".
        """
        path = lake_folder(path)
        if (path / description.NAME).exists():
            if description.read(path) != spec:
                raise SpecError(f"{path} was created with a different spec; choose another folder.")
        else:
            lake_writer.create(path, description.describe(spec))
        self.path, self.spec = path, spec
        writer = lake_writer.LakeWriter(
            path, 1, codec=codec, max_steps=max_steps, keep_last=keep_last, min_free=parse_bytes(min_free)
        )
        try:
            last = commit_to_follow(path, commit)
            if last is not None:
                writer.continue_from(last)
            self._background = Background(writer)
        except BaseException:
            writer.close()
            raise
        self._next_row = writer.next_rows()[0]
        self.recorded = 0 if last is None else last.recorded
        """steps poured so far"""
        self._background.drop_with(self)
        self._ends: dict[int, int] = {}  # of each stream, the row at which its last poured step ended
        self._resumed = {} if last is None else _last_observations(path, spec, last)
        self._pour_bytes = 0

    def pour(self, ponds: Sequence[Lanes], note: dict[str, Any] | None = None) -> Future[Commit]:
        """Hand over the steps of some ponds; the arrays must not change while `waiting` is not 0.

        Raises `SpecError` if a ring no longer holds all of these steps or their rows.
        """
        self._background.check()
        stored = stored_note({} if note is None else note)
        length, declared = self.spec.obs.stack, self.spec.obs.row_layout
        starts: list[Array] = []
        columns: list[dict[str, Array]] = []
        pieces: list[Array] = []
        row_at, stream, ends = self._next_row, 0, dict(self._ends)
        truncated: dict[int, tuple[bool, bool]] = {}
        for pond in ponds:
            for lane in range(len(pond.rows)):
                steps = np.arange(int(pond.oldest[lane]), pond.steps)
                if len(steps):
                    place = steps % pond.at.shape[1]
                    at, next_at = pond.at[lane, place], pond.next_at[lane, place]
                    first, stop = int(at[0]) - length + 1, int(next_at[-1]) + 1
                    if len(steps) > pond.at.shape[1] or stop - first > pond.rows.shape[1]:
                        raise SpecError(
                            f"lane {lane} no longer has its {len(steps):,} steps and {stop - first:,} rows, "
                            f"only {pond.at.shape[1]:,} and {pond.rows.shape[1]:,}; pour more often."
                        )
                    pieces += _ring(pond.rows[lane], first, stop)
                    windows = np.stack([at, next_at], axis=1).astype(np.int64) - (length - 1)
                    starts.append(windows - first + row_at - self._next_row)
                    row_at += stop - first
                    # a step continues the previous one of its lane if that ends where it starts
                    follows = at == np.append(ends.get(stream, -1), next_at[:-1])
                    if stream not in ends:  # after a resume: if its observation is the last one poured
                        obs = b"".join(
                            part.tobytes() for part in _ring(pond.rows[lane], first, first + length)
                        )
                        last, expected = self._resumed.get(stream, (-1, b""))
                        follows[0] = expected == obs
                        if last >= 0 and not follows[0]:  # its environment could not be saved
                            truncated[last] = (False, True)
                    columns.append(
                        {
                            **{name: values[lane, place] for name, values in pond.columns.items()},
                            "stream": np.full(len(steps), stream, np.int32),
                            "follows_previous": follows,
                        }
                    )
                    ends[stream] = int(next_at[-1])
                stream += 1
        if not columns:
            raise SpecError("the ponds have no steps to pour; record some first.")
        row_bytes = int(pieces[0][0].nbytes)
        windows_of = Windows(
            layout=Layout(length, row_bytes, 0 if declared is not None and declared.axis == 0 else None),
            runs=np.array([[self._next_row, row_at - self._next_row]], "<i8"),
            starts=np.concatenate(starts),
            first=self._next_row,
            count=row_at - self._next_row,
            rows=lambda: _bytes(pieces, row_bytes),
        )
        new = HandOver(
            first=self.recorded,
            oldest=0,
            columns={name: np.concatenate([c[name] for c in columns]) for name in columns[0]},
            leaves=(windows_of,),
            priorities=None,
            changed=None,
            largest_priority=1.0,
            alpha=None,
            release=lambda: None,
            ends=truncated,
        )
        done = self._background.submit(new, stored)
        self._next_row, self._ends = row_at, ends
        self.recorded += new.steps
        self._pour_bytes = sum(pond.rows.nbytes + pond.at.nbytes + pond.next_at.nbytes for pond in ponds)
        self._pour_bytes += sum(values.nbytes for values in new.columns.values())
        return done

    @property
    def waiting(self) -> int:
        """Number of pours that are not durable yet; their arrays must not change."""
        return self._background.waiting

    def wait(self) -> Commit | None:
        """Wait until all poured steps are durable, retry failed ones, and return the newest commit.

        Raises the error if that fails; the steps stay in memory and are retried with the next pour.
        """
        return self._background.flush()

    def commit_at(self, recorded: int) -> Commit | None:
        """Wait until all poured steps are durable; return the commit with exactly the first `recorded` steps.

        None if no pour ended there, or if that commit was not kept (`keep_last`).
        """
        commit = self.wait()
        with suppress(LakeNotFound):
            while commit is not None and commit.recorded > recorded:
                commit = None if commit.parent is None else Lake.open(self.path, commit.parent).commit
        return commit if commit is not None and commit.recorded == recorded else None

    @property
    def uncommitted(self) -> int:
        """Steps that were poured and are not durable yet."""
        last = self._background.writer.last
        return self.recorded - (0 if last is None else last.recorded)

    @property
    def waiting_bytes(self) -> int:
        """Approximate bytes of the pours that are not durable yet."""
        return self.waiting * self._pour_bytes

    def close(self, *, discard: bool = False) -> None:
        """Write all poured steps and release the lake; if that raises, the lake stays open and intact.

        `discard`: drop steps that could not be written. Does nothing in a forked child.
        """
        self._background.discard() if discard else self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        close_after(error, self.close)


def _last_observations(path: Path, spec: Spec, commit: Commit) -> dict[int, tuple[int, bytes]]:
    """The id and next_obs of the last step of each stream that has not ended, in the newest segment."""
    if not commit.segments:
        return {}
    with Lake(path, spec, commit) as lake:
        (newest,) = lake.reader.stored(commit.recorded - 1)
        ids = np.arange(newest.start, newest.stop)
        streams = lake.reader.read(newest, ids).columns["stream"]
        last = ids[len(ids) - 1 - np.unique(streams[::-1], return_index=True)[1]]
        batch = batch_of(lake.reader, spec, last)
    going = ~(batch.terminated | batch.truncated)
    return {
        int(stream): (int(step), obs.tobytes())
        for stream, step, obs, goes in zip(batch.stream, last, batch.next_obs, going, strict=True)
        if goes
    }


def _ring(rows: Array, first: int, stop: int) -> list[Array]:
    """Rows [first, stop) of a ring, in one part or two."""
    size = len(rows)
    begin, end = first % size, stop % size
    return [rows[begin:end]] if begin < end else [part for part in (rows[begin:], rows[:end]) if len(part)]


def _bytes(pieces: list[Array], row_bytes: int) -> Iterator[Array]:
    """Rows as bytes, a bounded number at a time."""
    most = max(1, PIECE_BYTES // row_bytes)
    waiting: list[Array] = []
    count = 0
    for piece in pieces:
        for at in range(0, len(piece), most):
            part = piece[at : at + most]
            if count + len(part) > most:
                yield np.concatenate(waiting)
                waiting, count = [], 0
            waiting.append(np.ascontiguousarray(part).reshape(len(part), -1).view(np.uint8))
            count += len(part)
    if waiting:
        yield np.concatenate(waiting)
