"""Small files are merged to large ones: the same steps, fewer files, whatever happens meanwhile."""

from __future__ import annotations

import errno
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, same_batch, settle, spec_of

import lakepond as lp
from lakepond.lake import files
from lakepond.lake.format import commits, manifests
from lakepond.lake.format.entries import Segment
from lakepond.lake.format.steps import StepsInfo
from lakepond.lake.write import maintenance, merge, packing
from lakepond.lake.write.writer import LakeWriter


def write(path: Path, world: str, commits_: int, each: int, **how: object) -> None:
    with lp.Replay.open(path, spec_of(world), capacity=5 * each, **how) as replay:
        for k in range(commits_):
            record(replay, world, replay.stats().recorded, (k + 1) * each)
            replay.commit(note={"k": k})


def step_files(lake: lp.Lake) -> int:
    return len(list(lake.reader.stored()))


def all_there(lake: lp.Lake, world: str, start: int, stop: int) -> None:
    assert (lake.commit.oldest, lake.commit.recorded) == (start, stop)
    lake.verify()
    batch = lake.steps(start, stop)
    for i in range(stop - start):
        agrees(batch, i, world)


@pytest.mark.parametrize(
    ("world", "codec"),
    [("frames first", "none"), ("market window", "zstd"), ("dict and tuple", "zstd"), ("vector", "zstd")],
)
def test_compact_keeps_every_step_and_leaves_few_files(tmp_path, world, codec):
    path = tmp_path / "lake"
    write(path, world, 20, 9, codec=codec, merge_after=None)
    with lp.Lake.open(path) as lake:
        assert len(list(lake.reader.stored())) == 20
        before, lately = lake.steps(0, 180), lake.commit
        lake.compact()
        assert len(list(lake.reader.stored())) <= 2  # steps from before the row axis was known stay apart
        assert sum(map(len, lake.commit.rows)) <= 2 * len(lake.commit.next_rows)
        assert lake.commit.number == lately.number + 1
        assert lake.commit.note == lately.note
        assert same_batch(lake.steps(0, 180), before)
        all_there(lake, world, 0, 180)
        for number in lake.commits():  # the old ones are what they were
            with lp.Lake.open(path, commit=number) as old:
                agrees(old.steps(0, len(old)), len(old) - 1, world)
        small = lake.stats().bytes_on_disk
        lake.compact(keep_last=1)
        assert lake.commits() == [lake.commit.number]
        assert sum(file.stat().st_size for file in (path / "segments").iterdir()) == small
        assert same_batch(lake.steps(0, 180), before)
    with lp.Replay.open(path, capacity=45) as replay:  # goes on, with the same rows
        record(replay, world, 180, 200)
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 0, 200)


def test_compact_merges_in_several_parts_what_one_file_cannot_have(tmp_path, monkeypatch):
    world, path = "noise", tmp_path / "lake"
    write(path, world, 20, 9, merge_after=None)
    monkeypatch.setattr(merge, "TRACK_ENTRIES", 40)  # of three commits
    with lp.Lake.open(path) as lake:
        lake.compact()
        assert step_files(lake) == 7
        all_there(lake, world, 0, 180)


def test_a_compacted_replay_samples_as_one_that_was_not(tmp_path):
    world, batches = "frames first", []
    for name in ("one", "two"):
        path = tmp_path / name
        write(path, world, 12, 10, alpha=0.6)
        if name == "two":
            with lp.Lake.open(path) as lake:
                lake.compact(keep_last=1)
        with lp.Replay.open(path, capacity=50, alpha=0.6) as replay:
            record(replay, world, 120, 125)
            batches.append(replay.sample(32, rng=np.random.default_rng(3), n_step=3, gamma=0.9))
    assert same_batch(*batches)


