"""`lakepond doctor`: lines, JSON and exit code; the checks themselves are tested in tests/doctor."""

import json
import subprocess
import sys

import pytest

from lakepond.cli import main
from lakepond.doctor import software
from lakepond.doctor.check import Finding


@pytest.fixture(autouse=True)
def _no_jax(monkeypatch):
    """The check that starts a process with JAX is tested in tests/doctor."""
    monkeypatch.setattr(software, "accelerator", lambda: Finding("accelerator", "warn", "none", "none"))


def test_each_line_is_a_verdict_a_name_and_what_was_found(tmp_path, capsys):
    assert main(["doctor", "--path", str(tmp_path), "--cloud", f"file://{tmp_path}/bucket"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("pass  locks") for line in lines)
    assert any(line.startswith("pass  bucket") for line in lines)
    assert all(line.startswith(("pass  ", "warn  ", "      ")) for line in lines)


def test_what_fails_is_exit_code_1(capsys):
    assert main(["doctor", "--path", "/proc", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] is False
    assert any(check["verdict"] == "fail" and check["next_step"] for check in found["checks"])


WARM_UP = """
import gc, sys
import numpy as np, lakepond as lp
from numba.core.dispatcher import Dispatcher
from lakepond.cli import main
from lakepond.doctor import software

def functions():
    return [each for each in gc.get_objects() if isinstance(each, Dispatcher)]

def machine_code():
    return {(function.py_func, types) for function in functions() for types in function.overloads}

warm = sys.argv[1] == "warm up"
if warm:
    software.accelerator = software.python
    assert main(["doctor", "--warm-up"]) == 0
there = machine_code()
replay = lp.Replay(lp.Spec(obs=lp.Field((4, 84, 84), "uint8")), 100, alpha=0.6)
for t in range(300):
    obs = np.full((2, 4, 84, 84), t % 255, np.uint8)
    replay.record(obs=obs[0], next_obs=obs[1], action=0, reward=0.0, terminated=False, truncated=t % 50 == 0)
replay.update_priorities(replay.sample(32, n_step=3, gamma=0.9).step_id, np.ones(32))
if warm:
    assert machine_code() == there != set(), machine_code() - there
else:
    assert machine_code()
    assert not [each for each in functions() if len(each.overloads) > len(each.stats.cache_hits)]
"""


def test_warm_up_compiles_all_that_a_replay_runs(tmp_path):
    """After it a replay needs no other machine code, and in a new process it compiles none."""
    for when in ("warm up", "later"):
        done = subprocess.run(
            [sys.executable, "-c", WARM_UP, when], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ("compiled" in done.stdout) == (when == "warm up")
