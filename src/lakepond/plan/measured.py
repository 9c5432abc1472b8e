"""A workload that is measured instead of assumed: by playing some steps, or from a run's own files."""

from __future__ import annotations

import gzip
import math
import os
import pickle
from bisect import bisect_left
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from lakepond import formats
from lakepond.errors import SpecError, TooFewSteps
from lakepond.plan.needs import Measured, exact_parts, step_bytes
from lakepond.plan.workload import Range, RowAxis, Shares, Workload, shares_for
from lakepond.types import Field, Spec, leaves

if TYPE_CHECKING:
    from lakepond.lake.format.commits import Commit
    from lakepond.lake.format.tracks import Layout

PICKLED_BYTES = 64_000_000
"""bytes of pickled steps that are compressed with gzip, at most, to measure its ratio"""
WORSE = 2.0
"""a trained agent sees more than a random one: at worst, data compress this many times less"""


def play(name: str, steps: int) -> Workload:
    """Random steps of a Gymnasium environment, as measured in a real lake; 0 steps: only read its spaces."""
    env = _make(name)
    try:
        spec = Spec.from_spaces(env.observation_space, env.action_space)
        if not steps:
            return Workload(spec, 1, 1, rows="whole", shares=shares_for(spec))
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
        raise SpecError(f"cannot make the environment {name!r}: {error}") from None


def _weigh(env: Any, name: str, spec: Spec, steps: int, folder: Path) -> Workload:
    from lakepond.lake.read.lake import Lake
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
        files = [file for leaf in range(len(lake.commit.rows)) for _, file in lake.reader.row_files(leaf)]
        steps_bytes = sum(stored.segment.bytes for stored in lake.reader.stored())
        work = Workload(spec, steps, 1, rows=_axis(lake.reader.layouts()))
    plain_rows = sum(file.shard.rows * file.shard.row_bytes for file in files)
    row_bytes = [field.nbytes / work.length(field) for field in work.observed()]
    rows = sum(file.shard.rows * file.shard.row_bytes / row_bytes[file.leaf] for file in files)
    shares = Shares(
        gzip=_range(len(gzip.compress(pickled, 6)) / (len(seen) * spec.step_nbytes)),
        rows=_range(sum(file.shard.bytes for file in files) / plain_rows if plain_rows else 1.0),
        columns=_range(steps_bytes / (steps * work.column_bytes)),
        why=f"measured in {steps:,} random steps of {name}; at worst twice that",
    )
    leaves_of_rows = len({file.leaf for file in files})
    return replace(work, new_rows=rows / steps / max(1, leaves_of_rows), shares=shares)


def _range(share: float) -> Range:
    return min(1.0, share), min(1.0, WORSE * share)


def _axis(layouts: list[Layout | None]) -> RowAxis:
    for layout in layouts:
        if layout is not None and layout.axis is not None:
            return "first" if layout.axis == 0 else "last"
    return "whole"


@dataclass(frozen=True)
class LakeSize:
    """The size of a lake and how fast it grows."""

    spec: Spec
    commit: int
    steps: int
    bytes: int
    bytes_per_step: float
    """over the newer half of its steps"""
    per_commit: int
    """steps per commit, over the newer half"""
    row_bytes: int
    """distinct rows, uncompressed"""
    row_bytes_per_step: float
    """over the newer half of its steps"""

    def size(self, steps: int) -> Range:
        """The lake's size after `steps` steps: if it grows as measured, to 1.5 times as fast."""
        more = max(0, steps - self.steps) * self.bytes_per_step
        return self.bytes + more, self.bytes + 1.5 * more

    def rows(self, steps: int) -> float:
        """Bytes of the distinct rows among the newest `steps` steps, if the lake grows as measured."""
        more = max(0, steps - self.steps) * self.row_bytes_per_step
        share = min(1.0, steps / self.steps)
        return share * self.row_bytes + more


def of_lake(lake: LakeSize) -> tuple[Workload, Measured]:
    """The workload that makes a lake without a run twice as large, and what is measured of it."""
    known = Measured(lake.size, lake.rows, parts=(), checkpoint=0, used=lake.bytes)
    done = max(1, round(lake.steps / lake.per_commit))
    return Workload(lake.spec, lake.per_commit, 2 * done, shares=shares_for(lake.spec)), known


