"""The operations of the crash-point drill: each a few hundred file changes at most, in a small folder.

Marks are facts of the model: `handed_over` steps were recorded, `acknowledged` of them reported as durable.
"""

from __future__ import annotations

import hashlib
import time
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lakepond as lp
from faults import training
from faults.crash_points import Marks, Operation
from faults.journal import Journal, tree
from faults.model import SPEC, check_and_continue, check_batch, check_lake, record
from lakepond.flow import known_sources
from lakepond.lake.format.entries import Manifest
from lakepond.lake.write import packing, sources

CAPACITY = 30


def lake_of(root: Path) -> Path:
    return root / "lake"


def cloud_of(root: Path) -> lp.Cloud:
    return lp.Cloud(f"file://{root / 'bucket'}", retry_cap=0.1, patience=1.0)


def some_commits(root: Path, stops: tuple[int, ...] = (12, 20, 33), **how: Any) -> None:
    """A lake with a few commits, whose last one holds the steps [0, stops[-1])."""
    with lp.Replay.open(lake_of(root), SPEC, capacity=CAPACITY, merge_after=None, **how) as replay:
        for stop in stops:
            record(replay, replay.stats().recorded, stop)
            replay.commit()


# --- a lake ----------------------------------------------------------------------------------------


def commit(root: Path, journal: Journal) -> None:
    """A new lake, commits of all sizes, in the background too, more steps than the pond holds, priorities."""
    journal.mark(acknowledged=None, handed_over=0)
    with lp.Replay.open(lake_of(root), SPEC, capacity=CAPACITY, alpha=0.6) as replay:
        stop = 0
        for steps in (1, 12, 7, 25):
            start, stop = stop, stop + steps
            journal.mark(handed_over=stop)
            record(replay, start, stop)
            replay.update_priorities([stop - 1], [float(stop)])
            if steps == 7:
                replay.commit(wait=False)
            else:
                journal.mark(acknowledged=replay.commit().recorded)
        journal.mark(handed_over=stop + 5)
        record(replay, stop, stop + 5)
    journal.mark(acknowledged=stop + 5)
    assert list((lake_of(root) / "segments").glob("*.rows")), "observations are not stored as rows"


def check_commit(root: Path, marks: Marks) -> None:
    marks = {"acknowledged": None, "handed_over": 0, **marks}
    check_and_continue(lake_of(root), marks["acknowledged"], marks["handed_over"], alpha=0.6)


def merge(root: Path, journal: Journal) -> None:
    """Small files are merged in the background until a commit names a merged one."""
    with lp.Replay.open(lake_of(root), capacity=CAPACITY, merge_after=3, keep_last=3) as replay:
        most = 0
        for stop in count(36, 3):
            journal.mark(handed_over=stop)
            record(replay, replay.stats().recorded, stop)
            commit = replay.commit()
            journal.mark(acknowledged=commit.recorded)
            if commit.totals.files < most:
                return
            most = commit.totals.files
            assert stop < 300, "nothing was merged"
            time.sleep(0.02)


def check_lake_goes_on(root: Path, marks: Marks) -> None:
    marks = {"acknowledged": 33, "handed_over": 33, **marks}
    check_and_continue(lake_of(root), marks["acknowledged"], marks["handed_over"], merge_after=3)


def small_manifests() -> AbstractContextManager[object]:
    """Manifests of all levels within a few commits."""
    return mock.patch.multiple(packing, LOOSE=2, FAN=2, FLAT_LEVEL=2)


def manifests(root: Path, journal: Journal) -> None:
    """Files move to manifests, and manifests to larger ones, while steps are dropped, ended and merged."""
    with (
        small_manifests(),
        lp.Replay.open(lake_of(root), capacity=CAPACITY, max_steps=40, keep_last=2, merge_after=12) as replay,
    ):
        levels: set[tuple[bool, int]] = set()  # of steps or of rows, and the level
        for stop in range(36, 81, 3):
            journal.mark(handed_over=stop)
            record(replay, replay.stats().recorded, stop)
            commit = replay.commit()
            journal.mark(acknowledged=commit.recorded)
            listed = [(leaf, entry) for leaf, entries in commit.lists() for entry in entries]
            levels |= {(leaf is None, e.level) for leaf, e in listed if isinstance(e, Manifest)}
        assert levels >= {(True, 1), (True, 2), (False, 1), (False, 2)}, levels


