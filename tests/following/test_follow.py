"""A follower has the steps of all writers of a lake: each once, in order, while they are being written."""

from __future__ import annotations

import copy
import pickle
import random
import signal
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
from collectors import (
    EPISODE,
    MANY_WORLDS,
    QUICK,
    STREAMS,
    Collector,
    agrees,
    catch_up,
    each_once_in_order,
    process,
    spec_of,
    steps_in,
    wait_until,
)
from scipy import stats

import lakepond as lp
from faults.forks import in_child
from lakepond.flow import lake_to_pond
from lakepond.flow.following import follower
from lakepond.flow.following.chains import LocalChains
from lakepond.lake.format.commits import Start, numbers
from lakepond.pond.observations import part_of
from reference import WORLDS


@pytest.mark.parametrize("world", MANY_WORLDS)
def test_steps_of_all_writers_arrive_while_they_are_written(tmp_path, world):
    path = tmp_path / "lake"
    a, b = (Collector(path, who, world) for who in (0, 1))
    a.record(40)
    with lp.Replay.follow(path, 1_000, **QUICK) as replay:
        each_once_in_order(replay, {0: (0, 40)})
        b.record(5)  # a writer that starts later
        a.record(3)
        a.record(30, commit=False)
        b.record(60)
        c = Collector(path, 2, world)
        c.record(33)
        wait_until(lambda: len(replay) == 43 + 65 + 33)
        each_once_in_order(replay, {0: (0, 43), 1: (0, 65), 2: (0, 33)})
        agrees(replay.recent(len(replay)), world)
        agrees(replay.sample(64, rng=np.random.default_rng(0)), world)
        for each in (a, b, c):
            each.close()
        wait_until(lambda: len(replay) == 73 + 65 + 33)  # what `close` commits
    each_once_in_order(replay, {0: (0, 73), 1: (0, 65), 2: (0, 33)})
    agrees(replay.recent(len(replay)), world)  # closed: it can be sampled


def links_are_right(replay: lp.Replay, n: int = 4, gamma: float = 0.9) -> None:
    """N-step returns within the episodes of each stream of each writer, as far as the steps are there."""
    there = set(steps_in(replay))
    batch = replay.steps(np.arange(replay.oldest, replay.recorded), n_step=n, gamma=gamma)
    plain = replay.steps(np.arange(replay.oldest, replay.recorded))
    for i, (who, first) in enumerate(zip(plain.extras["who"].tolist(), plain.reward.tolist(), strict=True)):
        total, at, count = 0.0, int(first), 0
        while count < n and (who, at) in there:
            total += gamma**count * at
            count += 1
            if at // STREAMS % EPISODE == EPISODE - 1:
                break
            at += STREAMS
        assert batch.num_steps[i] == count
        assert batch.reward[i] == pytest.approx(total, rel=1e-6)


def test_links_span_the_commits_of_a_writer_and_never_two_writers(tmp_path):
    path = tmp_path / "lake"
    writers = [Collector(path, who) for who in range(3)]
    with lp.Replay.follow(path, 200, **QUICK) as replay:
        chance, recorded = random.Random(0), [0, 0, 0]
        for _ in range(40):
            who = chance.randrange(3)
            count = chance.randrange(1, 20)
            writers[who].record(count)
            recorded[who] += count
        wait_until(lambda: replay.recorded == sum(recorded))
        assert len(replay) == 200  # the oldest were evicted
        links_are_right(replay)
        batch = replay.sample(64, sequence_length=4, rng=np.random.default_rng(1))
        assert (np.diff(batch.reward, axis=1) == STREAMS).all()
        assert (batch.extras["who"] == batch.extras["who"][:, :1]).all()
        assert not batch.terminated[:, :-1].any()
        assert not batch.truncated[:, :-1].any()
    for each in writers:
        each.close()


def test_every_step_is_drawn_with_the_same_chance(tmp_path):
    path = tmp_path / "lake"
    writers = [Collector(path, who) for who in range(3)]
    with lp.Replay.follow(path, 90, seed=3, **QUICK) as replay:
        for _ in range(5):
            for each in writers:
                each.record(9)
        wait_until(lambda: replay.recorded == 135)
        drawn = replay.sample(90 * 200).step_id
        counts = np.bincount(drawn - replay.oldest, minlength=90)
        assert stats.chisquare(counts).pvalue > 1e-4
        assert len(counts) == 90
    for each in writers:
        each.close()