def test_a_growing_lake_merges_by_itself(tmp_path):
    """With keep_last files leave; 100 commits leave some dozen files, and commits of bounded size."""
    world, path = "frames first", tmp_path / "lake"
    most = 0
    with lp.Replay.open(path, spec_of(world), capacity=50, keep_last=2, merge_after=8) as replay:
        for k in range(100):
            record(replay, world, 5 * k, 5 * k + 5)
            commit = replay.commit()
            if k % 10 == 9:
                settle(replay)
            most = max(most, commit.totals.files)
        settle(replay)
        replay.commit()
    assert most <= 80
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 0, 500)
        assert step_files(lake) <= 20
        assert len(list(lake.reader.row_files(0))) <= 20
        assert len(list((path / "segments").iterdir())) <= 80
        sizes = [file.stat().st_size for file in (path / "commits").iterdir()]
        assert max(sizes) < 480 * 60


def test_while_all_commits_are_kept_a_byte_is_copied_once(tmp_path, monkeypatch):
    """Merged files stay on the disk: merging waits for many files, or for enough bytes for one large file."""
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of("vector"), capacity=50, merge_after=2) as replay:
        for k in range(80):
            record(replay, "vector", k, k + 1)
            commit = replay.commit()
            settle(replay)
    with lp.Lake.open(path) as lake:
        assert step_files(lake) == 80 - 2 * 31  # two merges of 16 * 2 files
        all_there(lake, "vector", 0, 80)
        written = sum(file.stat().st_size for file in (path / "segments").glob("*.steps"))
        with lp.Lake.open(path, commit=3) as old:
            all_there(old, "vector", 0, old.commit.recorded)
            each = old.stats().bytes_on_disk / 4
        assert written < 2 * 80 * each
    monkeypatch.setattr(merge, "SMALL_BYTES", 100_000)
    monkeypatch.setattr(merge, "COPIED_BYTES", 10_000)
    wide = tmp_path / "wide"
    with lp.Replay.open(wide, spec_of("noise"), capacity=5000, merge_after=4) as replay:
        for k in range(20):
            record(replay, "noise", 40 * k, 40 * k + 40)
            commit = replay.commit()
            settle(replay)
        assert len(commit.rows[0]) == 20  # each is larger than a file that is worth a copy
        assert min(file.bytes for file in commit.rows[0]) > 10_000


def test_an_older_file_joins_when_it_is_no_larger_than_the_newer_ones():
    def segment(first: int, size: int) -> Segment:
        return Segment(first, StepsInfo(1, size, f"{first:040x}"), ())

    def merged(sizes: list[int], *, keeps_all: bool = False) -> list[int]:
        newest_first = [segment(i, size) for i, size in enumerate(sizes)][::-1]
        growing = merge.GrowingList(4, keeps_all=keeps_all)
        return [file.first for file in next(growing.groups(newest_first), [])]

    kb = 1 << 10
    assert merged([kb] * 3) == []
    assert merged([kb] * 4) == [0, 1, 2, 3]
    assert merged([4 * kb, kb, kb, kb, kb]) == [0, 1, 2, 3, 4]
    assert merged([9 * kb, kb, kb, kb, kb]) == [1, 2, 3, 4]
    assert merged([8 * kb, 4 * kb, kb, kb, kb, kb]) == [0, 1, 2, 3, 4, 5]
    assert merged([33 << 20, kb, kb, kb, kb]) == [1, 2, 3, 4]
    assert merged([kb, 40 * kb, *[kb] * 3]) == []  # two of 40 kB come first
    assert merged([7 << 20] * 12) == list(range(3, 12))  # up to 64 MB
    assert merged([20 << 20] * 2) == [0, 1]  # few files, large together
    assert merged([15 << 20] * 2) == []
    assert merged([kb] * 63, keeps_all=True) == []
    assert merged([kb] * 64, keeps_all=True) == list(range(64))
    assert merged([800 * kb] * 41, keeps_all=True) == list(range(41))  # 32 MB together
    assert merged([800 * kb] * 40, keeps_all=True) == []
    assert merged([2 << 20] * 20, keeps_all=True) == []  # a copy of each is too expensive
    large = 33 << 20
    assert merged([kb, kb, large]) == [0, 1]  # no later file can join them
    assert merged([kb, kb, large, kb, large, large, kb, kb]) == [0, 1]
    assert merged([20 << 20, kb, large]) == [0, 1]
    assert merged([20 << 20] * 4 + [large]) == [1, 2, 3]
    assert merged([kb, large, kb, large]) == []
    assert merged([kb, kb, large], keeps_all=True) == [0, 1]
    assert merged([2 << 20, 2 << 20, large], keeps_all=True) == []
    assert merged([kb, kb, *[2 << 20] * 40], keeps_all=True) == []  # of these one more could be