def check_manifests(root: Path, marks: Marks) -> None:
    with small_manifests():
        check_lake_goes_on(root, marks)
        with lp.Lake.open(lake_of(root)) as lake:
            lake.compact(keep_last=1)
            check_lake(lake)
            there = {file.name for file in (lake_of(root) / "segments").iterdir()}
            assert there == dict(lake.files()).keys(), "files are left over"


KEPT: dict[str, Any] = {"max_steps": 40, "keep_last": 2, "keep_every": 4, "merge_after": 3}


def retention(root: Path, journal: Journal) -> None:
    """Commits and files leave while new ones come."""
    with lp.Replay.open(lake_of(root), capacity=CAPACITY, **KEPT) as replay:
        for stop in range(45, 85, 7):
            journal.mark(handed_over=stop)
            record(replay, replay.stats().recorded, stop)
            journal.mark(acknowledged=replay.commit().recorded)


def check_retention(root: Path, marks: Marks) -> None:
    with lp.Lake.open(lake_of(root)) as lake:
        newest, there = lake.commit.number, lake.commits()
        assert (
            lake.commit.oldest == max(0, lake.commit.recorded - 40) or newest < 3
        )  # before the first of these
    kept = {n for n in range(newest + 1) if n > newest - 2 or n % 4 == 0}
    assert kept <= set(there), f"commits {sorted(kept)} are to be kept, {there} are there"
    check_lake_goes_on(root, marks)


def compact(root: Path, journal: Journal) -> None:
    """All small files are merged; then old commits leave, too."""
    with lp.Lake.open(lake_of(root)) as lake:
        lake.compact()
        lake.compact(keep_last=1)


def damage(root: Path) -> None:
    """A lake whose two newest commits name a file with a flipped byte."""
    some_commits(root, (12, 20, 33, 40))
    with lp.Lake.open(lake_of(root), 2) as lake:
        file = lake_of(root) / "segments" / lake.commit.segments[-1].name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(bytes(data))


def contents(root: Path) -> set[str]:
    """A short digest of every file that is not empty; `newest` is a hint, which may be removed."""
    files = {path: data for path, data in tree(root).items() if not str(path).endswith("commits/newest")}
    return {hashlib.sha256(data).hexdigest()[:8] for data in files.values() if data}


def repair(root: Path, journal: Journal) -> None:
    journal.mark(content=contents(root))
    lp.repair(lake_of(root))
    journal.mark(done=True)


def check_repair(root: Path, marks: Marks) -> None:
    if marks.get("done"):
        with lp.Lake.open(lake_of(root)) as lake:
            assert lake.commit.recorded == 20
    lp.repair(lake_of(root))
    missing = marks.get("content", set()) - contents(root)
    assert not missing, f"repair deleted {len(missing)} files"
    check_and_continue(lake_of(root), 20, 20)


def two_writers(root: Path, journal: Journal) -> None:
    """Two writers take turns, each with its own commits, both deleting what is not kept."""
    names = ("a", "b")
    replays = [
        lp.Replay.open(lake_of(root), SPEC, capacity=CAPACITY, writer=name, keep_last=1) for name in names
    ]
    for stop in (5, 14, 21):
        for name, replay in zip(names, replays, strict=True):
            journal.mark(**{f"{name} handed_over": stop})
            record(replay, replay.stats().recorded, stop)
            journal.mark(**{f"{name} acknowledged": replay.commit().recorded})
    for replay in replays:
        replay.close()


def check_two_writers(root: Path, marks: Marks) -> None:
    for name in ("a", "b"):
        acknowledged, given = marks.get(f"{name} acknowledged"), marks.get(f"{name} handed_over", 0)
        check_and_continue(lake_of(root), acknowledged, given, writer=name, keep_last=1)


def two_writers_of_a_source(root: Path, journal: Journal) -> None:
    """Two writers record windows of one source, which is stored once, in three files."""
    for writer in ("a", "b"):
        with small_sources(), lp.Replay.open(lake_of(root), SPEC, capacity=CAPACITY, writer=writer) as replay:
            for stop in (10, 20, 40):
                journal.mark(**{f"{writer} handed_over": stop})
                record(replay, replay.stats().recorded, stop, by_reference=True)
                journal.mark(**{f"{writer} acknowledged": replay.commit().recorded})
    assert len(list((lake_of(root) / "sources").glob("*.source"))) == 3
    assert not list(lake_of(root).rglob("*.rows")), "rows are stored with the steps"