def test_priorities_are_those_of_the_follower(tmp_path):
    path = tmp_path / "lake"
    writer = Collector(path, 0, alpha=0.6)
    writer.record(20)
    writer.replay.update_priorities(np.arange(20), np.full(20, 50.0))  # nobody else's business
    writer.record(10)
    with lp.Replay.follow(path, 100, alpha=1.0, **QUICK) as replay:
        assert len(replay) == 30
        replay.update_priorities(np.arange(30), np.where(np.arange(30) < 15, 1.0, 0.0))
        batch = replay.sample(256, rng=np.random.default_rng(0), beta=1.0)
        assert (batch.step_id < 15).all()
        writer.record(10)  # new steps get the largest priority
        wait_until(lambda: len(replay) == 40)
        drawn = replay.sample(2_500, rng=np.random.default_rng(1)).step_id
        counts = np.bincount(drawn, minlength=40)
        assert counts[15:30].max() == 0
        assert stats.chisquare(counts[np.r_[:15, 30:40]]).pvalue > 1e-4
    writer.close()


def test_more_steps_than_fit_are_loaded_in_equal_shares_and_in_turns(tmp_path):
    path = tmp_path / "lake"
    for who, count in enumerate([3_000, 20_000, 20_000]):
        writer = Collector(path, who, capacity=30_000)
        n, ended = np.arange(count), np.zeros(count, bool)
        obs = np.zeros((count, *WORLDS["vector"].fields.shape), WORLDS["vector"].fields.dtype)
        writer.replay.record(
            obs=obs,
            next_obs=obs,
            action=np.stack([n, n], 1).astype(np.float32),
            reward=n,
            terminated=ended,
            truncated=ended,
            who=np.full(count, who),
            stream=0,
        )
        writer.close()
    with lp.Replay.follow(path, 13_000, **QUICK) as replay:
        each_once_in_order(replay, {0: (0, 3_000), 1: (15_000, 20_000), 2: (15_000, 20_000)})
        who = np.array(steps_in(replay))[:, 0]
        for part in np.array_split(who[:10_000], 2):  # not one writer after the other
            assert set(part) == {0, 1, 2}
        assert replay.lag().missed == 0


def test_a_follower_that_is_slower_than_its_writers(tmp_path, paused):
    """It reads the steps that are left, cuts links at the gap and counts the missed ones."""
    path = tmp_path / "lake"
    writer = Collector(path, 1, max_steps=100, keep_last=1)
    writer.record(30)
    with paused(path, 1_000) as replay:
        each_once_in_order(replay, {1: (0, 30)})
        for _ in range(25):
            writer.record(10)
        writer.replay.flush()
        catch_up(replay)
        found = [n for _, n in steps_in(replay)]
        lag = replay.lag()["collector-1"]
        assert found[:30] == list(range(30))
        assert found[30:] == list(range(280 - (len(found) - 30), 280))
        assert lag.missed == 280 - len(found) > 0
        assert lag.steps == len(found)
        assert lag.commit == writer.replay.lake().commit.number
        assert lag.steps_behind == lag.bytes_behind == 0
        links_are_right(replay)
    writer.close()


def test_nothing_is_read_that_would_be_evicted_at_once(tmp_path, paused):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(10)
    with paused(path, 50) as replay:
        for _ in range(5):
            writer.record(30)
        catch_up(replay)
        each_once_in_order(replay, {1: (110, 160)})
        assert replay.lag().missed == 100
        links_are_right(replay)
    writer.close()


@pytest.mark.parametrize("keep_last", [None, 1])
def test_an_episode_that_is_ended_after_it_was_read(tmp_path, paused, keep_last):
    """Also if the commit that did it was deleted before the follower saw it."""
    path = tmp_path / "lake"
    writer = Collector(path, 1, keep_last=keep_last)
    writer.record(9)
    with paused(path, 100) as replay:
        assert not replay.recent(9).truncated.any()
        writer.replay.end(0)  # step 6
        ended = writer.replay.commit().number
        writer.record(6)
        writer.record(6)
        if keep_last:
            wait_until(lambda: ended not in numbers(path / "writers" / "collector-1" / "commits"))
        catch_up(replay)
        batch = replay.recent(21)
        assert batch.reward[batch.truncated].tolist() == [6.0, 19.0]
        assert replay.steps([5, 6, 7], n_step=3, gamma=1.0).num_steps.tolist() == [3, 1, 3]
    writer.close()


