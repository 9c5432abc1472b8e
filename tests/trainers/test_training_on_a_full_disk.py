"""A disk that fills up while training: it continues, loses nothing, and says what is only in memory."""

import itertools
import logging
import os
import signal
import threading
import time
from dataclasses import replace

import pytest
from small_disk import small_disk
from test_games import LIVE, MIXTURE, REPLAYING, SINGLE, assert_same, assert_same_lake
from tiny_market import TINY

from faults.training import fingerprint
from lakepond import cli
from lakepond.errors import RunNotSaved
from lakepond.runs import Run
from lakepond.trainers import erl, live, loop, mixture, single

ERL = replace(TINY, generations=7, min_free="0", warn_free="0", keep_checkpoints=9)


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("erl") / "run"
    erl.train(ERL, folder)
    return folder


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.WARNING, logger="lakepond")
    return lambda words: [r.getMessage() for r in caplog.records if words in r.getMessage()]


@pytest.fixture
def frees_in_pause(disk, monkeypatch):
    """Space returns in the first pause; the number of pauses is counted."""
    pauses = itertools.count()

    def sleep(_):
        next(pauses)
        disk.free()

    monkeypatch.setattr(loop.stopping, "sleep", sleep)
    return pauses


def between(disk, first, last, leave=0, run=None):
    """A callback that fills the disk after the call `first` and empties it after the call `last`.

    `run`: a folder with checkpoints written on a thread; the disk is filled when number `first` is there.
    """
    calls = itertools.count(1)

    def call(_):
        number = next(calls)
        if number == first:
            while run is not None and first not in Run.open(run).checkpoints():
                time.sleep(0.001)
            disk.fill(leave)
        if number == last:
            disk.free()

    return call


def generations(folder):
    return [
        Run.open(folder).state(number)["counters"]["generation"] for number in Run.open(folder).checkpoints()
    ]


@pytest.mark.parametrize(
    ("at_floor", "leave"),
    [("warn", 0), ("warn", 48 << 10), ("stop_saving", 0)],
    ids=["nothing is left", "a commit fits and a checkpoint does not", "the guard stops saving"],
)
def test_erl_trains_through_a_full_disk_and_ends_with_the_same_bits(
    at_floor, leave, disk, undisturbed, logged
):
    folder = disk.path / "run"
    config = replace(ERL, at_floor=at_floor, warn_free="1MB" if at_floor == "stop_saving" else "0")
    erl.train(config, folder, on_generation=between(disk, 2, 5, leave, run=folder))
    assert fingerprint(folder) == fingerprint(undisturbed)
    assert len(list(Run.open(folder).history())) == 7
    assert generations(folder)[-1] == 7
    assert 4 not in generations(folder)
    if at_floor == "warn":
        (first, *_) = logged("training continues without saving")
        assert "/run/lake: No space left on device" in first or "/run/checkpoints: No space left" in first
        assert "Only in memory: the training since checkpoint 2" in first
        assert len(logged("saving works again; nothing was lost")) == 1


def test_erl_pauses_when_it_holds_too_many_steps_in_memory(
    disk, undisturbed, logged, frees_in_pause, monkeypatch
):
    monkeypatch.setattr(erl, "MOST_WAITING", 0)  # as many steps as the replay holds: 300, three generations
    folder = disk.path / "run"
    erl.train(ERL, folder, on_generation=between(disk, 2, None, run=folder))
    assert next(frees_in_pause) == 1
    (paused,) = logged("training pauses")
    assert "because 270 steps are held in memory, and tries again every 5 s" in paused
    assert fingerprint(folder) == fingerprint(undisturbed)


def test_a_signal_ends_the_pause_at_once_and_what_is_lost_is_said(disk, undisturbed, logged, monkeypatch):
    monkeypatch.setattr(erl, "MOST_WAITING", 0)
    monkeypatch.setattr(loop, "RETRY_SECONDS", 3600.0)
    folder = disk.path / "run"
    fill = between(disk, 2, None, run=folder)

    def interrupt():
        while not logged("training pauses"):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    watching = threading.Thread(target=interrupt)
    watching.start()
    with pytest.raises(KeyboardInterrupt, match="SIGTERM"):
        erl.train(ERL, folder, on_generation=fill)
    watching.join()
    assert len(logged("270 steps that were not committed are lost")) == 1
    disk.free()
    erl.train(ERL, folder, resume=True)
    assert fingerprint(folder) == fingerprint(undisturbed)