def small_sources() -> AbstractContextManager[object]:
    """Sources of any size are shared, in files of 30 rows."""
    stack = ExitStack()
    stack.enter_context(mock.patch.object(known_sources, "LEAST_BYTES", 0))
    stack.enter_context(mock.patch.object(sources, "FILE_BYTES", 30 * 72))
    return stack


def check_two_writers_of_a_source(root: Path, marks: Marks) -> None:
    with small_sources():
        for name in ("a", "b"):
            acknowledged, given = marks.get(f"{name} acknowledged"), marks.get(f"{name} handed_over", 0)
            check_and_continue(lake_of(root), acknowledged, given, writer=name, by_reference=True)
    lp.repair(lake_of(root))
    assert not list(lake_of(root).rglob("*.aside")), "temporary files are left"
    assert not list(lake_of(root).rglob("*.rows")), "rows are stored with the steps"
    assert len(list((lake_of(root) / "sources").glob("*.source"))) == 3


# --- save, checkpoints -----------------------------------------------------------------------------


def save(root: Path, journal: Journal) -> None:
    """A replay in memory is saved a few times; steps that left in between are not kept."""
    replay = lp.Replay(SPEC, 20)
    for stop in (8, 19, 45, 50):
        record(replay, replay.stats().recorded, stop)
        journal.mark(handed_over=stop)
        replay.save(root / "saved")
        journal.mark(acknowledged=stop)
    replay.close()


def check_save(root: Path, marks: Marks) -> None:
    path, low = root / "saved", marks.get("acknowledged")
    try:
        replay = lp.Replay.open_saved(path, 20)
    except (lp.LakeNotFound, lp.SpecError):
        if low is not None:
            raise
        replay = lp.Replay(SPEC, 20)
    with replay:
        there = replay.stats().recorded
        assert (low or 0) <= there <= marks.get("handed_over", 0), f"{there} steps, {marks}"
        assert len(replay) == min(there, 20), f"{len(replay)} of {there} steps are held"
        record(replay, there, there + 5)
        replay.save(path)
    with lp.Replay.open_saved(path, 20) as again:
        check_batch(again.recent(len(again)), range(there + 5 - len(again), there + 5))


@dataclass(frozen=True)
class Settings:
    """Of a run."""

    rate: float = 0.5


def open_run(root: Path) -> Any:
    from lakepond.runs import Run

    return Run.create(root / "run", "drill", Settings(), keep_last=2, keep_every=3)


def save_checkpoint(run: Any, number: int, value: int) -> None:
    run.log(number, {"value": value})
    run.save(number, {"policy": {"w": np.full(40, value)}}, {"value": value})


def checkpoint(root: Path, journal: Journal) -> None:
    with open_run(root) as run:
        for number in range(1, 7):
            journal.mark(handed_over=number)
            save_checkpoint(run, number, number)
            journal.mark(acknowledged=number)


def some_checkpoints(root: Path) -> None:
    with open_run(root) as run:
        for number in range(1, 7):
            save_checkpoint(run, number, number)


def rewind(root: Path, journal: Journal) -> None:
    """Training continues from checkpoint 3 of 6; what it saves from then on has other values."""
    journal.mark(acknowledged=3, handed_over=6)  # until it has saved, the later ones may still be there
    with open_run(root) as run:
        run.rewind(run.load(3, like={"policy": {"w": np.zeros(40, int)}}))
        save_checkpoint(run, 4, 104)
        journal.mark(acknowledged=4, handed_over=5)
        save_checkpoint(run, 5, 105)
        journal.mark(acknowledged=5)


def check_run(root: Path, marks: Marks) -> None:
    """The newest checkpoint is complete, the log is its log, and training continues from it."""
    like = {"policy": {"w": np.zeros(40, int)}}
    for more in (1, 2):
        with open_run(root) as run:
            low, high = marks.get("acknowledged", 0), marks.get("handed_over", 0)
            newest = run.load(like=like) if run.checkpoints() else None
            number = 0 if newest is None else newest.number
            assert low <= number <= high, f"checkpoint {number}, {marks}"
            run.rewind(newest)
            lines = list(run.history())
            assert [line["step"] for line in lines] == list(range(1, number + 1)), f"the log is {lines}"
            if newest is not None:
                assert (newest.arrays["policy"]["w"] == newest.state["value"]).all()
                assert lines[-1]["value"] == newest.state["value"], f"the log ends with {lines[-1]}"
            kept = {n for n in range(1, number + 1) if n > number - 2 or n % 3 == 0} if more == 1 else set()
            if not marks.get("rewound"):
                assert kept <= set(run.checkpoints()), f"{sorted(kept)} of {run.checkpoints()}"
            save_checkpoint(run, number + 1, 1000 * more)
        marks = {**marks, "acknowledged": number + 1, "handed_over": number + 1}


