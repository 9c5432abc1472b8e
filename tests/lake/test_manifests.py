"""Older files are listed in manifests: whatever is dropped, merged or resumed, no file is lost or left."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import tempfile
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from test_lake import agrees, item, record, settle, spec_of, step_of

import lakepond as lp
from lakepond.lake.format import commits, manifests, names, ranges
from lakepond.lake.format.entries import Entry, Manifest, Segment
from lakepond.lake.format.steps import StepsInfo
from lakepond.lake.write import merge, packing, writer
from reference import same_bytes


@pytest.fixture
def small(monkeypatch):
    """Manifests of all levels after a few commits, and ranges of rows that are joined early."""
    make_small(monkeypatch)


def make_small(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(packing, "LOOSE", 2)
    patch.setattr(packing, "FAN", 2)
    patch.setattr(packing, "FLAT_LEVEL", 2)
    patch.setattr(ranges, "GAP", 2)
    patch.setattr(ranges, "MOST_RANGES", 2)
    patch.setattr(writer, "LIVE_RANGES", 2)
    patch.setattr(writer, "MOST_LIVE_RANGES", 5)
    patch.setattr(manifests, "_kept", manifests._Kept())
    patch.setattr(manifests, "KEPT", 2)


def levels(lake: lp.Lake) -> set[int]:
    """The levels of all manifests of a lake."""
    found: set[int] = set()

    def visit(leaf: int | None, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if isinstance(entry, Manifest):
                found.add(entry.level)
                visit(leaf, lake.reader.heads[0].catalog.read(entry, leaf))

    for leaf, listed in lake.commit.lists():
        visit(leaf, listed)
    return found


# --- lists alone -------------------------------------------------------------------------------------


class Lists:
    """Manifests in a dictionary."""

    def __init__(self) -> None:
        self.written: dict[str, tuple[Entry, ...]] = {}

    def write(self, entries, level: int) -> Manifest:
        manifest, data = manifests.encode(entries, level, None)
        assert manifests.decode(manifest, data, None, 1) == tuple(entries)
        self.written[manifest.name] = tuple(entries)
        return manifest

    def read(self, manifest: Manifest) -> tuple[Entry, ...]:
        return self.written[manifest.name]


def segment(first: int, steps: int, size: int) -> Segment:
    return Segment(
        first, StepsInfo(steps, 1000 + size, f"{first:020x}{first + steps:020x}"), (((first, first + 1),),)
    )


def edited(entries, new: Segment, lists: Lists) -> list[Entry]:
    """The list with another file in the place of the one with the same first step."""
    found = list(entries)
    at = max(i for i, entry in enumerate(entries) if entry.first <= new.first)
    if isinstance(found[at], Manifest):
        found[at] = lists.write(edited(lists.read(found[at]), new, lists), found[at].level)
    else:
        found[at] = new
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([(2, 2, 2), (3, 2, 1), (2, 3, 3), (16, 8, 3)]))
def test_a_packed_list_is_the_plain_list(seed: int, sizes: tuple[int, int, int]) -> None:
    chance, lists = random.Random(seed), Lists()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in zip(("LOOSE", "FAN", "FLAT_LEVEL"), sizes, strict=True):
            patch.setattr(packing, name, value)
        loose, fan, flat = sizes
        packed: tuple[Entry, ...] = ()
        plain: list[Segment] = []
        oldest = at = 0

        def is_live(entry: Entry) -> bool:
            return entry.stop > oldest

        for _ in range(chance.randint(1, 250)):
            entries = list(packed)
            move = chance.random()
            if move < 0.1 and len(plain) > 4:  # merge some neighbours, often the newest
                stop = len(plain) if chance.random() < 0.7 else chance.randint(2, len(plain))
                start = chance.randint(max(0, stop - 3 * loose), stop - 2)
                cuts = [start, stop] if stop - start < 5 else [start, start + 2, stop - 1]
                merged = []
                for a, b in reversed(list(itertools.pairwise(cuts))):
                    old = plain[a:b]
                    new = segment(old[0].first, old[-1].stop - old[0].first, 7)
                    merged.append(merge.Merged.of(old, new))
                    plain[a:b] = [new]
                entries = list(packing.spliced(entries, merged, lists.read, is_live))
                assert list(packing.unpacked(entries, lists.read, is_live)) == plain
                again = packing.spliced(entries, merged, lists.read, is_live)  # are not listed any more
                assert list(packing.unpacked(again, lists.read, is_live)) == plain
            elif move < 0.2 and plain:  # another file in the place of one
                k = chance.randrange(len(plain))
                plain[k] = replace(plain[k], steps=replace(plain[k].steps, bytes=999 + chance.randint(1, 9)))
                entries = edited(entries, plain[k], lists)
            for _ in range(chance.choice([1, 1, 1, 2, 9])):
                steps = chance.randint(1, 5)
                plain.append(segment(at, steps, 1))
                entries.append(plain[-1])
                at += steps
            if chance.random() < 0.3:
                oldest = chance.randint(oldest, at - 1)
            can_read = chance.random() < 0.9  # a manifest may be damaged, or elsewhere
            packed = packing.pack(
                entries,
                lists.read if can_read else lambda manifest: None,
                lists.write,
                is_live,
            )
            plain = [file for file in plain if file.stop > oldest]
            found = list(packing.unpacked(packed, lists.read, is_live))
            assert found == plain
            assert [e.stop for e in packed[:-1]] == [e.first for e in packed[1:]]
            tail = [entry for entry in packed if not isinstance(entry, Manifest)]
            assert len(tail) < 2 * loose
            for entry in packed:
                assert entry.stop > oldest
                if isinstance(entry, Manifest):
                    below = lists.read(entry)
                    assert len(below) <= max(fan, packing.size_of(flat))
                    assert entry.level <= flat or all(isinstance(e, Manifest) for e in below)


def test_a_list_of_any_length_has_few_entries() -> None:
    lists, packed, longest = Lists(), (), 0
    for k in range(20_000):
        packed = packing.pack([*packed, segment(k, 1, 1)], lists.read, lists.write, lambda entry: True)
        longest = max(longest, len(packed))
    assert longest <= 31 + 7 * 5
    assert sum(entry.files if isinstance(entry, Manifest) else 1 for entry in packed) == 20_000
    # each file is listed again once per level
    assert sum(len(entries) for entries in lists.written.values()) < 4 * 20_000


# --- rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("most", [1, 5])
def test_rows_that_were_deleted_are_not_listed_again(tmp_path, small, monkeypatch, most):
    """Some rows are used for ever, those between them are not, and the ranges of live rows are coarse.

    Which gaps between the ranges are closed changes from commit to commit: a file in a gap that was open for
    one commit is gone.
    """
    monkeypatch.setattr(writer, "MOST_LIVE_RANGES", most)
    path, spec = tmp_path / "lake", lp.Spec(obs=lp.Field((2, 16), "int64", rows=0))

    def observation(n: int, t: int) -> np.ndarray:
        lasting = 1_000_000 + n % min(6, 1 + n // 30)  # one more every 30 steps
        return np.stack([np.full(16, lasting), np.full(16, t)])

    how = {"max_steps": 20, "keep_last": 1, "merge_after": None}
    with lp.Replay.open(path, spec, capacity=20, **how) as replay:
        for n in range(360):
            replay.record(
                obs=observation(n, n),
                next_obs=observation(n, n + 1),
                action=0,
                reward=float(n),
                terminated=False,
                truncated=True,
            )
            if n % 4 == 3:
                commit = replay.commit()
                settle(replay)
                assert len(commit.live_rows[0]) <= max(2, most)
                with lp.Lake.open(path) as lake:
                    lake.verify()
                    assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()
                    batch = lake.steps(commit.oldest, commit.recorded)
                    for i, k in enumerate(range(commit.oldest, commit.recorded)):
                        assert np.array_equal(batch.obs[i], observation(k, k))
                        assert np.array_equal(batch.next_obs[i], observation(k, k + 1))
        assert len(names.segment_files(path / "segments")) < 60


# --- a random walk -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    content: int
    truncated: bool


@dataclass(frozen=True)
class Known:
    """What a commit must hold: the steps [oldest, oldest + len(steps))."""

    oldest: int
    steps: tuple[Step, ...]


def check_steps(lake: lp.Lake, known: Known, world: str) -> None:
    lake.verify()
    assert (lake.commit.oldest, lake.commit.recorded) == (known.oldest, known.oldest + len(known.steps))
    if not known.steps:
        return
    batch = lake.steps(lake.commit.oldest, lake.commit.recorded)
    assert batch.reward.tolist() == list(range(known.oldest, lake.commit.recorded))
    for i, step in enumerate(known.steps):
        expected = step_of(world, step.content)
        for name in ("obs", "next_obs", "action"):
            assert same_bytes(item(getattr(batch, name), i), expected[name])
        assert batch.truncated[i] == step.truncated
        assert batch.terminated[i] == expected["terminated"]


class LakeMachine(RuleBasedStateMachine):
    """Commits, merges, ends, retention, readers; after every commit the disk has what kept commits name."""

    world = "market window"
    cycle = 60
    """contents repeat after this many steps, and with them rows that were recorded long ago"""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="lakepond-lake-"))
        self.path = self.folder / "lake"
        self.known: dict[int, Known] = {}
        self.kept: list[int] = []
        self.readers: list[tuple[lp.Lake, Known]] = []
        self.replay: lp.Replay | None = None
        self.chance = random.Random(0)

    options = st.fixed_dictionaries(
        {
            "max_steps": st.sampled_from([None, 20, 45]),
            "keep_last": st.sampled_from([None, 1, 1, 3]),
            "merge_after": st.sampled_from([None, 2, 6]),
        }
    )

    @initialize(options=options, seed=st.integers(0, 1000))
    def start(self, options: dict, seed: int) -> None:
        self.chance = random.Random(seed)
        self.open(options, None)

    def open(self, options: dict, commit: int | None) -> None:
        self.options = options
        self.replay = lp.Replay.open(
            self.path, spec_of(self.world), capacity=20, alpha=0.5, commit=commit, **options
        )
        last = self.replay._outflow.background.writer.last
        now = Known(0, ()) if last is None else self.known[last.number]
        self.oldest, self.steps = now.oldest, list(now.steps)

    @rule(counts=st.lists(st.integers(0, 12), min_size=1, max_size=6), jump=st.integers(0, 60))
    def commit(self, counts: list[int], jump: int) -> None:
        """Steps whose rows were recorded before, some of them long ago."""
        for count in counts:
            for _ in range(count):
                n = self.oldest + len(self.steps)
                content = (n + jump) % self.cycle
                step = step_of(self.world, content)
                self.replay.record(**(step | {"reward": float(n)}))
                self.steps.append(Step(content, step["truncated"]))
            commit = self.replay.commit()
            settle(self.replay)
            self.known[commit.number] = self.committed()
            self.check_kept(commit)
            self.check_files()

    @rule(stream=st.integers(0, 2))
    def end(self, stream: int) -> None:
        try:
            at = self.replay.end(stream)
        except lp.UnknownStream:
            return
        step = self.steps[at - self.oldest]
        if not step.truncated and not step_of(self.world, step.content)["terminated"]:
            self.steps[at - self.oldest] = replace(step, truncated=True)

    @rule(options=options)
    def reopen(self, options: dict) -> None:
        self.close()
        self.open(options, None)

    @rule(options=options, which=st.integers(0, 100))
    def resume(self, options: dict, which: int) -> None:
        """Continue after an older commit."""
        self.close()
        numbers = commits.numbers(self.path / "commits")
        if numbers:
            self.open(options, numbers[which % len(numbers)])
        else:
            self.open(options, None)

    @rule(keep_last=st.sampled_from([None, 1, 2]))
    def compact(self, keep_last: int | None) -> None:
        self.close()
        if self.known:
            with lp.Lake.open(self.path) as lake:
                before = self.known[lake.commit.number]
                lake.compact(keep_last=keep_last)
                self.known[lake.commit.number] = before
                self.kept = lake.commits()
                check_steps(lake, before, self.world)
        self.open(self.options, None)
        self.check_files()

    @precondition(lambda self: len(self.readers) < 3)
    @rule(which=st.integers(0, 100))
    def read(self, which: int) -> None:
        numbers = commits.numbers(self.path / "commits")
        if numbers:
            number = numbers[which % len(numbers)]
            self.readers.append((lp.Lake.open(self.path, number), self.known[number]))

    @precondition(lambda self: self.readers)
    @rule()
    def stop_reading(self) -> None:
        lake, known = self.readers.pop(0)
        check_steps(lake, known, self.world)
        lake.close()

    def close(self) -> None:
        """Closing commits what was recorded or ended since the last commit, if anything was."""
        before = set(commits.numbers(self.path / "commits"))
        self.replay.close()
        self.kept = commits.numbers(self.path / "commits")
        for number in set(self.kept) - before:
            self.known[number] = self.committed()
        self.replay = None

    def committed(self) -> Known:
        dropped = max(0, len(self.steps) - (self.options["max_steps"] or len(self.steps)))
        self.oldest, self.steps = self.oldest + dropped, self.steps[dropped:]
        return Known(self.oldest, tuple(self.steps))

    def check_kept(self, last: commits.Commit) -> None:
        numbers = commits.numbers(self.path / "commits")
        needed = {lake.commit.number for lake, _ in self.readers} | {last.number}
        keep_last = self.options["keep_last"]
        if keep_last is not None:
            newest = sorted({*self.kept, last.number})[-keep_last:]
            assert len(set(numbers) - needed) <= keep_last
            needed |= set(newest)
            assert set(numbers) == needed
        assert needed <= set(numbers)
        self.kept = numbers
        for number in {*self.chance.sample(numbers, min(2, len(numbers))), last.number}:
            with lp.Lake.open(self.path, number) as lake:
                check_steps(lake, self.known[number], self.world)

    def check_files(self) -> None:
        """No file is missing and none is left, but those that are merged and wait for the next commit."""
        named: set[str] = set()
        for number in commits.numbers(self.path / "commits"):
            with lp.Lake.open(self.path, number) as lake:
                named |= dict(lake.files()).keys()
        merged = self.replay._outflow.background.writer.maintenance._merged
        there = names.segment_files(self.path / "segments").keys()
        named |= {each.new.name for each in merged}
        assert (sorted(there - named), sorted(named - there)) == ([], [])

    def teardown(self) -> None:
        if self.replay is not None:
            self.replay.close()
        for lake, known in self.readers:
            check_steps(lake, known, self.world)
            lake.close()
        shutil.rmtree(self.folder)


class FramesMachine(LakeMachine):
    world, cycle = "frames first", 1 << 30


class DictMachine(LakeMachine):
    world, cycle = "dict and tuple", 40


@pytest.mark.parametrize("machine", [LakeMachine, FramesMachine, DictMachine])
def test_a_walk_of_commits_merges_ends_and_readers(machine, small):
    run_state_machine_as_test(
        machine, settings=settings(max_examples=15, stateful_step_count=14, deadline=None)
    )


# --- files -------------------------------------------------------------------------------------------


def test_a_file_whose_content_comes_twice_stays_while_one_place_is_live(tmp_path, small):
    """The same four steps again and again: files of the same name at different places of the list."""
    path, world = tmp_path / "lake", "vector"
    repeated = 0
    how = {"max_steps": 24, "keep_last": 1, "merge_after": None}
    with lp.Replay.open(path, spec_of(world), capacity=20, **how) as replay:
        for k in range(30):
            for n in range(4 * (k % 3), 4 * (k % 3) + 4):
                replay.record(**step_of(world, n))
            commit = replay.commit()
            settle(replay)
            with lp.Lake.open(path) as lake:
                lake.verify()
                there = [stored.name for stored in lake.reader.stored()]
                repeated += len(there) > len(set(there))
                assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()
                wanted = [float(i % 12) for i in range(commit.oldest, commit.recorded)]
                assert lake.steps(commit.oldest, commit.recorded).reward.tolist() == wanted
    assert repeated > 20
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
        assert lake.steps(commit.oldest, commit.recorded).reward.tolist() == wanted
        assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()


def test_a_commit_stays_small_over_thousands_of_commits(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # 12,000 of them
    path, sizes = tmp_path / "lake", []
    with lp.Replay.open(path, spec_of("frames first"), capacity=50) as replay:
        for n in range(3000):
            record(replay, "frames first", n, n + 1)
            number = replay.commit().number
            sizes.append((path / "commits" / commits.file_name(number)).stat().st_size)
        settle(replay)  # merging is behind on a busy machine
        replay.commit()
    assert max(sizes) < 1.5 * max(sizes[:100])
    with lp.Lake.open(path) as lake:
        assert {1, 2} <= levels(lake)
        lake.verify()
        batch = lake.steps(0, 3000)
        for i in range(0, 3000, 7):
            agrees(batch, i, "frames first")
        assert lake.stats().files < 600  # small files are merged
    for number in (0, 1000, 2000):
        with lp.Lake.open(path, number) as lake:
            agrees(lake.steps(0, number + 1), number, "frames first")


def many_commits(path: Path, count: int = 40, **how: object) -> None:
    """One step per commit: most files are in manifests."""
    with lp.Replay.open(path, spec_of("frames first"), capacity=100, merge_after=None, **how) as replay:
        for n in range(count):
            record(replay, "frames first", n, n + 1)
            replay.commit()


def test_opening_checks_the_newest_files_and_reading_the_others(tmp_path, small):
    path = tmp_path / "lake"
    many_commits(path)
    with lp.Lake.open(path) as lake:
        assert {1, 2, 3} <= levels(lake)
        named = lake.commit.named()
        first = next(lake.reader.stored())
        assert first.name not in named
    data = (path / "segments" / first.name).read_bytes()
    for broken in (None, data[:-1], data[:100] + bytes([data[100] ^ 1]) + data[101:]):
        (path / "segments" / first.name).unlink()
        if broken is not None:
            (path / "segments" / first.name).write_bytes(broken)
        with lp.Lake.open(path) as lake:
            agrees(lake.steps(20, 40), 19, "frames first")
            with pytest.raises(lp.LakeCorrupt):
                lake.verify()
            if broken is None or len(broken) < len(data):
                with pytest.raises(lp.LakeCorrupt):
                    lake.steps(0, 40)
        (path / "segments" / first.name).write_bytes(data)


@pytest.mark.parametrize("gone", [True, False])
def test_repair_goes_back_to_commits_without_a_damaged_manifest(tmp_path, small, monkeypatch, gone):
    path = tmp_path / "lake"
    many_commits(path)
    with lp.Lake.open(path) as lake:
        inner = next(e for e in lake.commit.segments if isinstance(e, Manifest) and e.level > 2)
        manifest = lake.reader.heads[0].catalog.read(inner, None)[-1]
        assert isinstance(manifest, Manifest)
    file = path / "segments" / manifest.name
    before = {each.name: each.read_bytes() for each in path.rglob("*.*") if each.is_file()}
    if gone:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-3] + b'x"}')
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    with lp.Lake.open(path) as lake:  # it is not one of those that the commit names itself
        with pytest.raises(lp.LakeCorrupt):
            lake.verify()
        with pytest.raises(lp.LakeCorrupt):
            lake.steps(0, 40)
    done = lp.repair(path)
    assert done.newest is not None
    assert done.newest >= 4
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == done.newest
        lake.verify()
        batch = lake.steps(0, len(lake))
        for i in range(len(lake)):
            agrees(batch, i, "frames first")
    after = {each.name: each.read_bytes() for each in path.rglob("*.*") if each.is_file()}
    assert {n: d for n, d in after.items() if n != file.name} == {
        n: d for n, d in before.items() if n != file.name
    }
    assert lp.repair(path).quarantined == ()
    many = len(lake)
    with lp.Replay.open(path, capacity=100) as replay:
        record(replay, "frames first", many, many + 30)
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert len(lake) == many + 30


def test_commits_go_on_though_a_manifest_is_damaged(tmp_path, small, monkeypatch):
    """New steps are durable, and `verify` finds the damage."""
    path = tmp_path / "lake"
    how = {"max_steps": 100, "merge_after": 4}
    with lp.Replay.open(path, spec_of("frames first"), capacity=100, **how) as replay:
        for n in range(200):
            record(replay, "frames first", n, n + 1)
            replay.commit()
            if n % 20 == 10:
                for file in (path / "segments").glob("*.manifest"):
                    file.write_bytes(b"x" * file.stat().st_size)
                monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    assert commits.numbers(path / "commits") == list(range(200))
    with lp.Lake.open(path) as lake:
        assert (lake.commit.oldest, lake.commit.recorded) == (100, 200)
        agrees(lake.steps(197, 200), 2, "frames first")


def test_three_threads_sample_verify_and_export_one_lake(tmp_path, small, monkeypatch):
    from lakepond.lake.read import reader

    monkeypatch.setattr(reader, "OPEN_BLOCKS", 64)  # files are closed and opened all the time
    path, world = tmp_path / "lake", "frames first"
    many_commits(path, 120)
    failed: list[BaseException] = []
    with lp.Lake.open(path) as lake:

        def sample(seed: int) -> None:
            rng = np.random.default_rng(seed)
            kinds: list[dict] = [{}, {"n_step": 3, "gamma": 0.5}, {"sequence_length": 2}, {"replace": False}]
            try:
                for k in range(60):
                    batch = lake.sample(16, rng=rng if k % 2 else None, **kinds[k % 4])
                    if not kinds[k % 4]:
                        for i in range(16):
                            agrees(batch, i, world)
                    first = int(rng.integers(0, 100))
                    agrees(lake.steps(first, first + 20), 19, world)
                if seed == 0:
                    lake.verify()
                elif seed == 1:
                    assert sum(batch.num_rows for batch in lake.to_arrow(next_obs=False)) == len(lake)
                else:
                    assert sum(episode.steps for episode in lake.episodes()) == len(lake)
            except BaseException as error:
                failed.append(error)

        threads = [threading.Thread(target=sample, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failed == []
