"""Old pickles of the trading project into a lake, and a lake into one; a transition at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from lakepond.adapters.episodes import COMMIT_STEPS, Imported
from lakepond.adapters.legacy import Transition, Written, legacy_capacity, read_legacy, write_legacy
from lakepond.errors import SpecError
from lakepond.lake.lake import Lake
from lakepond.replay import Replay
from lakepond.types import Array, Field, Spec

Progress = Callable[[int, int], None]
PIECE_BYTES = 16 << 20
"""plain bytes read of a lake at a time"""


def import_legacy(path: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Every transition of an old file, plain or gzip, in a new lake; `progress` counts bytes of the file.

    The file does not tell agents apart, so all go to one stream; it is cut where a transition does not go on
    from the one before it. Its capacity is noted in the commit, so that it can be written back.
    """
    lake = Path(lake)
    if lake.exists():
        raise SpecError(f"{lake} is there already; import to a new lake.")
    capacity = legacy_capacity(path)
    replay: Replay | None = None
    before: Array | None = None
    episodes = 0
    try:
        for old in read_legacy(path, progress=progress):
            action = np.asarray(old.action)
            if replay is None:
                spec = Spec(Field(old.state.shape, old.state.dtype), Field(action.shape, action.dtype))
                replay = Replay.open(lake, spec, capacity=COMMIT_STEPS)
            if before is None or before.tobytes() != old.state.tobytes():
                if before is not None:
                    replay.cut(0)
                episodes += 1
            replay.record(
                obs=old.state,
                action=action,
                reward=np.float32(old.reward),
                next_obs=old.next_state,
                terminated=bool(old.done),
                truncated=False,
                stream=0,
            )
            before = None if old.done else old.next_state
        if replay is None:
            raise SpecError(f"{os.fspath(path)} holds no transition; there is nothing to import.")
        commit = replay.commit({"imported": True, "capacity": capacity})
        plain = commit.recorded * replay.spec.step_nbytes
        return Imported(episodes, commit.recorded, sum(commit.files().values()), plain)
    finally:
        if replay is not None:
            replay.close()


def export_legacy(
    lake: Lake,
    path: str | Path,
    *,
    compress: bool = True,
    progress: Progress | None = None,
) -> Written:
    """The live steps of a lake as a file that `pickle.load` in the old project reads; counts steps.

    It knows one state array, one action array and `done`: what was truncated is not done there.
    """
    for name in ("obs", "action"):
        if not isinstance(getattr(lake.spec, name), Field):
            raise SpecError(f"an old pickle holds one array as {name}; export this lake in another form.")
    if Path(path).exists():
        raise SpecError(f"{path} is there already; name another file.")
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
