"""A snapshot names one view of all chains: same steps, ids, order and batches, also much later."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from collectors import (
    MANY_WORLDS,
    QUICK,
    Collector,
    agrees,
    catch_up,
    same_batch,
    steps_in,
    wait_until,
)

import lakepond as lp
from lakepond.flow.following import follower
from lakepond.lake.format.commits import Start, numbers


def batches_of(replay: lp.Replay, seed: int) -> list[lp.Batch]:
    """One batch of every kind."""
    rng = np.random.default_rng(seed)
    found = [
        replay.sample(32, rng=rng),
        replay.sample(32, rng=rng, n_step=3, gamma=0.9),
        replay.sample(8, rng=rng, sequence_length=3),
        replay.sample(16, rng=rng, replace=False),
        replay.recent(len(replay)),
    ]
    return [*found, replay.sample(16)]  # with its own generator


def are_equal(one: lp.Replay, other: lp.Replay, seed: int = 0) -> None:
    assert (one.oldest, one.recorded, len(one)) == (other.oldest, other.recorded, len(other))
    assert steps_in(one) == steps_in(other)
    for a, b in zip(batches_of(one, seed), batches_of(other, seed), strict=True):
        assert same_batch(a, b)


@pytest.mark.parametrize(
    ("world", "alpha"), [*((world, None) for world in MANY_WORLDS), ("vector", 0.6), ("frames first", 0.6)]
)
def test_a_snapshot_is_exact_and_continues(tmp_path, paused, world, alpha):
    path = tmp_path / "lake"
    writers = [Collector(path, who, world) for who in range(3)]
    chance = random.Random(world)
    with paused(path, 150, alpha=alpha, seed=1) as replay:
        for _ in range(25):
            chance.choice(writers).record(chance.randrange(1, 25))
            if chance.random() < 0.7:
                catch_up(replay)
            if alpha is not None and len(replay):
                batch = replay.sample(16)
                replay.update_priorities(batch.step_id, np.abs(np.sin(batch.reward)) * 3)
        catch_up(replay)
        snapshot = replay.snapshot()
        assert snapshot.number == 0
        assert snapshot.steps == len(replay) == 150
        writers[1].record(40)
        assert (path / "snapshots" / "0000000000.json").is_file()
        with paused(path, 150, snapshot=0) as again:
            assert len(steps_in(again)) == 150
            catch_up(replay)
            catch_up(again)
            wait_until(lambda: again.recorded == replay.recorded)
            are_equal(replay, again)
            agrees(again.recent(150), world)
            for who in (0, 2, 1):
                writers[who].record(9)
                catch_up(replay)
                catch_up(again)
                are_equal(replay, again, seed=who)
            assert again.snapshot().number == 1
    for each in writers:
        each.close()


def test_a_snapshot_while_steps_arrive(tmp_path):
    """Whenever it is taken, its steps are those of that moment, in the order of their arrival."""
    path = tmp_path / "lake"
    writers = [Collector(path, who) for who in (1, 2)]
    with lp.Replay.follow(path, 1_000, **QUICK) as replay:
        taken: list[lp.Snapshot] = []
        for _ in range(12):
            for each in writers:
                each.record(15)
            taken.append(replay.snapshot())
        wait_until(lambda: replay.recorded == 360)
        arrived = steps_in(replay)
    assert len({snapshot.recorded for snapshot in taken}) > 3
    for snapshot in taken[::3]:
        with lp.Replay.follow(path, 1_000, snapshot=snapshot.number) as again:
            wait_until(lambda again=again: len(again) == 360)
            assert steps_in(again)[: snapshot.recorded] == arrived[: snapshot.recorded]
            assert sorted(steps_in(again)) == sorted(arrived)
    for each in writers:
        each.close()


def test_retention_keeps_what_a_snapshot_names(tmp_path, paused):
    """Of named writers, too; nothing else is kept."""
    path = tmp_path / "lake"
    writers = [Collector(path, who, max_steps=100, keep_last=1, merge_after=4) for who in (0, 1)]
    for each in writers:
        for _ in range(3):
            each.record(20)
    with paused(path, 80) as replay:
        before = steps_in(replay)
        snapshot = replay.snapshot()
        first = batches_of(replay, 5)
    for each in writers:
        for _ in range(15):
            each.record(30)
    folders = [path / "commits", path / "writers" / "collector-1" / "commits"]
    named = [heads[0].commit for heads in snapshot.heads.values()]
    for folder, number in zip(folders, named, strict=True):
        newest = max(numbers(folder))
        wait_until(lambda folder=folder, kept=[number, newest]: numbers(folder) == kept)
    with paused(path, 80, snapshot=0) as again:
        assert steps_in(again) == before
        for a, b in zip(first, batches_of(again, 5), strict=True):
            assert same_batch(a, b)
        catch_up(again)
        assert again.lag().missed > 0  # dropped by max_steps
        assert steps_in(again)[-1][1] == 509
    (path / "snapshots" / "0000000000.json").unlink()
    for each in writers:
        each.record(1)
    for folder in folders:
        wait_until(lambda folder=folder: len(numbers(folder)) == 1)
    for each in writers:
        each.close()


def test_a_snapshot_that_cannot_be_read_keeps_everything(tmp_path, paused, caplog):
    path = tmp_path / "lake"
    writer = Collector(path, 1, keep_last=1)
    writer.record(5)
    with paused(path, 80) as replay:
        replay.snapshot()
    file = path / "snapshots" / "0000000000.json"
    file.write_bytes(file.read_bytes()[:-9])
    for _ in range(3):
        writer.record(5)
    wait_until(lambda: "all commits of" in caplog.text)
    assert numbers(path / "writers" / "collector-1" / "commits") == [0, 1, 2, 3]
    with pytest.raises(lp.LakeCorrupt, match=r"snapshot 0 of .* is damaged"):
        lp.Replay.follow(path, 80, snapshot=0)
    writer.close()


def test_steps_that_the_lake_dropped_cannot_be_named(tmp_path, paused):
    path = tmp_path / "lake"
    writer = Collector(path, 1, capacity=40, max_steps=40, keep_last=1)
    writer.record(40)
    with paused(path, 100) as replay:
        writer.record(30)
        catch_up(replay)
        assert len(replay) == 70
        writer.record(1)
        wait_until(lambda: 0 not in numbers(path / "writers" / "collector-1" / "commits"))
        with pytest.raises(lp.LakeNotFound, match=r"no longer in the lake .*larger max_steps or keep_last"):
            replay.snapshot()
    writer.close()
    keeping = Collector(path, 2, capacity=40, max_steps=40)  # all commits are kept: older ones have them
    with paused(path, 100) as replay:
        for _ in range(5):
            keeping.record(15)
            catch_up(replay)
        snapshot = replay.snapshot()
        assert len(snapshot.heads["collector-2"]) > 1
        with paused(path, 100, snapshot=snapshot.number) as again:
            are_equal(replay, again)
    keeping.close()


def test_a_writer_that_went_back_and_gaps(tmp_path, paused):
    path = tmp_path / "lake"
    writer = Collector(path, 1, max_steps=100)
    with paused(path, 120) as replay:
        for _ in range(4):
            writer.record(10)
            catch_up(replay)
        writer.close()
        writer = Collector(path, 1, commit=1, max_steps=100)
        writer.record(15)
        catch_up(replay)
        writer.close()
        writer = Collector(path, 1, commit=Start.EMPTY, max_steps=100)
        writer.record(8)
        catch_up(replay)
        for _ in range(15):
            writer.record(12)  # more than the lake keeps: a gap
        catch_up(replay)
        found = replay.snapshot()
        with paused(path, 120, snapshot=found.number) as again:
            are_equal(replay, again)
            writer.record(6)
            catch_up(replay)
            catch_up(again)
            are_equal(replay, again, seed=3)
    writer.close()


def test_a_writer_that_is_new_since_the_snapshot(tmp_path, paused):
    """All of its steps arrive, although the replay is full."""
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(50)
    with paused(path, 50) as replay:
        replay.snapshot()
    other = Collector(path, 2)
    other.record(20)
    with paused(path, 50, snapshot=0) as again:
        assert [n for _, n in steps_in(again)] == list(range(50))
        catch_up(again)
        assert steps_in(again) == [*((1, n) for n in range(20, 50)), *((2, n) for n in range(20))]
        assert again.lag().missed == 0
    writer.close()
    other.close()


def test_a_snapshot_in_the_middle_of_a_commit(tmp_path, paused, monkeypatch):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(10)
    monkeypatch.setattr(follower, "LEAST_STEPS", 1)
    with paused(path, 500) as replay:
        writer.record(30)
        other = Collector(path, 2)
        other.record(40)
        replay._follower._discover()
        for chain in replay._follower.states.values():
            replay._follower._look(chain)
            if chain.pending:
                replay._follower._guarded(chain, 0.5)
        assert len(replay) == 10 + 15 + 20
        number = replay.snapshot().number
        with paused(path, 500, snapshot=number) as again:
            assert steps_in(again) == steps_in(replay)
            catch_up(again)
            catch_up(replay)
            are_equal(replay, again)
            assert sorted(steps_in(again)) == [(who, n) for who in (1, 2) for n in range(40)]
    writer.close()
    other.close()


@pytest.mark.parametrize("least", [1, 1_000])
def test_a_snapshot_while_the_first_commit_is_read_after_a_writer_went_back(
    tmp_path, paused, monkeypatch, least
):
    """Half of it was read, or nothing yet; no step arrives twice and none is linked to the old ones."""
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    for _ in range(4):
        writer.record(10)
    monkeypatch.setattr(follower, "LEAST_STEPS", least)
    with paused(path, 500) as replay:
        writer.close()
        writer = Collector(path, 1, commit=1)
        writer.who = 5
        for _ in range(3):
            writer.record(10)
        chain = replay._follower.states["collector-1"]
        replay._follower._look(chain)
        replay._follower._guarded(chain, 0.5)
        assert (chain.branch, chain.number) == (1, 3)
        number = replay.snapshot().number
        with paused(path, 500, snapshot=number) as again:
            catch_up(again)
            catch_up(replay)
            assert steps_in(again) == [*((1, n) for n in range(40)), *((5, n) for n in range(20, 50))]
            are_equal(replay, again)
            with paused(path, 500, snapshot=again.snapshot().number) as third:
                are_equal(again, third)
    writer.close()


def test_a_snapshot_between_a_gap_and_the_first_step_after_it(tmp_path, paused, monkeypatch):
    path = tmp_path / "lake"
    writer = Collector(path, 1, max_steps=100, keep_last=1)
    writer.record(30)
    with paused(path, 500) as replay:
        for _ in range(25):
            writer.record(10)
        writer.replay.flush()
        append, taken = replay._follower._append_parts, []

        def after_a_snapshot(*arguments):
            taken.append(replay.snapshot().number)
            append(*arguments)

        monkeypatch.setattr(replay._follower, "_append_parts", after_a_snapshot)
        catch_up(replay)
        assert replay.lag().missed > 0
        with paused(path, 500, snapshot=taken[0]) as again:
            catch_up(again)
            are_equal(replay, again)
            batch = again.steps(np.arange(27, 30), n_step=3, gamma=1.0)
            assert (batch.num_steps == 1).all()  # no step is linked to one before the gap
    writer.close()


def test_marks_of_commits_do_not_accumulate(tmp_path, paused):
    path = tmp_path / "lake"
    writer = Collector(path, 1, capacity=20, max_steps=20)
    with paused(path, 30) as replay:
        for _ in range(50):
            writer.record(3)
            catch_up(replay)
        assert len(replay._follower.states["collector-1"].marks) <= 16 + 10
        with paused(path, 30, snapshot=replay.snapshot().number) as again:
            are_equal(replay, again)
    writer.close()


def test_numbers_are_taken_once(tmp_path, paused):
    """Several followers snapshot one lake at the same time; a file that a killed one left is no obstacle."""
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(30)
    followers = [paused(path, 50, alpha=0.5) for _ in range(3)]
    (path / "snapshots").mkdir()
    (path / "snapshots" / "0000000000.priorities").write_bytes(b"left behind")
    with ThreadPoolExecutor(3) as pool:
        made = list(pool.map(lambda replay: [replay.snapshot().number for _ in range(4)], followers))
    assert len({number for each in made for number in each}) == 12
    assert min(map(min, made)) > 0
    with pytest.raises(lp.LakeNotFound, match=r"has no snapshot 99; it has 1–\d+"):
        lp.Replay.follow(path, 50, snapshot=99)
    for each in followers:
        each.close()
    writer.close()


def test_other_settings(tmp_path, paused):
    """A smaller capacity takes the newest steps, a seed replaces the generator, alpha converts priorities."""
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(60)
    with paused(path, 60, alpha=0.5, samples_per_insert=9.0) as replay:
        replay.sample(64)
        replay.update_priorities(np.arange(60), np.linspace(0.1, 4, 60))
        number = replay.snapshot().number
        weights = replay._pond.priorities.weights(np.arange(20, 60))
    with paused(path, 40, snapshot=number, seed=7, alpha=1.0) as small:
        assert [n for _, n in steps_in(small)] == list(range(20, 60))
        assert (small.oldest, small.recorded) == (20, 60)
        assert small._follower.limits.sampled == 64
        assert np.allclose(small._pond.priorities.weights(small._pond.places(np.arange(20, 60))), weights**2)
        rng = np.random.default_rng(7)
        assert same_batch(small.sample(8), small.sample(8, rng=rng))
    writer.close()


def test_a_damaged_or_replaced_lake_is_told_apart(tmp_path, paused):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(20)
    with paused(path, 60, alpha=0.5) as replay:
        replay.snapshot()
    (path / "snapshots" / "0000000000.priorities").write_bytes(b"12345678" * 20)
    with pytest.raises(lp.LakeCorrupt, match="the priorities of snapshot 0 are damaged"):
        paused(path, 60, snapshot=0)
    writer.close()
    _replace_chain(path)
    with pytest.raises(lp.LakeCorrupt, match="is not the one that snapshot 0 names"):
        paused(path, 60, snapshot=0)


def _replace_chain(path: Path) -> None:
    import shutil

    shutil.rmtree(path / "writers")
    writer = Collector(path, 1)
    writer.record(21)
    writer.close()
