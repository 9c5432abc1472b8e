"""A workload that was measured instead of assumed: by playing some steps, or from what a run has written."""

from __future__ import annotations

import gzip
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lakepond.errors import SpecError, TooFewSteps
from lakepond.plan.workload import Range, RowAxis, Shares, Workload, is_small, shares_for
from lakepond.types import Spec, leaves

if TYPE_CHECKING:
    from lakepond.lake.commits import Commit

PICKLED_BYTES = 64_000_000
"""at most so much is compressed with gzip to see what it makes of it"""
WORSE = 2.0
"""a trained agent sees more than a random one: at worst data compress so many times less than measured"""


@dataclass(frozen=True)
class Played:
    """What some random steps of an environment look like, kept in a real lake."""

    spec: Spec
    steps: int
    rows: RowAxis
    new_rows: float
    shares: Shares


def play(name: str, steps: int) -> Played:
    """Play an environment of Gymnasium at random and weigh what it gives; 0 steps: only its spaces."""
    env = _make(name)
    try:
        spec = Spec.from_spaces(env.observation_space, env.action_space)
        if not steps:
            return Played(spec, 0, "whole", 1.0, shares_for(spec))
        with TemporaryDirectory(prefix="lakepond-plan-") as folder:
            return _weigh(env, name, spec, steps, Path(folder) / "lake")
    finally:
        env.close()


def _make(name: str) -> Any:
    import gymnasium

    if name.startswith("ALE/"):
        import ale_py

        gymnasium.register_envs(ale_py)
    try:
        return gymnasium.make(name)
    except gymnasium.error.Error as error:
        raise SpecError(f"there is no environment {name!r}: {error}") from None


def _weigh(env: Any, name: str, spec: Spec, steps: int, folder: Path) -> Played:
    from lakepond.lake.lake import Lake
    from lakepond.replay import Replay

    seen: list[dict[str, Any]] = []
    env.action_space.seed(0)
    obs, _ = env.reset(seed=0)
    with Replay.open(folder, spec, capacity=steps) as replay:
        for _ in range(steps):
            action = env.action_space.sample()
            after, reward, terminated, truncated, _ = env.step(action)
            step = {"obs": obs, "action": action, "reward": reward, "next_obs": after}
            replay.record(**step, terminated=terminated, truncated=truncated)
            if len(seen) * spec.step_nbytes < PICKLED_BYTES:
                seen.append({**step, "done": terminated})
            obs = env.reset()[0] if terminated or truncated else after
    pickled = pickle.dumps(seen)
    with Lake.open(folder) as lake:
        files, segments = lake.commit.rows, lake.commit.segments
    rows = sum(file.shard.rows for file in files)
    plain_rows = sum(file.shard.rows * file.shard.row_bytes for file in files)
    axis = _axis(spec, {file.leaf: file.shard.row_bytes for file in files})
    columns = steps * Workload(spec, steps, 1, rows=axis).column_bytes
    return Played(
        spec,
        steps,
        axis,
        rows / steps / max(1, len({file.leaf for file in files})),
        Shares(
            gzip=_range(len(gzip.compress(pickled, 6)) / (len(seen) * spec.step_nbytes)),
            rows=_range(sum(file.shard.bytes for file in files) / plain_rows if plain_rows else 1.0),
            columns=_range(sum(segment.steps.bytes for segment in segments) / columns),
            why=f"measured in {steps:,} random steps of {name}; at worst twice that",
        ),
    )


def _range(share: float) -> Range:
    return min(1.0, share), min(1.0, WORSE * share)


def _axis(spec: Spec, row_bytes: dict[int, int]) -> RowAxis:
    for i, (_, field) in enumerate(leaves(spec.obs)):
        if i in row_bytes and not is_small(field) and row_bytes[i] < field.nbytes:
            return "first" if field.nbytes // row_bytes[i] == field.shape[0] else "last"
    return "whole"


@dataclass(frozen=True)
class Written:
    """What a lake has taken so far, and how fast it grows."""

    spec: Spec
    commit: int
    steps: int
    bytes: int
    bytes_per_step: float
    """over the newer half of its steps"""
    per_commit: int
    """steps of a commit, over the same"""

    def size(self) -> Callable[[int], Range]:
        """The lake after so many recorded steps: from the rate of growth going on, to half as much again."""

        def at(steps: int) -> Range:
            more = max(0, steps - self.steps) * self.bytes_per_step
            return self.bytes + more, self.bytes + 1.5 * more

        return at


def written(folder: Path) -> Written:
    """Measure a lake by its commits; no step and no row is read."""
    from lakepond.lake import commits
    from lakepond.lake.lake import Lake

    with Lake.open(folder) as lake:
        newest, spec = lake.commit, lake.spec
    if not newest.recorded:
        raise TooFewSteps(f"{folder} holds no step yet; record some before planning from it.")
    earlier: Commit | None = None
    known = [number for number in commits.numbers(folder / "commits") if number < newest.number]
    low, high = 0, len(known)
    while low < high:  # the first commit that has half of the steps
        middle = (low + high) // 2
        earlier = commits.read(folder / "commits", known[middle])
        if 2 * earlier.recorded < newest.recorded:
            low = middle + 1
        else:
            high = middle
    held = sum(newest.files().values())
    if earlier is None or earlier.recorded >= newest.recorded:
        return Written(spec, newest.number, newest.recorded, held, held / newest.recorded, newest.recorded)
    new = newest.recorded - earlier.recorded
    grown = held - sum(earlier.files().values())
    return Written(
        spec,
        newest.number,
        newest.recorded,
        held,
        max(0.0, grown / new),
        round(new / (newest.number - earlier.number)),
    )
