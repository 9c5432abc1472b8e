"""The ERL trainer's copies elsewhere: the run in a bucket and back, TensorBoard, Weights & Biases."""

import shutil
import struct
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_market import TINY

import lakepond as lp
from faults.training import fingerprint
from lakepond.cli import main
from lakepond.lake.read.lake import Lake
from lakepond.runs import Run, copies
from lakepond.trainers import erl, pushing

CONFIG = replace(TINY, generations=8, push_every=2)
BLOCK, WHOLE, LAST = 32768, 1, 4


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Eight generations on one machine, pushed nowhere."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    erl.train(CONFIG, folder)
    return folder


@pytest.fixture
def pushes(monkeypatch) -> list[int]:
    """The newest checkpoint at the beginning of each push."""
    seen: list[int] = []
    real = copies.push_run

    def push_run(folder, cloud, **more):
        seen.append(Run.open(folder).checkpoints()[-1])
        return real(folder, cloud, **more)

    monkeypatch.setattr(copies, "push_run", push_run)
    return seen


@pytest.mark.parametrize("last", [5, 7])
def test_a_new_machine_goes_on_from_the_bucket_with_the_buffer_and_ends_the_same(
    whole, tmp_path, pushes, last, capsys
):
    url = f"file://{tmp_path}/bucket/demo"
    erl.train(replace(CONFIG, generations=last, push_to=url), tmp_path / "first")
    assert pushes[-1] == last  # at the end
    assert any(2 <= number < last for number in pushes)  # and before; one at a time
    shutil.rmtree(tmp_path / "first")  # that machine is gone

    second = tmp_path / "second"
    assert main(["pull", url, str(second)]) == 0
    capsys.readouterr()
    state = Run.open(second).state()
    with Lake.open(second / "lake", state["lake_commit"]) as lake:
        lake.verify()
        assert lake.commit.recorded == 90 * last
    metrics = erl.train(replace(CONFIG, push_to=url), second, resume=True)
    assert metrics["steps"] == 300  # the buffer is full, as it was there
    assert fingerprint(second) == fingerprint(whole)

    copies.pull_run(tmp_path / "third", lp.Cloud(url))  # it was pushed on to the same place
    assert fingerprint(tmp_path / "third") == fingerprint(whole)


def test_a_machine_that_went_on_past_its_last_checkpoint_in_the_bucket_is_no_hindrance(whole, tmp_path):
    url = f"file://{tmp_path}/bucket/demo"
    erl.train(replace(CONFIG, generations=7, push_to=url), tmp_path / "first")
    for late in ("00000006", "00000007"):  # commits arrive before the checkpoints that name them
        shutil.rmtree(tmp_path / "bucket" / "demo" / "checkpoints" / late)
    second = tmp_path / "second"
    copies.pull_run(second, lp.Cloud(url))
    assert Run.open(second).checkpoints()[-1] == 5
    erl.train(replace(CONFIG, push_to=url), second, resume=True)
    assert fingerprint(second) == fingerprint(whole)
    copies.pull_run(tmp_path / "third", lp.Cloud(url))
    assert fingerprint(tmp_path / "third") == fingerprint(whole)


def test_a_bucket_that_cannot_be_written_is_said_and_training_goes_on(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(pushing, "WAIT_SECONDS", 3.0)  # for what is tried again
    (tmp_path / "bucket").write_text("a file is no folder")
    config = replace(CONFIG, generations=3, push_to=f"file://{tmp_path}/bucket/demo")
    metrics = erl.train(config, tmp_path / "run")
    assert metrics["generation"] == 3
    assert "is not completely uploaded yet" in caplog.text
    assert "Not a directory" in caplog.text


# --- loggers -----------------------------------------------------------------------------------------


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard would show: its records are length, check, bytes, check."""
    from tensorboardX.proto.event_pb2 import Event

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted(folder.glob("events*")):
        data, at = path.read_bytes(), 0
        while at < len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            event = Event.FromString(data[at + 12 : at + 12 + size])
            at += 16 + size
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, value.simple_value))
    return found


def test_tensorboard_and_wandb_are_really_written_with_generations_as_their_axis(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where a login would be
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those libraries' own, at import
        erl.train(replace(CONFIG, generations=3), tmp_path / "run", loggers=("tensorboard", "wandb"))
        import wandb

        wandb.teardown()  # its own process may write on after a run's finish, as it does until this one exits
    lines = list(Run.open(tmp_path / "run").history())
    shown = events(tmp_path / "run" / "tensorboard")
    for name in ("fitness_best", "validation", "distinct_rows", "lake_bytes", "rss_bytes"):
        assert [step for step, _ in shown[name]] == [1, 2, 3]
        assert [value for _, value in shown[name]] == pytest.approx([line[name] for line in lines])
    (file,) = (tmp_path / "run").glob("wandb/offline-run-*/*.wandb")
    history, axis = offline(file)
    assert [int(line["step"]) for line in history] == [1, 2, 3]
    for name in ("fitness_best", "validation", "lake_bytes"):
        assert [float(line[name]) for line in history] == pytest.approx([line[name] for line in lines])
    assert axis == "step"


def offline(file: Path) -> tuple[list[dict[str, str]], str]:
    """The lines of an offline run of W&B, and what the axis of its charts is.

    Its file is a log as LevelDB's: blocks of 32 kB, in them pieces of check, size, kind and bytes.
    """
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, piece, lines, axis = file.read_bytes(), 7, b"", [], ""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        piece += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind not in (WHOLE, LAST):
            continue
        record, piece = Record.FromString(piece), b""
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            lines.append({item.key or item.nested_key[0]: item.value_json for item in items})
        elif record.WhichOneof("record_type") == "metric" and record.metric.glob_name == "*":
            axis = record.metric.step_metric
    return lines, axis