def check_rewind(root: Path, marks: Marks) -> None:
    check_run(root, {"acknowledged": 3, "handed_over": 6, **marks, "rewound": True})


# --- cloud -----------------------------------------------------------------------------------------


def push(root: Path, journal: Journal) -> None:
    """A lake goes to a bucket, then more of it while it is recorded."""
    lp.push(lake_of(root), cloud_of(root))
    journal.mark(pushed=33)
    with lp.Replay.open(lake_of(root), capacity=CAPACITY, cloud=cloud_of(root)) as replay:
        for stop in (40, 50):
            journal.mark(handed_over=stop)
            record(replay, replay.stats().recorded, stop)
            journal.mark(acknowledged=replay.commit().recorded)
            assert replay.push(wait=True).done
            journal.mark(pushed=stop)


def check_push(root: Path, marks: Marks) -> None:
    given = marks.get("handed_over", 33)
    pushed = marks.get("pushed")
    try:
        with lp.pull(root / "there", cloud_of(root)) as lake:
            assert (pushed or 0) <= lake.commit.recorded <= given
            check_lake(lake)
    except lp.CloudNotFound:
        if pushed is not None:
            raise
    check_lake_goes_on(root, marks)
    status = lp.push(lake_of(root), cloud_of(root), timeout=20)
    assert status.done, str(status)
    with lp.Lake.open(lake_of(root)) as here, lp.pull(root / "again", cloud_of(root)) as lake:
        assert here.commit == lake.commit
        check_lake(lake)


def bucket(root: Path) -> None:
    some_commits(root)
    lp.push(lake_of(root), cloud_of(root))


def pull(root: Path, journal: Journal) -> None:
    lp.pull(root / "there", cloud_of(root)).close()
    journal.mark(pulled=True)


def check_pull(root: Path, marks: Marks) -> None:
    if marks.get("pulled"):
        with lp.Lake.open(root / "there") as lake:
            check_lake(lake)
    with lp.pull(root / "there", cloud_of(root)) as lake:
        assert lake.commit.recorded == 33
        check_lake(lake)
    check_and_continue(root / "there", 33, 33)


BUDGET: dict[str, Any] = {"pull": "lazy", "local_budget": 4_000}


def budget(root: Path, journal: Journal) -> None:
    """Segments that are in the bucket leave this disk and come back."""
    with lp.Replay.open(root / "there", capacity=CAPACITY, cloud=cloud_of(root), **BUDGET) as replay:
        for stop in (45, 60, 75):
            journal.mark(handed_over=stop)
            record(replay, replay.stats().recorded, stop)
            journal.mark(acknowledged=replay.commit().recorded)
            assert replay.push(wait=True).done
            journal.mark(pushed=stop)
            with replay.lake() as lake:
                check_lake(lake)


def check_budget(root: Path, marks: Marks) -> None:
    low, high = marks.get("acknowledged", 33), marks.get("handed_over", 33)
    with lp.Replay.open(root / "there", capacity=CAPACITY, cloud=cloud_of(root), **BUDGET) as replay:
        there = replay.stats().recorded
        assert low <= there <= high, f"{there} steps, {marks}"
        with replay.lake() as lake:
            check_lake(lake)
        record(replay, there, there + 5)
        replay.commit()
        assert replay.push(wait=True, timeout=20).done
    with lp.pull(root / "again", cloud_of(root)) as lake:
        assert lake.commit.recorded == there + 5
        check_lake(lake)


def gc(root: Path, journal: Journal) -> None:
    for _ in range(2):  # the first one marks
        lp.gc(cloud_of(root), keep_last=1, older_than=-1.0, dry_run=False)


def check_gc(root: Path, marks: Marks) -> None:
    check_pull(root, {})
    for _ in range(2):
        lp.gc(cloud_of(root), keep_last=1, older_than=-1.0, dry_run=False)
    with lp.pull(root / "again", cloud_of(root)) as lake:
        check_lake(lake)


