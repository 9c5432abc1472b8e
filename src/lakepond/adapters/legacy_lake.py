"""Pickled deques of dicts into a lake, and a lake into one; one transition at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lakepond import untrusted
from lakepond.adapters.episodes import Imported, recording
from lakepond.adapters.legacy import (
    LegacyPickleError,
    Transition,
    Written,
    legacy_capacity,
    read_legacy,
    write_legacy,
)
from lakepond.adapters.staging import new_lake, refuse_existing
from lakepond.errors import SpecError
from lakepond.lake.read.lake import Lake
from lakepond.types import Array, Field, Spec

Progress = Callable[[int, int], None]
PIECE_BYTES = 16 << 20
"""uncompressed bytes read of a lake at a time"""


def import_legacy(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import every transition of a pickle, uncompressed or gzip, to a new lake; `progress` counts its bytes.

    The file does not distinguish agents, so all transitions belong to one stream; it is cut where a
    transition does not continue the one before it. The file's capacity is noted in the commit, so that it
    can be written back. An import that fails or is killed leaves nothing at `lake`.
    """
    refuse_existing(Path(lake))
    capacity = legacy_capacity(path)
    before: Array | None = None
    episodes = 0
    with new_lake(Path(lake)) as folder, recording(folder) as recorder:
        for old in read_legacy(path, progress=progress):
            with untrusted.blaming(path, LegacyPickleError, "restore it"):
                action, reward, done = np.asarray(old.action), np.float32(old.reward), bool(old.done)
                if np.shape(old.state) != np.shape(old.next_state) or np.shape(reward):
                    raise ValueError("a transition whose states or reward have another shape")
            if recorder.replay is None:
                recorder.open(
                    Spec(Field(old.state.shape, old.state.dtype), Field(action.shape, action.dtype))
                )
            replay = recorder.replay
            assert replay is not None
            if before is None or before.tobytes() != old.state.tobytes():
                if before is not None:
                    replay.cut(0)
                episodes += 1
            replay.record(
                obs=old.state,
                action=action,
                reward=reward,
                next_obs=old.next_state,
                terminated=done,
                truncated=False,
                stream=0,
            )
            before = None if done else old.next_state
        if recorder.replay is None:
            raise SpecError(f"{os.fspath(path)} holds no transition; there is nothing to import.")
        return recorder.finish(episodes, {"imported": True, "capacity": capacity})


def export_legacy(
    lake: Lake, path: str | Path, *, compress: bool = True, progress: Progress | None = None
) -> Written:
    """The live steps of a lake as a file that `pickle.load` in the old project reads; counts steps.

    It knows one state array, one action array and `done`: what was truncated is not done there.
    """
    for name in ("obs", "action"):
        if not isinstance(getattr(lake.spec, name), Field):
            raise SpecError(f"this pickle has one array as {name}; export the lake in another format.")
    if Path(path).exists():
        raise SpecError(f"{path} already exists; name another file.")
    capacity = int(lake.commit.note.get("capacity", len(lake)))
    return write_legacy(
        path, _transitions(lake, progress), capacity=max(capacity, len(lake)), compress=compress
    )


def _transitions(lake: Lake, progress: Progress | None) -> Iterator[Transition]:
    size = max(1, PIECE_BYTES // lake.spec.step_nbytes)
    first, stop = lake.commit.oldest, lake.commit.recorded
    for start in range(first, stop, size):
        batch = lake.steps(start, min(start + size, stop))
        for k in range(len(batch.reward)):
            reward, done = float(batch.reward[k]), bool(batch.terminated[k])
            yield Transition(batch.obs[k], batch.action[k], reward, batch.next_obs[k], done)
        if progress is not None:
            progress(min(start + size, stop) - first, stop - first)
