"""Import episodes into a lake one after another, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakepond.adapters.staging import new_lake
from lakepond.errors import SpecError
from lakepond.lake.read.episodes import Episode
from lakepond.replay import Replay
from lakepond.types import Array, Field, Spec, map_leaves

PIECE_BYTES = 16 << 20
"""uncompressed bytes recorded at a time"""
COMMIT_STEPS = 50_000
"""steps between two commits"""

__all__ = ["Episode", "Imported", "Progress", "import_episodes", "spec_of"]
Progress = Callable[[int, int], None]
"""called with the episodes done and the episodes there are"""


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
    count = 0
    with new_lake(Path(lake)) as folder, recording(folder) as recorder:
        for episode in episodes:
            if recorder.replay is None:
                recorder.open((spec or spec_of)(episode))
            assert recorder.replay is not None
            _record(recorder.replay, episode)
            count += 1
            if progress is not None:
                progress(count, total)
        if recorder.replay is None:
            raise SpecError("there is no episode to import.")
        return recorder.finish(count, {"imported": True})


class ImportReplay:
    """The replay that an import records to; opened when the first step has determined the spec."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.replay: Replay | None = None

    def open(self, spec: Spec) -> Replay:
        """Create the lake."""
        self.replay = Replay.open(self._folder, spec, capacity=COMMIT_STEPS)
        return self.replay

    def finish(self, episodes: int, note: dict[str, Any]) -> Imported:
        """Commit all steps and return their totals."""
        assert self.replay is not None
        commit = self.replay.commit(note)
        plain = commit.recorded * self.replay.spec.step_nbytes
        return Imported(episodes, commit.recorded, commit.totals.bytes, plain)


@contextmanager
def recording(folder: Path) -> Iterator[ImportReplay]:
    """An `ImportReplay` that is closed when the block ends; after a failure without a further error."""
    recorder = ImportReplay(folder)
    try:
        yield recorder
        if recorder.replay is not None:
            recorder.replay.close()
    except BaseException:
        if recorder.replay is not None:
            with suppress(Exception):  # the folder is about to be deleted
                recorder.replay.close()
        raise


def _record(replay: Replay, episode: Episode) -> None:
    piece = max(1, PIECE_BYTES // replay.spec.step_nbytes)
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
