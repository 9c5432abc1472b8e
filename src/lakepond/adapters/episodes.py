"""Episodes into a new lake, and out of a lake, one after another and in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakepond.adapters.staging import new_lake, refuse_existing
from lakepond.errors import SpecError
from lakepond.lake.read.episodes import Episode as Episode
from lakepond.lake.read.lake import Lake
from lakepond.replay import Replay
from lakepond.types import Array, Batch, Field, Spec, map_leaves

PIECE_BYTES = 16 << 20
"""uncompressed bytes of steps that are read or recorded at a time"""
COMMIT_STEPS = 50_000
"""steps between two commits"""

Progress = Callable[[int, int], None]
"""called with how much is done and how much there is: episodes, steps or bytes"""


class Imported(NamedTuple):
    """Totals of an import."""

    episodes: int
    steps: int
    bytes_on_disk: int
    bytes_plain: int

    @property
    def ratio(self) -> float:
        """Compression ratio: uncompressed bytes divided by bytes on disk."""
        return self.bytes_plain / max(1, self.bytes_on_disk)


def import_episodes(
    episodes: Iterable[Episode],
    lake: str | Path,
    *,
    spec: Callable[[Episode], Spec] | None = None,
    total: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Record episodes in a new lake; `spec` derives the spec from the first episode, by default `spec_of`.

    Atomic: the lake appears at `lake` when all episodes are recorded and verified. Each episode is recorded
    under its own stream number. After an episode that neither terminated nor was truncated, the stream is
    cut: n-step returns do not cross its end.
    """
    refuse_existing(lake)
    episodes = iter(episodes)
    first = next(episodes, None)
    if first is None:
        raise SpecError("there is no episode to import.")
    count = 0
    with recording(lake, (spec or spec_of)(first)) as replay:
        for count, episode in enumerate(chain([first], episodes), 1):
            _record(replay, episode)
            if progress is not None:
                progress(count, total)
        return totals(replay, count)


@contextmanager
def recording(target: str | Path, spec: Spec) -> Iterator[Replay]:
    """A replay over a new lake, which is verified and appears at `target` when the block has ended."""
    with new_lake(target) as folder:
        replay = Replay.open(folder, spec, capacity=COMMIT_STEPS)
        try:
            yield replay
            replay.close()
        except BaseException:
            try:
                replay.close()
            except Exception:  # for example, the disk is full; the folder is about to be deleted
                replay.close(discard=True)
            raise


def totals(replay: Replay, episodes: int, **note: Any) -> Imported:
    """Commit all steps of an import and return their totals."""
    commit = replay.commit({"imported": True, **note})
    plain = commit.recorded * replay.spec.step_nbytes
    return Imported(episodes, commit.recorded, commit.totals.bytes, plain)


def _record(replay: Replay, episode: Episode) -> None:
    piece = min(replay.capacity, piece_steps(replay.spec))
    for at in range(0, episode.steps, piece):
        to = min(at + piece, episode.steps)
        replay.record(
            obs=map_leaves(itemgetter(slice(at, to)), episode.obs),
            action=map_leaves(itemgetter(slice(at, to)), episode.action),
            reward=episode.reward[at:to],
            next_obs=map_leaves(itemgetter(slice(at + 1, to + 1)), episode.obs),
            terminated=episode.terminated[at:to],
            truncated=episode.truncated[at:to],
            stream=episode.stream,
            follows_previous=np.arange(at, to) > 0,
            **{name: values[at:to] for name, values in episode.extras.items()},
        )
    if episode.steps and not (episode.terminated[-1] or episode.truncated[-1]):
        replay.cut(episode.stream)


def spec_of(episode: Episode) -> Spec:
    """The spec of an episode's arrays."""
    return Spec(
        obs=map_leaves(_field, episode.obs),
        action=map_leaves(_field, episode.action),
        reward=_field(episode.reward),
        extras={name: _field(values) for name, values in episode.extras.items()},
    )


def _field(values: Array) -> Field:
    return Field(np.shape(values)[1:], values.dtype)


def column_of_extra(name: str) -> str:
    """The column of an extra in a table or .npz file: its name, unless that is the column of the step ids."""
    return "extras['step_id']" if name == "step_id" else name


def piece_steps(spec: Spec) -> int:
    """Steps that are read or recorded at a time."""
    return max(1, min(8192, PIECE_BYTES // spec.step_nbytes))


def batches(lake: Lake, progress: Progress | None = None) -> Iterator[Batch]:
    """All live steps, oldest first, some megabytes at a time; `progress` counts steps."""
    first, stop, size = lake.commit.oldest, lake.commit.recorded, piece_steps(lake.spec)
    for start in range(first, stop, size):
        end = min(start + size, stop)
        yield lake.steps(start, end)
        if progress is not None:
            progress(end - first, stop - first)


def exporting(lake: Lake, folder: Path, progress: Progress | None) -> Iterator[tuple[int, int, Episode]]:
    """Create the folder of an export; yield each episode with its number and the steps before it."""
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"{folder} already exists; name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    steps = 0
    for number, episode in enumerate(lake.episodes()):
        yield number, steps, episode
        steps += episode.steps
        if progress is not None:
            progress(steps, len(lake))
