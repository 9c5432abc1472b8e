"""Episodes from elsewhere into a lake: one after another, in bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.episodes import Episode
from lakepond.replay import Replay
from lakepond.types import Array, Field, Spec, Tree, leaves, rebuild

PIECE_BYTES = 16 << 20
"""plain bytes recorded at a time"""
COMMIT_STEPS = 50_000
"""steps between two commits"""

__all__ = ["Episode", "Imported", "Progress", "import_episodes"]
Progress = Callable[[int, int], None]
"""called with the episodes done and the episodes there are"""


class Imported(NamedTuple):
    """What an import came to."""

    episodes: int
    steps: int
    bytes_on_disk: int
    bytes_plain: int

    @property
    def ratio(self) -> float:
        """How many times smaller it is than in plain form."""
        return self.bytes_plain / max(1, self.bytes_on_disk)


def import_episodes(
    episodes: Iterable[Episode],
    lake: str | Path,
    *,
    spec: Spec | None = None,
    total: int = 0,
    progress: Progress | None = None,
) -> Imported:
    """Record episodes in a new lake, which must not be there yet; the spec is that of the first if not given.

    Every episode goes to its own stream's number, as it names it. One that neither terminated nor was
    truncated is cut: n-step returns do not go across its end.
    """
    lake = Path(lake)
    if lake.exists():
        raise SpecError(f"{lake} is there already; import to a new lake.")
    replay: Replay | None = None
    count = 0
    try:
        for episode in episodes:
            if replay is None:
                spec = _spec_of(episode) if spec is None else spec
                replay = Replay.open(lake, spec, capacity=max(COMMIT_STEPS, 1))
            _record(replay, episode)
            count += 1
            if progress is not None:
                progress(count, total)
        if replay is None:
            raise SpecError("there is no episode to import.")
        commit = replay.commit({"imported": True})
        steps, plain = commit.recorded, commit.recorded * replay.spec.step_nbytes
        return Imported(count, steps, sum(commit.files().values()), plain)
    finally:
        if replay is not None:
            replay.close()


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


def _spec_of(episode: Episode) -> Spec:
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