def test_a_group_that_cannot_be_merged_is_tried_once():
    """Those before it are merged all the same. What was looked at once is not looked at after each commit."""
    sizes = [2000, 1000, 33 << 20, 1000, 1000, 33 << 20, 1000]
    files = [Segment(i, StepsInfo(1, size, f"{i:040x}"), ()) for i, size in enumerate(sizes)]
    growing = merge.GrowingList(4, keeps_all=False)
    assert [group[0].first for group in growing.groups(reversed(files))] == [3, 0]
    newest_first = reversed(files)
    assert list(growing.groups(newest_first)) == []
    assert list(newest_first) == files[4::-1]
    again = merge.GrowingList(4, keeps_all=False)
    for _ in range(3):  # no further group is taken, so this one was merged, or is tried again
        assert next(again.groups(reversed(files)))[0].first == 3


@pytest.mark.parametrize(
    "sizes",
    [
        *([1 << 10], [1 << 16], [1 << 20], [3 << 20], [9 << 20], [31 << 20]),
        [10_000] * 20 + [40 << 20],
        [20 << 20, 5_000, 40 << 20],
    ],
)
@pytest.mark.parametrize("keeps_all", [False, True])
def test_the_number_of_files_follows_the_bytes(sizes, keeps_all):
    """Merged as by default: one file per 32 MB, one between two large ones, and the newest small ones.

    A byte is written again when its file doubles, and once more. The files looked at are bounded, too.
    """
    commits, least, files, written, looked_at = 1500, 32, [], 0, 0
    growing = merge.GrowingList(least, keeps_all=keeps_all)

    def newest_first():
        nonlocal looked_at
        for file in reversed(files):
            looked_at += 1
            yield file

    for first in range(commits):
        size = sizes[first % len(sizes)]
        files.append(Segment(first, StepsInfo(1, size, f"{first:040x}"), ()))
        if group := next(growing.groups(newest_first()), None):
            at = next(i for i in reversed(range(len(files))) if files[i] is group[0])
            assert files[at : at + len(group)] == group
            together = sum(file.bytes for file in group)
            info = StepsInfo(sum(file.steps.steps for file in group), together, f"{first:040x}")
            files[at : at + len(group)] = [Segment(group[0].first, info, ())]
            written += together
    recorded = [sizes[k % len(sizes)] for k in range(commits)]
    assert sum(file.bytes for file in files) == sum(recorded)
    small = [size for size in recorded if size < 32 << 20]
    if keeps_all and sum(small) >= len(small) << 20:
        assert (len(files), written) == (commits, 0)  # docs/lake.md: a copy of each would double the disk
    else:
        newest = 2 * 512 if keeps_all else 3 * 32
        alternate = 1 if len(sizes) == 1 else 2
        assert len(files) <= alternate * sum(recorded) / (32 << 20) + newest, len(files)
    doublings = max(0, np.log2(min(sum(small), 32 << 20) / (least * min(sizes))))
    assert written <= (2 + doublings) * sum(small), written / sum(small)
    assert looked_at <= commits * (16 * least if keeps_all else least), looked_at / commits


@pytest.mark.parametrize("keep_last", [None, 2])
def test_small_files_before_a_large_one_are_merged(tmp_path, monkeypatch, keep_last):
    monkeypatch.setattr(merge, "SMALL_BYTES", 20_000)
    path, at = tmp_path / "lake", 0
    with lp.Replay.open(path, spec_of("noise"), capacity=500, keep_last=keep_last) as replay:
        for steps in [5, 5, 5, 120] * 4 + [1, 1]:
            record(replay, "noise", at, at + steps)
            replay.commit()
            settle(replay)
            at += steps
    with lp.Lake.open(path) as lake:
        large = [file.bytes >= 20_000 for file in lake.commit.rows[0]]
        assert large == [False, True] * 4 + [False, False]
        all_there(lake, "noise", 0, at)


