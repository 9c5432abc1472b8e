"""The ERL trainer at the floor of its disk: what it does there is a setting, and it can be resumed."""

from dataclasses import replace

import pytest
from tiny_market import TINY

from faults.training import fingerprint
from lakepond import machine
from lakepond.runs import Run
from lakepond.trainers import erl

CONFIG = replace(TINY, generations=5)
GB = 10**9


@pytest.fixture
def disk(monkeypatch):
    """A disk that has 30 GB free, 15 GB at the second and third look, and 30 GB again after that."""
    looks = iter([30 * GB, 15 * GB, 15 * GB, 30 * GB, 30 * GB])
    monkeypatch.setattr(machine, "free_disk", lambda path: next(looks))


def checkpoints(folder) -> list[int]:
    return [
        Run.open(folder).state(number)["counters"]["generation"] for number in Run.open(folder).checkpoints()
    ]


def test_it_warns_and_goes_on(disk, tmp_path, caplog):
    erl.train(CONFIG, tmp_path / "run")
    lines = list(Run.open(tmp_path / "run").history())
    assert [line["disk_free_bytes"] // GB for line in lines] == [30, 15, 15, 30, 30]
    assert "training and saving continue" in caplog.text
    assert checkpoints(tmp_path / "run") == [3, 4, 5]


def test_it_stops_saving_until_there_is_space_again(disk, tmp_path):
    erl.train(replace(CONFIG, at_floor="stop_saving", keep_checkpoints=9), tmp_path / "run")
    assert len(list(Run.open(tmp_path / "run").history())) == 5
    # generation 2 was saved before it was looked at; 3 and 4 began while there was no space
    assert checkpoints(tmp_path / "run") == [0, 1, 2, 5]


def test_it_stops_with_all_saved_and_ends_as_if_it_had_not(disk, tmp_path, monkeypatch):
    erl.train(replace(CONFIG, at_floor="stop"), tmp_path / "run")
    assert checkpoints(tmp_path / "run") == [0, 1, 2]
    monkeypatch.undo()
    erl.train(replace(CONFIG, warn_free="1MB"), tmp_path / "run", resume=True)
    erl.train(replace(CONFIG, warn_free="1MB"), tmp_path / "other")
    assert fingerprint(tmp_path / "run") == fingerprint(tmp_path / "other")
