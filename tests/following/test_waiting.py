"""`sample` of a followed lake waits for steps and for the limit of samples per insert; `lag` says why."""

from __future__ import annotations

import json
import random
import threading
import time

import numpy as np
import pytest
from collectors import QUICK, Collector, wait_until

import lakepond as lp
from lakepond.cloud.store import Store
from lakepond.flow.following import follower
from lakepond.flow.following.lag import Lag, WriterLag
from lakepond.flow.following.limits import Limits
from lakepond.flow.following.positions import FOLDER, Position
from lakepond.lake.format import commits


def test_sample_waits_for_min_steps(tmp_path):
    writer = Collector(tmp_path / "lake", 1)
    with lp.Replay.follow(tmp_path / "lake", 100, min_steps=25, **QUICK) as replay:
        with pytest.raises(lp.SampleTimeout, match="0 steps are in memory, and min_steps is 25") as raised:
            replay.sample(4, timeout=0.05)
        assert isinstance(raised.value, TimeoutError | lp.TooFewSteps)
        writer.record(20)
        wait_until(lambda: len(replay) == 20)
        timeout = r"20 steps .*/lake: collector-1 made commit 0 .* 20 steps read"  # and no unnamed writer
        with pytest.raises(lp.SampleTimeout, match=timeout):
            replay.sample(4, timeout=0.05)
        threading.Timer(0.1, writer.record, (10,)).start()
        assert len(replay.sample(4, timeout=30).reward) == 4
        assert len(next(iter(replay.batches(8, 1))).reward) == 8
    writer.close()


def test_an_empty_lake_is_waited_for(tmp_path):
    writer = Collector(tmp_path / "lake", 0)
    with lp.Replay.follow(tmp_path / "lake", 100, **QUICK) as replay:
        with pytest.raises(lp.SampleTimeout, match="the writer without a name has made no commit"):
            replay.sample(1, timeout=0.02)
        threading.Timer(0.05, writer.record, (1,)).start()
        assert replay.sample(3, timeout=30).reward.tolist() == [0.0, 0.0, 0.0]
    writer.close()


def test_samples_per_insert(tmp_path):
    """The number of steps sampled exceeds the limit by less than one batch, also with several threads."""
    writer = Collector(tmp_path / "lake", 1)
    writer.record(10)
    with lp.Replay.follow(tmp_path / "lake", 100, samples_per_insert=4.0, **QUICK) as replay:
        limits = replay._follower.limits
        with pytest.raises(TypeError, match="'length'"):  # the old name would be a way past the limit
            replay.sample(2, length=3)
        for _ in range(6):  # 48 > 40
            replay.sample(8, timeout=0.0)
        with pytest.raises(
            lp.SampleTimeout, match="48 steps were sampled and 10 inserted, and samples_per_i"
        ):
            replay.sample(8, timeout=0.05)
        with pytest.raises(lp.SampleError):
            replay.sample(0)
        assert limits.sampled == 48  # what fails is not counted
        replay.recent(10)
        replay[[3, 4]]
        assert limits.sampled == 48
        writer.record(2)
        replay.sample(2, sequence_length=3, timeout=30)  # 54 > 48
        assert limits.sampled == 54
        stop, drawn = time.monotonic() + 0.5, []

        def draw() -> None:
            while time.monotonic() < stop:
                try:
                    replay.sample(4, timeout=0.02)
                    drawn.append(4)
                except lp.SampleTimeout:
                    assert limits.sampled > 4 * (limits.inserted - 5)

        threads = [threading.Thread(target=draw) for _ in range(3)]
        for each in threads:
            each.start()
        for _ in range(10):
            writer.record(5)
            time.sleep(0.03)
        for each in threads:
            each.join()
        assert limits.sampled == 54 + sum(drawn) <= 4 * limits.inserted + 4
        assert limits.inserted == 62
    writer.close()