def test_every_nth_commit_is_kept_for_ever(tmp_path):
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of("vector"), capacity=50, keep_last=2, keep_every=5) as replay:
        for k in range(13):
            record(replay, "vector", 3 * k, 3 * k + 3)
            replay.commit()
    with lp.Lake.open(path) as lake:
        assert lake.commits() == [0, 5, 10, 11, 12]
    with lp.Lake.open(path, commit=5) as lake:
        all_there(lake, "vector", 0, 18)
    for wrong in ({"keep_every": 5}, {"keep_last": 0}, {"keep_last": 3, "keep_every": 0}):
        with pytest.raises(lp.SpecError, match="keep_"):
            lp.Replay.open(tmp_path / "other", spec_of("vector"), capacity=50, **wrong)
    assert not (tmp_path / "other").exists()


def test_a_reader_that_is_open_across_a_merge(tmp_path):
    """Its commit is kept with all its small files until it is closed, whether it has read them or not."""
    world, path = "frames first", tmp_path / "lake"
    write(path, world, 12, 10)
    with lp.Lake.open(path) as reader, lp.Lake.open(path) as late, lp.Lake.open(path) as other:
        before = other.commit.number
        other.compact()
        agrees(reader.steps(0, 120), 119, world)
        other.compact(keep_last=1)
        assert other.commits() == [before, before + 1]
        for each in (other, reader, late):
            all_there(each, world, 0, 120)
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
        assert lake.commits() == [before + 1]
        assert {file.name for file in (path / "segments").iterdir()} == dict(lake.files()).keys()
        all_there(lake, world, 0, 120)


def test_compacting_what_is_being_written_or_is_broken(tmp_path):
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of("vector"), capacity=50) as replay:
        record(replay, "vector", 0, 5)
        replay.commit()
        with lp.Lake.open(path) as lake:
            with pytest.raises(lp.LakeLocked):
                lake.compact()
            all_there(lake, "vector", 0, 5)  # it goes on reading
    stray = path / "segments" / f"{'0' * 40}.steps"
    stray.write_bytes(b"nobody names me")
    with lp.Lake.open(path) as lake:
        first = path / "commits" / commits.file_name(0)
        whole = first.read_bytes()
        first.write_bytes(whole[:-1])
        with pytest.raises(lp.LakeNotFound, match="repair"):
            lake.compact()
        assert stray.exists()
        first.write_bytes(whole)
        lake.compact()
        assert not stray.exists()
        assert lake.commits() == [0]  # there was nothing to merge


def test_a_merge_that_fails_leaves_all_as_it_was(tmp_path, monkeypatch, caplog):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    world, path = "frames first", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=50, keep_last=2, merge_after=4) as replay:
        monkeypatch.setattr(maintenance, "merge", full)
        for k in range(8):
            record(replay, world, 5 * k, 5 * k + 5)
            replay.commit()
            settle(replay)
        assert replay.stats().background_failures == 5
        assert caplog.text.count("could not be merged") == 1
        monkeypatch.undo()
        for k in range(8, 16):
            record(replay, world, 5 * k, 5 * k + 5)
            commit = replay.commit()
            settle(replay)
        assert len(commit.segments) < 10
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 0, 80)
        assert not list((path / "segments").glob("*.aside"))


def test_commits_do_not_wait_for_a_merge(tmp_path, monkeypatch):
    world, path = "frames first", tmp_path / "lake"
    started, go_on, merging = threading.Event(), threading.Event(), merge.merge

    def blocked(*args: object) -> object:
        started.set()
        assert go_on.wait(60)
        return merging(*args)

    monkeypatch.setattr(maintenance, "merge", blocked)
    with lp.Replay.open(path, spec_of(world), capacity=50, keep_last=2, merge_after=4) as replay:
        try:
            for k in range(4):
                record(replay, world, 5 * k, 5 * k + 5)
                replay.commit()
            assert started.wait(60)
            for k in range(4, 8):
                record(replay, world, 5 * k, 5 * k + 5)
                assert replay.commit(wait=False).result(60).number == k
        finally:
            go_on.set()
        settle(replay)
        assert len(replay.commit().segments) < 8
        assert replay.stats().background_failures == 0
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 0, 40)