def of_run(folder: Path, lake: LakeSize) -> tuple[Workload, Measured]:
    """The workload of a whole run by its settings, and what is measured of it; raises `RunNotFound`."""
    from lakepond.lake.write.disk_guard import parse_bytes
    from lakepond.runs import Run, settings, status
    from lakepond.runs.run import METRICS

    run, seen = Run.open(folder), status.look(folder)
    config = settings.renamed(run.config, run.trainer)
    longer = max(1.0, seen.total / seen.done) if seen.total and seen.done else 1.0
    generations = math.ceil(max(1, round(lake.steps / lake.per_commit)) * longer)
    known, keep_every = run.checkpoints(), _whole(config, "keep_every")
    kept = _whole(config, "keep_checkpoints") or 1
    if keep_every:
        kept += (seen.total or generations) // keep_every
    kept = max(kept, len(known))
    checkpoints = folder / "checkpoints"
    newest = _bytes_below(checkpoints / f"{known[-1]:08d}") if known else 0
    log = (folder / METRICS).stat().st_size if (folder / METRICS).exists() else 0
    used, min_free = _bytes_below(folder), config.get("min_free")
    parts = {
        f"checkpoints, {kept} x {formats.size(newest)}": kept * newest,
        "metrics": log * longer,
        "other files of the run": used - log - _bytes_below(folder / "lake") - _bytes_below(checkpoints),
        "to be left free (min_free)": parse_bytes(min_free) if isinstance(min_free, str | int) else 0,
    }
    agents = [config[name] for name in ("elites", "children", "mutants") if _whole(config, name) is not None]
    work = Workload(
        lake.spec,
        lake.per_commit,
        generations,
        capacity=_whole(config, "capacity"),
        population=sum(agents) or _whole(config, "population") or _whole(config, "agents") or 1,
        batch_size=_whole(config, "batch_size") or 1,
        upload_every=_whole(config, "push_every") or 1,
        shares=shares_for(lake.spec),
    )
    process = None
    if seen.rss_bytes is not None:
        held = work.held(lake.steps)
        process = max(0.0, seen.rss_bytes - lake.rows(held) - held * step_bytes(work))
    return work, Measured(lake.size, lake.rows, exact_parts(parts), process, newest, used)


def _whole(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None


def _bytes_below(path: Path) -> int:
    """The bytes of all files below a folder; 0 if it does not exist."""
    sizes = 0
    for folder, _, files in os.walk(path):
        for name in files:
            with suppress(FileNotFoundError):  # a run that is being trained deletes old files
                sizes += os.lstat(os.path.join(folder, name)).st_size
    return sizes


def written(folder: Path) -> LakeSize:
    """Measure a lake from its commits; no step and no row is read."""
    from lakepond.lake.read.lake import Lake

    with Lake.open(folder) as lake:
        newest, spec, held, heads = lake.commit, lake.spec, lake.stats().bytes_on_disk, len(lake.heads)
        fields: list[Field] = [field for _, field in leaves(spec.obs)]
        sizes = [
            field.nbytes if layout is None else layout.row_bytes
            for field, layout in zip(fields, lake.reader.layouts(), strict=True)
        ]
        rows = sum(size * lake.reader.rows_count(leaf) for leaf, size in enumerate(sizes))
    if not newest.recorded:
        raise TooFewSteps(f"{folder} has no step yet; record some before planning from it.")
    earlier = None if heads > 1 else _half_way(folder / "commits", newest)
    if earlier is None:  # the commits of one writer do not show the growth of a lake with several
        new, since, grown, rows_grown = newest.recorded, newest.number - 1, held, rows
    else:
        new, since = newest.recorded - earlier.recorded, earlier.number
        grown = newest.totals.bytes - earlier.totals.bytes
        rows_grown = _row_bytes(newest, sizes) - _row_bytes(earlier, sizes)
    return LakeSize(
        spec,
        newest.number,
        newest.recorded,
        held,
        max(0.0, grown / new),
        round(new / (newest.number - since)),
        rows,
        max(0.0, rows_grown / new),
    )


def _half_way(folder: Path, newest: Commit) -> Commit | None:
    """The first commit that has half of the steps, or the one before the newest; None if there is none."""
    from lakepond.lake.format import commits

    known = [number for number in commits.numbers(folder) if number < newest.number]
    if not known:
        return None
    at = bisect_left(known, newest.recorded, key=lambda number: 2 * commits.read(folder, number).recorded)
    found = commits.read(folder, known[min(at, len(known) - 1)])
    return found if found.recorded < newest.recorded else None


def _row_bytes(commit: Commit, sizes: list[int]) -> int:
    """The distinct rows of a commit, uncompressed; `sizes` are those of a row of each leaf."""
    return sum(
        size * entry.count for size, listed in zip(sizes, commit.rows, strict=True) for entry in listed
    )