def test_collectors_never_wait_for_a_learner_that_waits_for_inserts(tmp_path):
    """Whatever counts a snapshot has; the first ones are of a batch that needs many more inserts."""
    chance, both = random.Random(0), set()
    for i in range(300):
        limits = Limits(chance.randrange(5_000), chance.choice([0.25, 1.0, 8.0]) if i else 1.0)
        limits.restore(*(chance.randrange(50_000), chance.randrange(50_000)) if i else (8_000, 2_000))
        position = Position(Store.at(tmp_path / f"{i}"), limits)
        position.publish()
        limits.insert(chance.randrange(20_000) if i else 5_000)
        limits.sampled += chance.choice([0, chance.randrange(20_000)]) if i else 0
        position._at -= 60
        position.publish()
        (file,) = (tmp_path / f"{i}" / FOLDER).iterdir()
        ahead, waits = json.loads(file.read_bytes())["ahead"], limits._missing(50_000) is not None
        assert not (ahead and waits)
        both.add((ahead, waits))
    assert both == {(False, False), (False, True), (True, False)}


def test_a_position_that_arrives_after_it_was_deleted_is_deleted_again(tmp_path, monkeypatch):
    position, replace = Position(Store.at(tmp_path), Limits(1, 1.0)), Store.replace

    def late(self: Store, name: str, data: bytes) -> None:
        position.close()
        replace(self, name, data)
        assert list((tmp_path / FOLDER).iterdir())

    monkeypatch.setattr(Store, "replace", late)
    position.publish()
    assert not list((tmp_path / FOLDER).iterdir())
    position._at -= 60
    position.publish()
    assert not list((tmp_path / FOLDER).iterdir())


def test_collectors_do_not_wait_for_what_was_there_at_the_start(tmp_path, monkeypatch):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(10)
    with lp.Replay.follow(path, 500, **QUICK) as replay:
        number = replay.snapshot().number
    for _ in range(20):
        writer.record(5)
    monkeypatch.setattr(follower, "MOST_COMMITS", 3)
    with lp.Replay.follow(path, 500, samples_per_insert=8.0, snapshot=number, poll_every="60s") as replay:
        wait_until(lambda: len(replay) == 110)  # one poll after the other while there are more
        position = replay._follower._position
        wait_until(lambda: position._count > 0)
        assert position._before == (110, 0)
    writer.close()


def test_lag_of_each_writer(tmp_path):
    one, other = Collector(tmp_path / "lake", 0), Collector(tmp_path / "lake", 2)
    with lp.Replay.follow(tmp_path / "lake", 100, **QUICK) as replay:
        for _ in range(3):
            one.record(5)
            time.sleep(0.02)
        other.record(7)
        wait_until(lambda: len(replay) == 22)
        wait_until(lambda: replay.lag()["collector-2"].commit == 0)
        lag = replay.lag()
        assert [each.writer for each in lag] == ["", "collector-2"]
        assert (lag[""].commit, lag[""].steps, lag[""].steps_behind, lag[""].bytes_behind) == (2, 15, 0, 0)
        assert lag["collector-2"].steps == 7
        assert all(each.alive and 0 <= each.age < 30 and each.error is None for each in lag)
        with pytest.raises(KeyError, match="0 writers are called 'nobody'; name one of"):
            lag["nobody"]
        state = replay._follower.states[""]
        state.arrived -= 61
        assert not replay.lag()[""].alive  # more than a minute, and more than 5 of its usual 20 ms
        state.intervals.extend([20.0] * 16)
        assert replay.lag()[""].alive
        assert len(str(replay.lag()).splitlines()) == 3
        assert repr(replay.lag()) == "Lag(2 writers, 0 silent, 0 steps behind, 0 missed)"
    one.close()
    other.close()


def test_a_table_of_lag_has_80_columns():
    large = WriterLag(
        "collector-with-a-long-name-" * 3, 123_456, 98_765.0, 10**9, 10**7, 10**12, 10**6, False, None
    )
    small = WriterLag("", None, None, 0, 0, 0, 0, False, "CloudUnreachable: no answer")
    text = str(Lag((large, small), None))
    assert all(len(line) < 80 for line in text.splitlines())
    assert "(unnamed)" in text
    assert "silent" in text
    assert text.splitlines()[-1] == "(unnamed): CloudUnreachable: no answer"


