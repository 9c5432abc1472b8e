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
from lakepond.plan.needs import DiskPart, step_bytes
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


@dataclass(frozen=True)
class RunSize:
    """What a run keeps besides its lake, and how much memory it takes; in bytes."""

    checkpoint: int
    """the newest checkpoint"""
    kept: int
    """checkpoints that are kept when the run ends"""
    log: float
    """the metrics when the run ends"""
    other: int
    """reports, evaluations and the like"""
    min_free: int
    """space that the run leaves free"""
    process: float | None
    """main memory of the trainer without its replay; None: not logged"""
    here: int
    """what is on the disk now, with the lake"""
    workload: Workload
    """the run to its end, by its settings"""

    def parts(self) -> tuple[DiskPart, ...]:
        """What is on the disk besides the lake when the run ends."""
        saved = f"checkpoints, {self.kept} x {formats.size(self.checkpoint)}"
        sizes = {
            saved: self.kept * self.checkpoint,
            "metrics": self.log,
            "other files of the run": self.other,
            "to be left free (min_free)": self.min_free,
        }
        return tuple(DiskPart(name, (size, size)) for name, size in sizes.items() if size)


def beside(folder: Path, so_far: LakeSize) -> RunSize:
    """Measure a run's folder, and read its settings; `RunNotFound` if it is not a run."""
    from lakepond.lake.write.disk_guard import parse_bytes
    from lakepond.runs import Run, settings, status

    run, seen = Run.open(folder), status.look(folder)
    config = settings.renamed(run.config, run.trainer)
    saves = max(1, round(so_far.steps / so_far.per_commit))
    longer = max(1.0, seen.total / seen.done) if seen.total and seen.done else 1.0
    generations = math.ceil(saves * longer)
    known, keep_every = run.checkpoints(), _whole(config, "keep_every")
    newest = _bytes_below(folder / "checkpoints" / f"{known[-1]:08d}") if known else 0
    newest_kept = _whole(config, "keep_checkpoints") or 1
    kept = max(len(known), newest_kept)
    if keep_every:
        kept = max(kept, newest_kept + (seen.total or generations) // keep_every)
    log, lake = _bytes_below(folder / "metrics.jsonl"), _bytes_below(folder / "lake")
    other = _bytes_below(folder) - lake - log - _bytes_below(folder / "checkpoints")
    held = min(so_far.steps, _whole(config, "capacity") or so_far.steps)
    agents = [config[name] for name in ("elites", "children", "mutants") if _whole(config, name) is not None]
    work = Workload(
        so_far.spec,
        so_far.per_commit,
        generations,
        capacity=_whole(config, "capacity"),
        population=sum(agents) or _whole(config, "population") or _whole(config, "agents") or 1,
        batch_size=_whole(config, "batch_size") or 1,
        upload_every=_whole(config, "push_every") or 1,
        shares=shares_for(so_far.spec),
    )
    process = None
    if seen.rss_bytes is not None:
        process = max(0.0, seen.rss_bytes - so_far.rows(held) - held * step_bytes(work))
    return RunSize(
        checkpoint=newest,
        kept=kept if newest else 0,
        log=log * longer,
        other=other,
        min_free=parse_bytes(config["min_free"]) if isinstance(config.get("min_free"), str | int) else 0,
        process=process,
        here=_bytes_below(folder),
        workload=work,
    )


def _whole(config: dict[str, Any], name: str) -> int | None:
    value = config.get(name)
    return value if type(value) is int and value > 0 else None


def _bytes_below(path: Path) -> int:
    """The bytes of a file, or of all files below a folder; 0 if it does not exist."""
    if path.is_file():
        return path.stat().st_size
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