def test_a_writer_that_goes_back_to_an_earlier_commit_records_other_steps(tmp_path):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    for _ in range(4):
        writer.record(10)
    with lp.Replay.follow(path, 100, **QUICK) as replay:
        wait_until(lambda: len(replay) == 40)
        writer.close()
        again = Collector(path, 1, commit=1)  # 20 steps
        again.record(15)
        wait_until(lambda: len(replay) == 55)
        assert [n for _, n in steps_in(replay)] == [*range(40), *range(20, 35)]
        batch = replay.steps(np.arange(37, 40), n_step=2, gamma=1.0)
        assert (batch.num_steps == 1).all()  # the new steps 20, 21, ... do not continue the old ones
        again.close()
        scratch = Collector(path, 1, commit=Start.EMPTY)
        scratch.record(5)
        wait_until(lambda: len(replay) == 60)
        assert [n for _, n in steps_in(replay)][-5:] == list(range(5))
        scratch.close()


@pytest.mark.parametrize("count", [3, 12])
def test_a_writer_that_went_back_to_a_commit_whose_successor_is_gone(tmp_path, paused, count):
    """Its new steps are read from the first one that differs, also if it has not passed the old ones."""
    path = tmp_path / "lake"
    commits = path / "writers" / "collector-1" / "commits"
    writer = Collector(path, 1)
    for _ in range(4):
        writer.record(10)
    with paused(path, 500) as replay:
        writer.close()
        writer = Collector(path, 1, commit=2, keep_last=1)
        writer.who = 5
        for _ in range(count):
            writer.record(3)
        writer.replay.flush()
        wait_until(lambda: len(numbers(commits)) == 2)  # the newest and the one that was read
        catch_up(replay)
        expected = [*((1, n) for n in range(40)), *((5, n) for n in range(30, 30 + 3 * count))]
        assert steps_in(replay) == expected
        assert (replay.steps(np.arange(37, 40), n_step=2, gamma=1.0).num_steps == 1).all()
        assert replay.lag().missed == 0
    writer.close()


def test_as_many_commits_as_are_looked_for_at_once_were_deleted_before_they_were_read(
    tmp_path, paused, monkeypatch
):
    """The follower continues with the next one, and has the flags and links of all."""
    monkeypatch.setattr(follower, "MOST_COMMITS", 4)
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(9)
    with paused(path, 500) as replay:
        writer.replay.end(0)  # step 6
        for _ in range(6):
            writer.record(3)
        chain = replay._follower.states["collector-1"]
        replay._follower._look(chain)
        assert [commit.number for commit in chain.pending] == [1, 2, 3, 4]
        writer.close()
        with lp.Lake.open(path, writer="collector-1") as lake:
            lake.compact(keep_last=1)
        for _ in range(3):
            replay._follower.poll()
        each_once_in_order(replay, {1: (0, 27)})
        assert replay.lag()["collector-1"].error is None
        assert replay.steps([5, 6, 7], n_step=3, gamma=1.0).num_steps.tolist() == [3, 1, 3]


def test_clocks_of_two_machines_are_not_compared(tmp_path, paused, monkeypatch):
    """All commits are found at once, although the writer's clock is ahead."""
    found = LocalChains.next

    def ahead(*arguments):
        commit = found(*arguments)
        return commit and replace(commit, time=f"{datetime.fromisoformat(commit.time) + timedelta(hours=1)}")

    monkeypatch.setattr(LocalChains, "next", ahead)
    writer = Collector(tmp_path / "lake", 1)
    writer.record(5)
    with paused(tmp_path / "lake", 500) as replay:
        for count in (60, 115):
            for _ in range(11):
                writer.record(5)
            replay._follower.poll()
            assert len(replay) == count
    writer.close()


def test_a_read_that_fails_half_way_continues_there(tmp_path, paused, monkeypatch):
    """Also of the first commit after its writer went back, and if only a part of an append succeeds."""
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    for _ in range(4):
        writer.record(10)
    expected = list(range(40))
    with paused(path, 500) as replay:
        monkeypatch.setattr(lake_to_pond, "PART_BYTES", 1)  # every file of steps by itself
        held, append = lake_to_pond.held, replay._pond.append
        failing = {"reads": 0, "appends": 0}

        def flaky_held(*arguments):
            failing["reads"] += 1
            if failing["reads"] % 2 == 0:
                raise OSError("half-way")
            return held(*arguments)

        def flaky_append(streams, values, *, join):
            failing["appends"] += 1
            if failing["appends"] % 3 or len(streams) < 4:
                return append(streams, values, join=join)
            append(streams[:3], [part_of(each, 0, 3) for each in values], join=join[:3])
            raise MemoryError("no room for the rest")

        monkeypatch.setattr(lake_to_pond, "held", flaky_held)
        monkeypatch.setattr(replay._pond, "append", flaky_append)
        for commit in (None, 1):
            writer.close()
            writer = Collector(path, 1, commit=commit)
            first = writer.replay.recorded
            for _ in range(3):
                writer.record(10)
            expected += range(first, first + 30)
            for _ in range(30):
                replay._follower.poll()
            assert [n for _, n in steps_in(replay)] == expected
        assert replay.stats().background_failures > 3
        agrees(replay.recent(len(replay)))
    writer.close()