def test_a_writer_that_cannot_be_read_is_reported_and_tried_again(tmp_path, caplog):
    path = tmp_path / "lake"
    good, bad = Collector(path, 1), Collector(path, 2)
    with lp.Replay.follow(path, 100, min_steps=60, **QUICK) as replay:
        bad.record(5)
        wait_until(lambda: len(replay) == 5)
        folder = path / "writers" / "collector-2" / "commits"
        folder.rename(folder.with_name("away"))
        good.record(10)
        wait_until(lambda: len(replay) == 15)
        wait_until(lambda: "was deleted or replaced" in str(replay.lag()["collector-2"].error))
        assert replay.stats().background_failures > 0
        with pytest.raises(lp.SampleTimeout, match=r"collector-2 could not be read .*deleted or replaced"):
            replay.sample(1, timeout=0.02)
        said = [text for text in caplog.messages if "writer 'collector-2' could not be read" in text]
        assert 1 <= len(said) == len(set(said)) <= 2  # not at every poll; one may see it vanish
        folder.with_name("away").rename(folder)
        bad.record(4)
        wait_until(lambda: len(replay) == 19)
        wait_until(lambda: replay.lag()["collector-2"].error is None)
    good.close()
    bad.close()


def test_an_error_of_looking_for_commits_ends_with_it(tmp_path, paused, monkeypatch, caplog):
    """Also if the writer makes no new commit; the same error is logged again the next time."""
    writer = Collector(tmp_path / "lake", 1)
    writer.record(5)
    with paused(tmp_path / "lake", 100) as replay:

        def refuse(chain, after):
            raise OSError("503")

        for times in (1, 2):
            with monkeypatch.context() as patched:
                patched.setattr(replay._follower.chains, "next", refuse)
                replay._follower.poll()
            assert replay.lag()["collector-1"].error == "OSError: 503"
            replay._follower.poll()
            assert replay.lag()["collector-1"].error is None
            assert caplog.text.count("writer 'collector-1' could not be read") == times
    writer.close()


def test_a_damaged_commit_is_skipped_when_there_is_a_newer_one(tmp_path):
    path = tmp_path / "lake"
    writer = Collector(path, 1)
    writer.record(5)
    with lp.Replay.follow(path, 100, poll_every="0.01s") as replay:
        folder = path / "writers" / "collector-1" / "commits"
        number = writer.replay.lake().commit.number + 1
        data = b"{}"
        (folder / commits.file_name(number)).write_bytes(data)  # as if it were damaged
        wait_until(lambda: replay.lag()["collector-1"].error is not None)
        (folder / commits.file_name(number)).unlink()
        writer.record(5)
        wait_until(lambda: len(replay) == 10)
        wait_until(lambda: replay.lag()["collector-1"].error is None)
    writer.close()


def test_discovery_that_fails_is_reported(tmp_path, monkeypatch):
    writer = Collector(tmp_path / "lake", 1)
    with lp.Replay.follow(tmp_path / "lake", 100, min_steps=3, **QUICK) as replay:

        def refuse() -> list[str]:
            raise PermissionError("not today")

        monkeypatch.setattr(replay._follower.chains, "names", refuse)
        wait_until(lambda: replay.lag().error is not None)
        writer.record(2)  # of a writer that is known
        wait_until(lambda: len(replay) == 2)
        assert "not today" in str(replay.lag())
        with pytest.raises(lp.SampleTimeout, match=r"could not be discovered .*not today"):
            replay.sample(1, timeout=0.02)
        monkeypatch.undo()
        wait_until(lambda: replay.lag().error is None)
        writer.record(1)
        assert np.isin(replay.sample(9, timeout=30).reward, [0, 1, 2]).all()
    writer.close()