@pytest.mark.parametrize("at_floor", ["warn", "stop"])
def test_training_that_ends_with_the_disk_still_full_fails_and_says_what_is_lost(
    at_floor, disk, undisturbed, monkeypatch
):
    monkeypatch.setattr(loop, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(loop, "FINAL_SECONDS", 0.1)
    folder = disk.path / "run"
    config = replace(ERL, at_floor=at_floor, warn_free="1MB" if at_floor == "stop" else "0")
    with pytest.raises(
        RunNotSaved, match=r"could not be saved for 0.1 s .*No space left on device"
    ) as failed:
        erl.train(config, folder, on_generation=between(disk, 2, None, run=folder))
    steps = 90 if at_floor == "stop" else 450  # one generation, or five
    assert f"Lost: the training since checkpoint 2, {steps} steps that no commit holds" in str(failed.value)
    assert cli.exit_code(failed.value) == cli.NO
    disk.free()
    erl.train(ERL, folder, resume=True)
    assert fingerprint(folder) == fingerprint(undisturbed)


def test_a_mixture_trains_through_a_full_disk_and_waits_at_a_reset(disk, tmp_path, logged, frees_in_pause):
    config = replace(MIXTURE, checkpoint_every=2, reset_every=2_048, env_steps=4_096)
    mixture.run(config, tmp_path / "undisturbed")
    folder = disk.path / "run"
    mixture.run(config, folder, tell=between(disk, 1, None))  # the reset is after the fourth evaluation
    assert next(frees_in_pause) == 1
    (paused,) = logged("training pauses")
    assert "/run/lake: No space left on device" in paused
    assert "because a reset reads all steps from the lake" in paused
    assert_same(tmp_path / "undisturbed", folder)
    assert_same_lake(tmp_path / "undisturbed", folder)


def test_a_replaying_agent_waits_for_space_where_it_reads_the_lake(disk, tmp_path, logged, frees_in_pause):
    single.run(REPLAYING, tmp_path / "undisturbed")
    folder = disk.path / "run"
    single.run(REPLAYING, folder, tell=between(disk, 2, None))
    assert next(frees_in_pause) == 1
    (paused,) = logged("training pauses")
    assert "because replay reads all steps from the lake" in paused
    assert_same(tmp_path / "undisturbed", folder)
    assert_same_lake(tmp_path / "undisturbed", folder)


def test_a_mixture_saves_the_checkpoint_that_it_could_not_when_there_is_space(disk, tmp_path):
    config = replace(MIXTURE, checkpoint_every=4, reset_every=3_072, keep_every=1)
    mixture.run(config, tmp_path / "undisturbed")
    folder = disk.path / "run"
    seen = []

    def tell(line):
        seen.append(Run.open(folder).checkpoints())
        if len(seen) == 3:
            disk.fill()
        if len(seen) == 5:
            disk.free()

    mixture.run(config, folder, tell=tell)
    assert seen[-1][-1] == 4  # written at the fifth evaluation, before the sixth
    assert_same(tmp_path / "undisturbed", folder)
    assert_same_lake(tmp_path / "undisturbed", folder)
    state, other = Run.open(folder).state(4), Run.open(tmp_path / "undisturbed").state(4)
    assert state["lake_commit"] == other["lake_commit"]
    lines = (folder / "metrics.jsonl").read_bytes()[: state["metrics_bytes"]].splitlines()
    assert len(lines) == 4


@pytest.mark.parametrize(("trainer", "config"), [(single, SINGLE), (live, LIVE)], ids=["single", "live"])
def test_other_trainers_train_through_a_full_disk(trainer, config, disk, tmp_path, logged):
    trainer.run(config, tmp_path / "undisturbed")
    folder = disk.path / "run"
    trainer.run(config, folder, tell=between(disk, 1, 3))
    assert_same(tmp_path / "undisturbed", folder)
    if trainer is live:
        assert_same_lake(tmp_path / "undisturbed", folder)
    assert len(logged("training continues without saving")) >= 1
    assert len(logged("saving works again; nothing was lost")) == 1


def test_a_device_lake_that_takes_too_much_memory_makes_training_pause(
    disk, tmp_path, logged, frees_in_pause, monkeypatch
):
    live.run(LIVE, tmp_path / "undisturbed")
    monkeypatch.setattr(loop, "MOST_WAITING_BYTES", 1)
    folder = disk.path / "run"
    live.run(LIVE, folder, tell=between(disk, 2, None))
    assert next(frees_in_pause) == 1
    assert len(logged("bytes are held in memory")) == 1
    assert_same(tmp_path / "undisturbed", folder)
    assert_same_lake(tmp_path / "undisturbed", folder)