def test_writers_that_are_killed(tmp_path):
    """Every committed step arrives once and in order, whatever happens to the writers."""
    path, steps = tmp_path / "lake", 600
    lp.Replay.open(path, spec_of(), 10).close()
    chance, acknowledged = random.Random(1), dict.fromkeys((1, 2, 3), 0)
    with lp.Replay.follow(path, 10_000, **QUICK) as replay:
        running = {who: process(path, who, steps, 10) for who in acknowledged}
        kills = 3
        while running:
            for who, writer in list(running.items()):
                line = writer.stdout.readline()
                if line:
                    acknowledged[who] = int(line)
                    if kills and chance.random() < 0.05:
                        kills -= 1
                        writer.send_signal(signal.SIGKILL)
                        writer.communicate()
                        running[who] = process(path, who, steps, 10)
                else:
                    assert writer.wait() == 0
                    writer.stdout.close()
                    del running[who]
        assert set(acknowledged.values()) == {steps}
        wait_until(lambda: len(replay) >= 3 * steps)
        each_once_in_order(replay, {who: (0, steps) for who in acknowledged})
        lag = replay.lag()
        assert lag.missed == lag.steps_behind == replay.stats().background_failures == 0
        links_are_right(replay)
    agrees(replay.recent(300))


def test_recording_to_it_is_refused_in_one_sentence(tmp_path):
    path = tmp_path / "lake"
    writer = Collector(path, 0)
    writer.record(10)
    with lp.Replay.follow(path, 100) as replay:
        for call in (
            lambda: replay.record(obs=1),
            lambda: replay.save(tmp_path / "other"),
            replay.commit,
            replay.clear,
            lambda: replay.cut(0),
            lambda: replay.end(0),
            replay.lake,
        ):
            with pytest.raises(lp.LakeReadOnly, match=r"follows .*lake and can be sampled"):
                call()
    writer.close()


def test_wrong_arguments(tmp_path):
    with pytest.raises(lp.LakeNotFound):
        lp.Replay.follow(tmp_path / "nothing", 100)
    Collector(tmp_path / "lake", 0).close()
    for wrong, why in [
        ({"min_steps": 101}, "min_steps=101 must be between 0 and the capacity of 100"),
        ({"samples_per_insert": 0}, "samples_per_insert must be above 0"),
        ({"poll_every": "soon"}, "'soon' is not a valid length of time"),
        ({"poll_every": 0}, "not a valid length of time"),
    ]:
        with pytest.raises(lp.SpecError, match=why):
            lp.Replay.follow(tmp_path / "lake", 100, **wrong)


def test_copies_and_forked_children_have_the_steps_and_follow_nothing(tmp_path):
    path = tmp_path / "lake"
    writer = Collector(path, 0)
    writer.record(30)
    with lp.Replay.follow(path, 100, min_steps=31, **QUICK) as replay:
        for other in (pickle.loads(pickle.dumps(replay)), copy.deepcopy(replay)):
            assert type(other) is lp.Replay
            assert steps_in(other) == steps_in(replay)
            with pytest.raises(lp.LakeReadOnly):
                other.record(obs=1)

        def in_the_child() -> tuple[int, str]:
            try:
                replay.sample(4)
            except lp.SampleTimeout as error:
                replay.close()
                return len(replay.recent(30).reward), str(error)

        count, message = in_child(in_the_child)
        assert count == 30
        assert "forked child" in message
        writer.record(30)
        wait_until(lambda: len(replay) == 60)
    writer.close()


def test_a_shared_file_system_is_warned_of_once(tmp_path, monkeypatch, caplog):
    Collector(tmp_path / "lake", 0).close()
    monkeypatch.setattr("lakepond.machine.file_system", lambda path: "nfs4")
    with lp.Replay.follow(tmp_path / "lake", 100):
        pass
    assert caplog.text.count("is on nfs4") == 1


def test_a_dropped_follower_ends_its_thread(tmp_path):
    Collector(tmp_path / "lake", 0).close()
    replay = lp.Replay.follow(tmp_path / "lake", 100, **QUICK)
    thread = replay._follower._thread
    del replay
    thread.join(10)
    assert not thread.is_alive()