# --- import ----------------------------------------------------------------------------------------


def episodes(root: Path) -> None:
    """A folder of .npz files with 35 steps in all."""
    with lp.Replay.open(root / "source", SPEC, capacity=50) as replay:
        record(replay, 0, 35)
    with lp.Lake.open(root / "source") as lake:
        lake.to_npz(root / "npz")


def import_(root: Path, journal: Journal) -> None:
    from lakepond.adapters import episodes, npz

    with mock.patch.object(episodes, "COMMIT_STEPS", 10):  # several commits of a small import
        npz.import_npz(root / "npz", lake_of(root))
    journal.mark(done=True)


def check_import(root: Path, marks: Marks) -> None:
    from lakepond.adapters.npz import import_npz

    path = lake_of(root)
    try:
        with lp.Lake.open(path) as lake:
            assert len(lake) == 35, f"a lake of {len(lake)} of 35 steps looks complete"
    except lp.LakeNotFound:
        assert not marks.get("done")
        import_npz(root / "npz", path)
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert sorted(lake.steps(0, 35).reward.tolist()) == list(range(35))


# --- trainers --------------------------------------------------------------------------------------


def train(trainer: str) -> Operation:
    """A short run; cut off anywhere and started again, it ends as one that was not, and repeats little."""
    undisturbed: dict[str, str] = {}

    def prepare(root: Path) -> None:
        training.train_here(trainer, root.parent / f"{root.name}-undisturbed")
        undisturbed.update(training.fingerprint(root.parent / f"{root.name}-undisturbed"))

    def perform(root: Path, journal: Journal) -> None:
        training.train_here(trainer, root / "run")

    def check(root: Path, marks: Marks) -> None:
        saved = {state: state.stat().st_ino for state in states(root / "run")}
        training.train_here(trainer, root / "run")
        redone = [
            state.parent.name
            for state in states(root / "run")
            if saved.get(state, 0) not in (0, state.stat().st_ino)
        ]
        assert not redone, f"checkpoints {redone} were complete and made again"
        differ = training.differences(training.fingerprint(root / "run"), undisturbed)
        assert not differ, f"not as undisturbed: {differ}"

    def states(run: Path) -> list[Path]:
        return sorted((run / "checkpoints").glob("[0-9]*[0-9]/state.json"))

    return Operation(f"train {trainer}", perform, check, prepare, trains=True)


def start_over() -> Operation:
    """A run starts over in a folder that holds another one: nothing of the old one is deleted."""
    undisturbed: dict[str, str] = {}

    def prepare(root: Path) -> None:
        training.train_here("erl", root / "run", generations=2, seed=5)
        training.train_here("erl", root.parent / "new", generations=2)
        undisturbed.update(training.fingerprint(root.parent / "new"))

    def perform(root: Path, journal: Journal) -> None:
        journal.mark(content=contents(root))
        training.train_here("erl", root / "run", training.START_OVER, generations=2)

    def check(root: Path, marks: Marks) -> None:
        training.train_here("erl", root / "run", training.START_OVER, generations=2)
        missing = marks.get("content", set()) - contents(root)
        assert not missing, f"{len(missing)} files of the old run are gone"
        differ = training.differences(training.fingerprint(root / "run"), undisturbed)
        assert not differ, f"not as undisturbed: {differ}"

    return Operation("start over", perform, check, prepare, trains=True)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("commit", commit, check_commit),
        Operation("merge", merge, check_lake_goes_on, some_commits),
        Operation("manifests", manifests, check_manifests, some_commits),
        Operation("retention", retention, check_retention, some_commits),
        Operation("compact", compact, check_lake_goes_on, some_commits),
        Operation("repair", repair, check_repair, damage),
        Operation("two writers", two_writers, check_two_writers),
        Operation("two writers of a source", two_writers_of_a_source, check_two_writers_of_a_source),
        Operation("save", save, check_save),
        Operation("checkpoint", checkpoint, check_run),
        Operation("rewind", rewind, check_rewind, some_checkpoints),
        Operation("push", push, check_push, some_commits),
        Operation("pull", pull, check_pull, bucket),
        Operation("local budget", budget, check_budget, bucket),
        Operation("gc", gc, check_gc, bucket),
        Operation("import", import_, check_import, episodes),
        *(train(trainer) for trainer in training.TRAINERS),
        start_over(),
    )
}
