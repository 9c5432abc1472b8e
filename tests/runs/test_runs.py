"""A run's folder: saved state is restored, incomplete files are ignored, a rewind covers every file."""

import contextlib
import errno
import json
import signal
import subprocess
import sys
import tracemalloc
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lakepond.errors import RunCorrupt, RunError, RunLocked, RunMismatch, RunNotFound, SpecError
from lakepond.runs import Run, settings


@dataclass(frozen=True)
class Config:
    width: int = 4
    generations: int = 3
    where: Path = Path("data/panel.npz")


def _agent(seed: int) -> dict[str, object]:
    return {"dense": {"kernel": jax.random.normal(jax.random.key(seed), (3, 2)), "bias": jnp.arange(2.0)}}


def test_a_checkpoint_comes_back_bit_for_bit_with_optimiser_and_state(tmp_path):
    agent = _agent(7)
    optimiser = optax.adam(1e-3).init(agent)
    with Run.create(tmp_path / "run", "erl", Config()) as run:
        run.save(1, arrays={"agent": agent, "optimiser": optimiser}, state={"lake_commit": 5})
    loaded = Run.open(tmp_path / "run").load(like={"agent": _agent(0), "optimiser": optimiser})
    assert loaded.number == 1
    assert loaded.state["lake_commit"] == 5
    assert jax.tree.structure(loaded.arrays["optimiser"]) == jax.tree.structure(optimiser)
    jax.tree.map(np.testing.assert_array_equal, loaded.arrays["agent"], agent)
    jax.tree.map(np.testing.assert_array_equal, loaded.arrays["optimiser"], optimiser)


def test_a_state_that_is_nested_too_deeply_is_refused_before_anything_is_written(tmp_path):
    state: dict[str, object] = {}
    for _ in range(100):
        state = {"a": state}
    with Run.create(tmp_path, "erl", Config()) as run:
        with pytest.raises(SpecError, match="the state of a checkpoint is nested deeper than 100 levels"):
            run.save(1, arrays={}, state=state)
        assert not list((tmp_path / "checkpoints").glob("*"))


def test_a_checkpoint_is_plain_safetensors_with_names_a_stranger_understands(tmp_path):
    from safetensors.numpy import load_file

    with Run.create(tmp_path, "erl", Config()) as run:
        home = run.save(1, arrays={"best": {**_agent(1), "half": jnp.ones(3, jnp.bfloat16)}}, state={})
    held = load_file(home / "best.safetensors")
    assert set(held) == {"dense.kernel", "dense.bias", "half"}
    assert held["half"].dtype == jnp.bfloat16


def test_arrays_are_written_and_read_without_a_second_copy(tmp_path):
    large = 1 << 24
    arrays = {name: jnp.full(large, number, jnp.uint8) for number, name in enumerate("abcd", 1)}
    arrays |= {"count": jnp.int32(7), "none": jnp.zeros((0, 3)), "half": jnp.ones(3, jnp.bfloat16)}
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(0, arrays={}, state={})
        jax.tree.map(np.asarray, arrays)
        tracemalloc.start()
        try:
            run.save(1, arrays={"agent": arrays}, state={})
            saving = tracemalloc.get_traced_memory()[1]
            found = run.load(1, like={"agent": arrays}).arrays["agent"]
            held, loading = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert saving < large
    assert held < 5 * large  # the four that were read
    assert loading < held + large
    jax.tree.map(np.testing.assert_array_equal, found, arrays)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", ">f4", "complex64", "bool", "uint64"])