def test_a_commit_that_fails_takes_the_merged_files_up_again(tmp_path, monkeypatch):
    world, path = "frames first", tmp_path / "lake"
    replay = lp.Replay.open(path, spec_of(world), capacity=50, keep_last=2, merge_after=4)
    for k in range(4):
        record(replay, world, 5 * k, 5 * k + 5)
        replay.commit()
    settle(replay)

    def full(self: LakeWriter, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LakeWriter, "_publish", full)
    record(replay, world, 20, 25)
    with pytest.raises(OSError, match="No space"):
        replay.commit()
    monkeypatch.undo()
    assert len(replay.commit().segments) == 2
    replay.close()
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 0, 25)


def test_a_file_that_is_of_no_use_any_more_is_deleted(tmp_path):
    """What was merged has left the lake before the next commit could take it up."""
    world, path = "frames first", tmp_path / "lake"
    how = {"max_steps": 20, "keep_last": 1, "merge_after": 4}
    with lp.Replay.open(path, spec_of(world), capacity=20, **how) as replay:
        for k in range(4):
            record(replay, world, 5 * k, 5 * k + 5)
            replay.commit()
        settle(replay)
        record(replay, world, 20, 40)
        replay.commit()
        settle(replay)
        with replay.lake() as lake:
            assert {file.name for file in (path / "segments").iterdir()} == dict(lake.files()).keys()
    with lp.Lake.open(path) as lake:
        all_there(lake, world, 20, 40)


@pytest.mark.parametrize("gone", [False, True])
@pytest.mark.parametrize("kind", ["steps", "rows", "manifest"])
def test_merging_continues_beside_a_damaged_file(tmp_path, monkeypatch, caplog, kind, gone):
    """It is read once. Newer files of its list are merged, and those of the other lists."""
    world, path = "noise", tmp_path / "lake"
    if kind == "manifest":
        monkeypatch.setattr(packing, "LOOSE", 2)
    with lp.Replay.open(path, spec_of(world), capacity=40, keep_last=2, merge_after=6) as replay:

        def commit(start: int, stop: int) -> lp.Commit:
            for k in range(start, stop):
                record(replay, world, k, k + 1)
                commit = replay.commit()
                settle(replay)
            return commit

        commit(0, 5)
        (file, *_) = sorted((path / "segments").glob(f"*.{kind}"), key=lambda file: file.stat().st_mtime)
        file.write_bytes(bytes(file.stat().st_size))
        if gone:
            file.unlink()
        monkeypatch.setattr(manifests, "_kept", manifests._Kept())
        last = commit(5, 40)
        assert [sum(entry.files for entry in listed) <= 16 for _, listed in last.lists()] == [True, True]
        is_read = kind == "manifest" or not gone
        assert caplog.text.count("could not be merged") == is_read
        if kind != "manifest":
            assert replay.stats().background_failures == is_read


def test_a_reason_with_the_name_of_a_temporary_file_is_logged_once(tmp_path, monkeypatch, caplog):
    real = files._temporary

    def refused(folder: Path) -> object:
        if threading.current_thread().name.startswith("lakepond-maintenance"):
            raise OSError(errno.EMFILE, "Too many open files", f"{folder}/{random.random()}.aside")
        return real(folder)

    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of("vector"), capacity=40, keep_last=2, merge_after=2) as replay:
        monkeypatch.setattr(files, "_temporary", refused)
        for k in range(8):
            record(replay, "vector", k, k + 1)
            replay.commit()
            settle(replay)
        monkeypatch.undo()
        assert replay.stats().background_failures > 2
    assert caplog.text.count("could not be merged") == 1


def test_what_is_merged_for_several_lists_is_taken_by_one_commit(tmp_path, monkeypatch):
    """A commit in between would take the file of one list, and that of the next would be forgotten."""
    real, taken = maintenance.merge, []
    with lp.Replay.open(tmp_path / "lake", spec_of("noise"), 40, keep_last=2, merge_after=3) as replay:
        work = replay._outflow.background.writer.maintenance
        monkeypatch.setattr(maintenance, "merge", lambda *how: taken.append(work.take()) or real(*how))
        for k in range(12):
            record(replay, "noise", k, k + 1)
            replay.commit()
            settle(replay)
        assert len(taken) > 4
        assert not any(taken)
