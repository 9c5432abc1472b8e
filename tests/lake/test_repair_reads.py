"""What `verify` and `repair` read: each file once, on two threads, however many commits name it."""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import lakepond as lp
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.format import commits, manifests
from lakepond.lake.format.entries import Entry
from lakepond.lake.format.shard import Shard
from lakepond.lake.read import verify
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.segments import Segments
from lakepond.lake.write import packing

SPEC = lp.Spec(obs=lp.Field((4, 9), "int32", rows=0))
DATA = (".rows", ".steps", ".source")
COMMITS = 32


def record(replay: lp.Replay, start: int, stop: int) -> None:
    """Steps whose reward is their id; row r of all observations is filled with the number r."""
    for t in range(start, stop):
        rows = np.broadcast_to(np.arange(t, t + 5, dtype=np.int32)[:, None], (5, 9))
        ends = {"terminated": False, "truncated": False}
        assert replay.record(obs=rows[:4], next_obs=rows[1:], action=0, reward=float(t), **ends) == t


def all_there(path: Path, start: int, stop: int, writer: str | None = None) -> None:
    """Check that a lake has exactly the steps [start, stop), and every byte of it."""
    with lp.Lake.open(path, writer=writer) as lake:
        lake.verify()
        assert len(lake) == stop - start
        batch, ids = lake.steps(start, stop), np.arange(start, stop)
        assert (batch.reward == ids).all()
        assert (batch.obs == (ids[:, None] + np.arange(4))[:, :, None]).all()
        assert (batch.next_obs == (ids[:, None] + np.arange(1, 5))[:, :, None]).all()


class Reads:
    """Files that were opened and status calls, by file name, and bytes that were read."""

    def __init__(self) -> None:
        self.opens: Counter[str] = Counter()
        self.stats: Counter[str] = Counter()
        self.bytes = 0

    def most(self, *kinds: str) -> int:
        """How often a file of these kinds was opened at most."""
        return max(count for name, count in self.opens.items() if name.endswith(kinds))


current: list[Reads] = []
"""what is counted now"""


def on_event(event: str, args: tuple[Any, ...]) -> None:
    if event == "open" and current and isinstance(args[0], str | os.PathLike):
        current[0].opens[os.path.basename(args[0])] += 1


@pytest.fixture(scope="module", autouse=True)
def audit() -> None:
    sys.addaudithook(on_event)  # sees every file that Python opens; cannot be removed


def bytes_read() -> int:
    """Bytes that all threads of this process have read so far, from the page cache or from the disk."""
    return int(Path("/proc/self/io").read_text().split()[1])