def test_an_array_that_can_be_saved_can_be_loaded(tmp_path, dtype):
    values = np.array([1, 0, 1]).astype(jnp.dtype(dtype))
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(1, arrays={"agent": {"a": values}}, state={})
    loaded = Run.open(tmp_path).load(like={"agent": {"a": values}}).arrays["agent"]["a"]
    assert loaded.dtype == values.dtype.newbyteorder("=")
    assert (loaded == values).all()


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        ({"a.b": np.ones(1), "a": {"b": np.zeros(1)}}, "two arrays of a checkpoint have the name 'a.b'"),
        ({"a": np.ones(2, np.longdouble)}, "a checkpoint cannot hold a, which is"),
    ],
)
def test_arrays_that_could_not_be_loaded_are_refused(tmp_path, arrays, sentence):
    with Run.create(tmp_path, "erl", Config()) as run:
        with pytest.raises(RunError, match=sentence):
            run.save(1, arrays={"agent": arrays}, state={})
        assert run.checkpoints() == []


def test_retention_keeps_the_last_and_every_so_many(tmp_path):
    with Run.create(tmp_path, "erl", Config(), keep_last=2, keep_every=5) as run:
        for number in range(1, 13):
            run.save(number, arrays={}, state={})
        assert run.checkpoints() == [5, 10, 11, 12]


