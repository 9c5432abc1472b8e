"""A run's folder: what is saved comes back, what is half is not seen, going back goes back in everything."""

import json
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from lakepond.errors import RunCorrupt, RunError, RunLocked, RunMismatch, RunNotFound
from lakepond.runs import Run


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


def test_a_checkpoint_is_plain_safetensors_with_names_a_stranger_understands(tmp_path):
    from safetensors.numpy import load_file

    with Run.create(tmp_path, "erl", Config()) as run:
        home = run.save(1, arrays={"best": {**_agent(1), "half": jnp.ones(3, jnp.bfloat16)}}, state={})
    held = load_file(home / "best.safetensors")
    assert set(held) == {"dense.kernel", "dense.bias", "half"}
    assert held["half"].dtype == jnp.bfloat16


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
        with pytest.warns(RuntimeWarning, match="not what was written"):
            assert run.load(like={"agent": _agent(0)}).number == 1
        with pytest.raises(RunCorrupt):
            run.load(2, like={"agent": _agent(0)})
        with pytest.raises(RunNotFound, match="it has 1, 2"):
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
        with pytest.raises(RunMismatch, match="another network: bias"):
            run.load(1, like={"agent": {"bias": np.ones(3)}})
        with pytest.raises(RunMismatch, match=r"kernel has shape \(3, 2\), these settings need \(3, 4\)"):
            run.load(1, like={"agent": {"kernel": np.ones((3, 4))}})


def test_no_run_a_run_that_is_training_and_one_opened_to_read(tmp_path):
    with pytest.raises(RunNotFound, match=r"no config\.json"):
        Run.open(tmp_path)
    with Run.create(tmp_path, "erl", Config()):
        assert Run.open(tmp_path).locked()
        with pytest.raises(RunLocked, match="another process"):
            Run.create(tmp_path, "erl", Config())
    reader = Run.open(tmp_path)
    assert not reader.locked()
    with pytest.raises(RunLocked, match="opened to read"):
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
    assert len(list(tmp_path.glob("wandb/offline-run-*/*.wandb"))) == 1
    assert [json.loads(line)["reward"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == [
        1,
        2,
    ]


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


def test_a_state_that_lacks_what_the_trainer_needs_is_told_with_its_name(tmp_path):
    with Run.create(tmp_path, "erl", Config()) as run:
        run.save(1, arrays={}, state={"generation": 1})
        state = run.load(1, like={}).state
        assert state["generation"] == 1
        assert state.get("lake_commit") is None
        with pytest.raises(RunCorrupt, match=r"state\.json has no 'lake_commit'"):
            state["lake_commit"]