Counting = Callable[[], AbstractContextManager[Reads]]


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> Counting:
    """Small manifests, of which few are kept in memory; `with counting() as reads` counts in a block."""
    monkeypatch.setattr(packing, "LOOSE", 2)
    monkeypatch.setattr(packing, "FAN", 2)
    monkeypatch.setattr(manifests, "KEPT", 4)
    stat, arrow_file = os.stat, pa.OSFile

    def counted_stat(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if current and not isinstance(path, int):
            current[0].stats[os.path.basename(path)] += 1
        return stat(path, *args, **kwargs)

    def counted_file(path: str, *args: Any) -> Any:  # Arrow opens files without Python
        if current:
            current[0].opens[os.path.basename(path)] += 1
        return arrow_file(path, *args)

    @contextmanager
    def count() -> Iterator[Reads]:
        monkeypatch.setattr(manifests, "_kept", manifests._Kept())  # as in a new process
        monkeypatch.setattr(os, "stat", counted_stat)
        monkeypatch.setattr(pa, "OSFile", counted_file)
        reads, before = Reads(), bytes_read()
        current.append(reads)
        try:
            yield reads
        finally:
            current.clear()
            reads.bytes = bytes_read() - before

    return count


def make(path: Path, num_commits: int, **how: Any) -> None:
    """Commits of three steps, each with some changed priorities."""
    how = {"merge_after": None, "alpha": 0.6, "capacity": 500} | how
    with lp.Replay.open(path, SPEC, **how) as replay:
        for n in range(num_commits):
            record(replay, 3 * n, 3 * n + 3)
            replay.update_priorities([3 * n, 3 * n + 2], [n + 1.0, n + 2.0])
            replay.commit()


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


@pytest.mark.parametrize(
    "how", [{}, {"capacity": 30, "max_steps": 40}], ids=["all steps", "the newest steps"]
)
def test_repair_reads_each_file_once_and_its_time_follows_the_commits(tmp_path, counting, how):
    found = []
    for num_commits in (COMMITS, 2 * COMMITS):
        path = tmp_path / f"of {num_commits}"
        make(path, num_commits, **how)
        with counting() as reads:
            assert lp.repair(path).quarantined == ()
        names = {file.name for file in (path / "segments").iterdir() if file.name.endswith(DATA)}
        assert len(names) > 2 * num_commits
        assert names <= reads.opens.keys()
        assert reads.most(*DATA) == 1
        assert reads.most("0.json") == 1
        assert max(count for name, count in reads.stats.items() if name in names) <= 3
        assert reads.bytes < 1.3 * size_of(path)
        found.append((reads.opens.total(), reads.stats.total()))
        if not how:
            assert reads.most(".manifest") <= 2  # again if it left memory before steps looked for their rows
            all_there(path, 0, 3 * num_commits)
    (opens, stats), (opens_of_twice, stats_of_twice) = found
    assert opens_of_twice < 2.3 * opens
    assert stats_of_twice < 2.3 * stats


def test_repair_of_a_damaged_lake_reads_each_file_once(tmp_path, counting, caplog):
    path = tmp_path / "lake"
    make(path, COMMITS)
    with lp.Lake.open(path, COMMITS // 2 - 1) as lake:
        intact = {name for name, _ in lake.files()}
    with lp.Lake.open(path, COMMITS // 2) as lake:
        newest = list(lake.reader.stored())[-1].name
    before = {file.name for file in (path / "segments").iterdir()}
    data = bytearray((path / "segments" / newest).read_bytes())
    data[len(data) // 2] ^= 1
    (path / "segments" / newest).write_bytes(data)
    with counting() as reads:
        done = lp.repair(path)
    assert done.newest == COMMITS // 2 - 1
    assert reads.most(*DATA) == 1
    assert reads.most(".manifest") <= 2
    assert sum("does not match the digest" in message for message in caplog.messages) == COMMITS // 2
    assert newest in done.quarantined
    left = {file.name for file in (path / "segments").iterdir()}
    assert left == before - set(done.quarantined)
    assert intact <= left
    all_there(path, 0, 3 * (COMMITS // 2))
    assert lp.repair(path).quarantined == ()


def test_repair_keeps_what_the_lists_of_a_commit_with_a_damaged_manifest_name(tmp_path, counting):
    path = tmp_path / "lake"
    make(path, COMMITS)
    with lp.Lake.open(path) as lake:
        rows = next(entry for entry in lake.commit.rows[0] if isinstance(entry, manifests.Manifest))
        steps = list(lake.reader.stored())[-1].name
    (path / "segments" / rows.name).unlink()
    done = lp.repair(path)
    assert done.newest is not None
    assert steps in done.quarantined  # left in place, the next writer would delete it
    all_there(path, 0, 3 * (done.newest + 1))


def test_files_that_writers_share_are_read_once(tmp_path, counting):
    path, table = tmp_path / "lake", np.repeat(np.arange(40_000, dtype=np.int32)[:, None], 9, axis=1)
    source = lp.RowSource(table)
    for writer in ("a", "b"):
        with lp.Replay.open(path, SPEC, capacity=50, writer=writer) as replay:
            for t in range(20):
                windows = {"obs": lp.WindowRef(source, t + 4), "next_obs": lp.WindowRef(source, t + 5)}
                replay.record(**windows, action=0, reward=float(t), terminated=False, truncated=False)
    with counting() as reads:
        assert lp.repair(path).quarantined == ()
    assert reads.most(".source") == 1
    for writer in ("a", "b"):
        all_there(path, 0, 20, writer)


@pytest.mark.parametrize("codec", ["zstd", "none"])
def test_verify_reads_each_byte_once(tmp_path, counting, codec):
    path, rng = tmp_path / "lake", np.random.default_rng(0)
    spec = lp.Spec(obs=lp.Field((4, 50, 50), "uint8"), extras={"noise": lp.Field((2_000,), "float64")})
    frames = rng.integers(0, 256, (84, 50, 50), dtype=np.uint8)
    with lp.Replay.open(path, spec, capacity=100, codec=codec, alpha=0.6) as replay:
        for t in range(80):
            windows = {"obs": frames[t : t + 4], "next_obs": frames[t + 1 : t + 5]}
            flags = {"terminated": False, "truncated": False}
            replay.record(**windows, action=0, reward=float(t), noise=rng.normal(size=2_000), **flags)
    sizes = {kind: size_of_kind(path, kind) for kind in (".rows", ".steps")}
    assert all(size > 100_000 for size in sizes.values()), sizes
    with lp.Lake.open(path) as lake:
        with counting() as reads:
            lake.verify()
        assert reads.most(*DATA) == 1
        assert sum(sizes.values()) <= reads.bytes < 1.1 * sum(sizes.values())


def size_of_kind(path: Path, kind: str) -> int:
    return sum(file.stat().st_size for file in path.rglob(f"*{kind}"))


def test_a_large_file_of_steps_is_checked_without_holding_it(tmp_path, monkeypatch):
    from lakepond.lake.read import verify

    path = tmp_path / "lake"
    make(path, 3)
    monkeypatch.setattr(verify, "HELD_BYTES", 1)
    all_there(path, 0, 9)
    assert lp.repair(path).quarantined == ()
    with lp.Lake.open(path) as lake:
        file = path / "segments" / list(lake.reader.stored())[-1].name
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    with lp.Lake.open(path, 2) as lake, pytest.raises(lp.LakeCorrupt):
        lake.verify()
    assert lp.repair(path).newest == 1


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_two_files_are_checked_at_the_same_time(tmp_path, monkeypatch, command):
    path = tmp_path / "lake"
    make(path, 8)
    both, check = threading.Barrier(2), Shard.verify
    files = sorted((path / "segments").glob("*.rows"))
    waiting = iter(range(len(files) // 2 * 2))  # an odd file would wait for another one

    def together(shard: Shard) -> None:
        if next(waiting, None) is not None:
            both.wait(timeout=30)  # raises if no other thread comes
        check(shard)

    monkeypatch.setattr(Shard, "verify", together)
    if command == "repair":
        assert lp.repair(path).newest == 7
    else:
        with lp.Lake.open(path) as lake:
            lake.verify()
    assert next(waiting, None) is None  # all of them came in pairs


def test_progress_of_repair_counts_bytes(tmp_path):
    path = tmp_path / "lake"
    make(path, 8)
    seen: list[tuple[int, int]] = []
    lp.repair(path, progress=lambda done, total: seen.append((done, total)))
    total = sum(file.stat().st_size for file in (path / "segments").iterdir())
    assert {each for _, each in seen} == {total}
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert seen[-1] == (total, total)
    assert len(seen) > len(list((path / "segments").glob("*.steps")))


def test_lists_of_files_that_are_elsewhere_are_read_once(tmp_path, counting):
    path = tmp_path / "lake"
    make(path, COMMITS)
    gone = sorted((path / "segments").glob("*.rows"))[: COMMITS // 2]
    Elsewhere(path, "gs://bucket/demo").add([file.name for file in gone])
    for file in gone:
        file.unlink()
    with counting() as reads:
        assert lp.repair(path).quarantined == ()
    assert reads.most(".txt") == 1
    with lp.Lake.open(path) as lake, counting() as reads:
        lake.verify()
    assert reads.most(".txt") == 1


@pytest.fixture
def small_manifests(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Small manifests; the function makes this process forget them, as in another process."""
    monkeypatch.setattr(packing, "LOOSE", 2)
    monkeypatch.setattr(packing, "FAN", 2)
    return lambda: monkeypatch.setattr(manifests, "_kept", manifests._Kept())


def flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def manifests_of_rows(path: Path, number: int) -> set[str]:
    """All that a commit needs, those in other manifests included."""
    commit, segments = commits.read(path / "commits", number), Segments(path)

    def below(entries: Iterable[Entry]) -> Iterator[str]:
        for entry in entries:
            if isinstance(entry, manifests.Manifest):
                yield entry.name
                yield from below(manifests.read(segments, entry, 0, 1))

    return set(below(commit.rows[0]))


def test_a_damaged_manifest_of_an_old_commit_costs_no_later_commit_that_does_not_name_it(
    tmp_path, small_manifests
):
    path = tmp_path / "lake"
    make(path, 100, keep_last=1, keep_every=40)
    old, *_, newest = [number for number in commits.numbers(path / "commits") if number]
    flip(path / "segments" / min(manifests_of_rows(path, old) - manifests_of_rows(path, newest)))
    small_manifests()
    all_there(path, 0, 300)
    done = lp.repair(path)
    assert done.newest == newest
    assert commits.file_name(old) in done.quarantined
    all_there(path, 0, 300)


def test_a_file_of_steps_without_its_rows_is_found_in_the_first_commit_whose_rows_are_known(
    tmp_path, small_manifests
):
    """Its file was read before, in a commit with a damaged manifest of rows."""
    path = tmp_path / "lake"
    make(path, 100, keep_last=1, keep_every=40)
    old, *_, newest = [number for number in commits.numbers(path / "commits") if number]
    flip(path / "segments" / min(manifests_of_rows(path, old) - manifests_of_rows(path, newest)))
    small_manifests()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Catalog, "covers", lambda *_: False)
        done = lp.repair(path)
    assert commits.file_name(newest) in done.quarantined


def test_a_manifest_of_rows_that_is_elsewhere_is_not_damaged(tmp_path, small_manifests):
    path = tmp_path / "lake"
    make(path, COMMITS)
    name = min(manifests_of_rows(path, COMMITS - 1))
    Elsewhere(path, "gs://bucket/demo").add([name])
    (path / "segments" / name).unlink()
    small_manifests()
    with lp.Lake.open(path) as lake:
        lake.verify()
    assert lp.repair(path).quarantined == ()


@pytest.mark.parametrize("where", ["steps", "manifest", "commit"])
def test_an_error_that_may_pass_moves_nothing(tmp_path, monkeypatch, small_manifests, where):
    path = tmp_path / "lake"
    make(path, COMMITS)
    module, name = {
        "steps": (verify, "_read_checked"),
        "manifest": (manifests, "read"),
        "commit": (commits, "read"),
    }[where]
    before, real, calls = size_of(path), getattr(module, name), iter(range(COMMITS**2))

    def fails_once(*args: Any, **more: Any) -> Any:
        if next(calls) == 3:
            raise OSError(errno.EMFILE, "Too many open files", "x")
        return real(*args, **more)

    monkeypatch.setattr(module, name, fails_once)
    with pytest.raises(OSError, match="Too many open files"):
        lp.repair(path)
    assert size_of(path) == before
    assert not (path / "quarantine").exists()
    assert lp.repair(path).quarantined == ()


def test_repair_leaves_a_writer_the_files_that_it_shares_with_a_damaged_one_in_format_1(tmp_path):
    path = tmp_path / "lake"
    for writer, stop in (("", 40), ("w", 20)):
        with lp.Replay.open(path, SPEC, capacity=300, writer=writer, merge_after=None) as replay:
            record(replay, 0, 20)
            replay.commit()
            record(replay, 20, stop)
    for file in (path / "writers" / "w" / "segments").iterdir():
        file.replace(path / "segments" / file.name)
    (path / "writers" / "w" / "segments").rmdir()
    (path / "commits" / commits.file_name(0)).unlink()
    theirs = set(commits.read(path / "writers" / "w" / "commits", 0).named())
    own = set(commits.read(path / "commits", 1).named())
    assert own & theirs
    assert own - theirs
    for name in own - theirs:
        flip(path / "segments" / name)
    done = lp.repair(path)
    assert own - theirs <= set(done.quarantined)
    assert not theirs & set(done.quarantined)
    all_there(path, 0, 20, "w")
    flip(path / "segments" / max(theirs))  # only this writer names it now
    assert max(theirs) in lp.repair(path).quarantined