def test_a_broken_newest_checkpoint_is_stepped_over_loudly_and_a_named_one_is_refused(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        for number in (1, 2):
            home = run.save(number, arrays={"agent": _agent(number)}, state={})
        data = bytearray((home / "agent.safetensors").read_bytes())
        data[-1] ^= 1
        (home / "agent.safetensors").write_bytes(data)
        with pytest.warns(RuntimeWarning, match="is damaged"):
            assert run.load(like={"agent": _agent(0)}).number == 1
        with pytest.raises(RunCorrupt):
            run.load(2, like={"agent": _agent(0)})
        with pytest.raises(RunNotFound, match="it has 1–2"):
            run.load(3, like={})


def test_what_a_killed_save_left_is_not_a_checkpoint(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(1, arrays={"agent": _agent(1)}, state={})
        (tmp_path / "checkpoints" / "00000002.aside").mkdir()
        (tmp_path / "checkpoints" / "00000002.aside" / "agent.safetensors").write_bytes(b"half")
        assert run.load(like={"agent": _agent(0)}).number == 1
        run.save(2, arrays={"agent": _agent(2)}, state={})
        assert run.checkpoints() == [1, 2]


def test_going_on_from_an_earlier_checkpoint_forgets_the_later_metrics_and_checkpoints(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        for number in (1, 2, 3):
            run.log(number, {"reward": number})
            run.save(number, arrays={}, state={})
        run.log(4, {"reward": 4})
    with Run.create(tmp_path, "erl", Config()) as run:
        run.rewind(run.load(2, like={}))
        assert [line["reward"] for line in run.history()] == [1, 2]
        assert run.checkpoints() == [1, 2]
        run.log(3, {"reward": 30})
        run.save(3, arrays={}, state={})
        assert [line["reward"] for line in run.history()] == [1, 2, 30]
        assert run.checkpoints() == [1, 2, 3]
    with Run.create(tmp_path, "erl", Config()) as run:
        run.rewind(None)
        assert list(run.history()) == []


def test_metrics_take_numbers_of_any_library_and_no_other_thing(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.log(1, {"a": np.float32(1.5), "b": jnp.int32(2), "c": [1, 2], "d": float("nan"), "e": True})
        assert {k: v for k, v in next(run.history()).items() if k != "time"} == {
            "step": 1, "a": 1.5, "b": 2, "c": [1, 2], "d": None, "e": True,
        }  # fmt: skip
        with pytest.raises(RunError, match="not object"):
            run.log(2, {"a": object()})
        assert len(list(run.history())) == 1


@pytest.mark.parametrize(
    ("step", "metrics", "sentence"),
    [
        (1, {"time": 3.0}, "'time' is in every line"),
        (1, {"step": "two"}, "'step' is in every line"),
        (-1, {"loss": 1.0}, "step -1 cannot be logged"),
        (10**12, {"loss": 1.0}, "cannot be logged"),
        (2, {"text": "x" * (16 << 20)}, "log less at a time"),
    ],
)
def test_a_line_that_could_not_be_read_is_refused(tmp_path, step, metrics, sentence):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.log(0, {"loss": 0.5})
        with pytest.raises(RunError, match=sentence):
            run.log(step, metrics)
        run.log(3, {"loss": 0.25})
    assert [line["loss"] for line in Run.open(tmp_path).history()] == [0.5, 0.25]


def test_a_line_that_is_still_being_written_is_not_read(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.log(1, {"a": 1})
        with (tmp_path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"step": 2, "a"')
        assert [line["step"] for line in run.history()] == [1]


def test_another_trainer_and_other_settings_are_refused_and_change_nothing(tmp_path):
    Run.create(tmp_path, "erl", Config()).close()
    before = (tmp_path / "config.json").read_bytes()
    with pytest.raises(RunMismatch, match="trainer 'erl', not 'single'"):
        Run.create(tmp_path, "single", Config())
    with pytest.raises(RunMismatch, match="width 4 there, 5 here"):
        Run.create(tmp_path, "erl", Config(width=5))
    assert (tmp_path / "config.json").read_bytes() == before
    with Run.create(tmp_path, "erl", replace(Config(), generations=9), may_change=["generations"]) as run:
        assert run.config["generations"] == 9
    assert Run.open(tmp_path).config["generations"] == 9


def test_a_checkpoint_of_another_network_is_refused_by_name_and_shape(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(1, arrays={"agent": {"kernel": np.ones((3, 2))}}, state={})
        with pytest.raises(RunMismatch, match="a different network: bias"):
            run.load(1, like={"agent": {"bias": np.ones(3)}})
        with pytest.raises(RunMismatch, match=r"kernel has shape \(3, 2\), these settings need \(3, 4\)"):
            run.load(1, like={"agent": {"kernel": np.ones((3, 4))}})


def test_a_live_checkpoint_of_an_earlier_version_loads_without_arrays_that_are_not_needed(tmp_path):
    """Earlier versions saved `pond.span`, and `pond.rows` where they are in the lake, too."""
    saved = {"pond": {"steps": np.arange(3), "span": np.ones(3, np.uint8), "rows": np.arange(4)}}
    with Run.create(tmp_path, "live", Config()) as run:
        run.save(1, arrays={"all": saved}, state={})
        for needed in ({"steps"}, {"steps", "rows"}):
            loaded = run.load(1, like={"all": {"pond": {name: saved["pond"][name] for name in needed}}})
            found = loaded.arrays["all"]["pond"]
            assert {name: found[name].tolist() for name in found} == {
                name: saved["pond"][name].tolist() for name in needed
            }


def test_no_run_a_run_that_is_training_and_one_opened_to_read(tmp_path):
    with pytest.raises(RunNotFound, match=r"no config\.json"):
        Run.open(tmp_path)
    with Run.create(tmp_path, "erl", Config()):
        assert Run.open(tmp_path).locked()
        with pytest.raises(RunLocked, match="another process"):
            Run.create(tmp_path, "erl", Config())
    reader = Run.open(tmp_path)
    assert not reader.locked()
    with pytest.raises(RunLocked, match="opened for reading"):
        reader.log(1, {})
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(RunNotFound, match="cannot be read"):
        Run.open(tmp_path)


def test_the_lock_dies_with_a_killed_process(tmp_path):
    script = (
        "import sys, time; from dataclasses import dataclass; from lakepond.runs import Run\n"
        "config = dataclass(type('C', (), {}))()\n"
        f"run = Run.create({str(tmp_path)!r}, 'erl', config); print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "held\n"
        assert Run.open(tmp_path).locked()
        child.send_signal(signal.SIGKILL)
    assert not Run.open(tmp_path).locked()


def test_tensorboard_and_wandb_get_the_same_numbers_without_login(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those libraries' own, at import
        with Run.create(tmp_path, "erl", Config(), loggers=("tensorboard", "wandb")) as run:
            for step in (1, 2):
                run.log(step * 100, {"reward": step, "note": "text stays in the file"})
    assert len(list((tmp_path / "tensorboard").glob("events*"))) == 1
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert file.name == f"run-{run.about['id']}.wandb"  # not the name of the folder, which others have too
    assert [json.loads(line)["reward"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
    ]


def test_two_runs_have_two_ids_and_a_resumed_one_keeps_its_own(tmp_path):
    found = []
    for folder in (tmp_path / "here/run", tmp_path / "there/run", tmp_path / "here/run"):
        with Run.create(folder, "erl", Config()) as run:
            found.append(run.about["id"])
    assert found[0] == found[2] != found[1]


# --- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[1] / "trainers"))
    from small_disk import small_disk

    with small_disk(tmp_path / "disk", megabytes=2) as disk:
        yield disk


@pytest.mark.parametrize("leave", [0, 4096])
def test_lines_that_a_full_disk_does_not_take_are_written_later_in_order_and_none_is_torn(disk, leave):
    folder = disk.path / "run"
    with Run.create(folder, "erl", Config()) as run:
        failed = 0
        for step in range(60):
            if step == 5:
                disk.fill(leave)
            if step == 50:
                disk.free()
            try:
                run.log(step, {"text": "x" * 300})
            except OSError as error:
                failed += error.errno == errno.ENOSPC
            written = (folder / "metrics.jsonl").read_bytes()
            assert written.endswith(b"\n")
            steps = [json.loads(line)["step"] for line in written.splitlines()]
            assert steps == list(range(len(steps)))
            assert len(steps) + run.unwritten == step + 1
        assert 0 < failed <= 45
        assert run.unwritten == 0
        assert len(steps) == 60


def test_a_checkpoint_that_does_not_fit_leaves_nothing_and_counts_no_line_that_is_not_written(disk):
    folder = disk.path / "run"
    with Run.create(folder, "erl", Config()) as run:
        run.log(1, {"reward": 1})
        run.save(1, {"agent": _agent(1)}, {})
        disk.fill(64 << 10)
        with pytest.raises(OSError, match="No space left"):
            run.save(2, {"large": np.zeros(1 << 20, np.uint8)}, {})
        assert [path.name for path in (folder / "checkpoints").iterdir()] == ["00000001"]
        disk.fill()
        while not run.unwritten:
            with contextlib.suppress(OSError):
                run.log(2, {"text": "x" * 1000})
        with pytest.raises(OSError, match="No space left"):
            run.save(2, {}, {})
        disk.free()
        run.save(2, {"agent": _agent(2)}, {})
        assert run.state(2)["metrics_bytes"] == (folder / "metrics.jsonl").stat().st_size == run.metrics_bytes


def test_a_log_that_is_closed_on_a_full_disk_raises_or_keeps_the_error_of_the_run(disk, caplog):
    def fill(run):
        disk.fill()
        while not run.unwritten:
            with contextlib.suppress(OSError):
                run.log(2, {"text": "x" * 1000})

    with pytest.raises(OSError, match="lines that were not written are lost: 1"), \
            Run.create(disk.path / "run", "erl", Config()) as run:  # fmt: skip
        fill(run)
    disk.free()
    run = Run.create(disk.path / "run", "erl", Config())
    fill(run)
    with pytest.raises(ZeroDivisionError), run:
        1 / 0  # noqa: B018
    assert "lines that were not written are lost: 1" in caplog.text
    disk.free()
    Run.create(disk.path / "run", "erl", Config()).close()  # the lock was released


def test_an_incomplete_last_line_is_cut_before_the_next_is_written(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.log(1, {"reward": 1})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "rew')
    with Run.create(tmp_path, "erl", Config()) as run:
        run.log(2, {"reward": 2})
    assert [line["reward"] for line in Run.open(tmp_path).history()] == [1, 2]


def test_tensorboard_on_a_full_disk_neither_blocks_nor_ends_a_run(disk, caplog):
    folder = disk.path / "run"
    with Run.create(folder, "erl", Config(), loggers=["tensorboard"]) as run:
        for step in range(40):
            if step == 3:
                disk.fill()
            if step == 30:
                disk.free()
            with contextlib.suppress(OSError):
                run.log(step, {f"metric {i}": step for i in range(40)})
    assert [line["step"] for line in Run.open(folder).history()] == list(range(40))
    assert caplog.text.count("logging to tensorboard failed") == 1
    steps = {event.step for event in _events(folder) if event.summary.value}
    assert {0, 1, 2, 30, 39} <= steps


def _events(folder):
    """The events of all complete records."""
    import struct

    from tensorboardX.proto.event_pb2 import Event

    for file in sorted((folder / "tensorboard").iterdir()):
        data = file.read_bytes()
        while len(data) >= 12:
            (length,) = struct.unpack("Q", data[:8])
            if len(data) < 16 + length:
                break
            event = Event()
            event.ParseFromString(data[12 : 12 + length])
            yield event
            data = data[16 + length :]


def test_a_checkpoint_of_another_dtype_is_refused_and_nan_is_loaded(tmp_path):
    values = np.array([1.0, np.nan, np.inf], np.float32)
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(1, arrays={"agent": {"kernel": values}}, state={})
        loaded = run.load(1, like={"agent": {"kernel": np.zeros(3, np.float32)}}).arrays["agent"]["kernel"]
        assert loaded.tobytes() == values.tobytes()
        for other in (np.zeros(3, np.int32), np.zeros(3, np.float64)):
            with pytest.raises(
                RunMismatch, match=f"kernel has dtype float32, these settings need {other.dtype}"
            ):
                run.load(1, like={"agent": {"kernel": other}})


# --- strict JSON -------------------------------------------------------------------------------------


def refused(constant: str) -> None:
    raise AssertionError(f"{constant} is not JSON")


def test_numbers_of_a_state_that_are_not_finite_are_stored_as_strings_and_read_as_numbers(tmp_path):
    state = {
        "best": -np.inf,
        "scores": [1.5, np.nan, np.inf],
        "more": {"name": "Nan", "x": np.float64("inf")},
    }
    with Run.create(tmp_path / "run", "erl", Config()) as run:
        home = run.save(1, arrays={}, state=state)
    stored = json.loads((home / "state.json").read_text(), parse_constant=refused)["state"]
    assert stored["best"] == "-Infinity"
    assert stored["scores"] == [1.5, "NaN", "Infinity"]
    for found in (Run.open(tmp_path / "run").state(), Run.open(tmp_path / "run").load(like={}).state):
        assert found["best"] == -np.inf
        np.testing.assert_array_equal(found["scores"], state["scores"])
        assert found["more"] == state["more"]
    text = (home / "state.json").read_text()  # as earlier versions wrote it
    (home / "state.json").write_text(text.replace('"NaN"', "NaN").replace('"-Infinity"', "-Infinity"))
    found = Run.open(tmp_path / "run").state()
    assert found["best"] == -np.inf
    np.testing.assert_array_equal(found["scores"], state["scores"])


@dataclass(frozen=True)
class Unlimited:
    most: float = np.inf
    rate: float = np.nan


@pytest.mark.parametrize("earlier", [False, True])
def test_a_run_whose_settings_are_not_finite_is_strict_json_and_resumes(tmp_path, earlier):
    Run.create(tmp_path, "erl", Unlimited()).close()
    file = tmp_path / "config.json"
    about = json.loads(file.read_text(), parse_constant=refused)
    assert about["config"] == {"most": "Infinity", "rate": "NaN"}
    if earlier:  # an earlier version wrote them as numbers
        file.write_text(json.dumps(about | {"config": {"most": np.inf, "rate": np.nan}}))
    with Run.create(tmp_path, "erl", Unlimited()) as run:
        run.start_session()  # writes the file again
    json.loads(file.read_text(), parse_constant=refused)
    config = settings.from_json(Unlimited, Run.open(tmp_path).config, "erl", tmp_path)
    assert config.most == np.inf
    assert np.isnan(config.rate)
    with pytest.raises(RunMismatch, match=r"most 'Infinity' there, 3\.0 here"):
        Run.create(tmp_path, "erl", Unlimited(most=3.0))
