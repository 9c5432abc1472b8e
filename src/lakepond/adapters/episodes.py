"""Import episodes into a lake one after another, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakepond.adapters.staging import new_lake
from lakepond.errors import SpecError
from lakepond.lake.read.episodes import Episode
from lakepond.replay import Replay
from lakepond.types import Array, Field, Spec, Tree, leaves, rebuild

PIECE_BYTES = 16 << 20
"""plain bytes recorded at a time"""
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


class Recorder:
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
def recording(folder: Path) -> Iterator[Recorder]:
    """A `Recorder` whose replay is closed when the block ends; after a failure without a further error."""
    recorder = Recorder(folder)
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

        def part(tree: Tree, start: int, stop: int) -> Tree:
            values = iter([leaf for _, leaf in leaves(tree)])
            return rebuild(tree, lambda: next(values)[start:stop])

        replay.record(
            obs=part(episode.obs, at, to),
            action=part(episode.action, at, to),
            reward=episode.reward[at:to],
            next_obs=part(episode.obs, at + 1, to + 1),
            terminated=episode.terminated[at:to],
            truncated=episode.truncated[at:to],
            stream=episode.stream,
            **{name: values[at:to] for name, values in episode.extras.items()},
        )
    if episode.steps and not (episode.terminated[-1] or episode.truncated[-1]):
        replay.cut(episode.stream)


def spec_of(episode: Episode) -> Spec:
    """The spec of an episode's arrays."""

    def fields(tree: Tree) -> Tree:
        values = iter([leaf for _, leaf in leaves(tree)])
        return rebuild(tree, lambda: _field(next(values)))

    return Spec(
        obs=fields(episode.obs),
        action=fields(episode.action),
        reward=_field(episode.reward),
        extras={name: _field(values) for name, values in episode.extras.items()},
    )


def _field(values: Array) -> Field:
    return Field(np.shape(values)[1:], values.dtype)
