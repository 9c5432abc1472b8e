"""The Python code of docs/howto/ray.md: the program runs as shown, and its policies work in collectors."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import lakepond as lp
from lakepond.distributed import Collectors, ray_cluster

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "ray.md"
FILES = dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```', GUIDE.read_text(), re.M | re.S))


def test_the_program_runs_as_it_is_shown(tmp_path):
    (tmp_path / "train.py").write_text(FILES["train.py"])
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert re.search(r"^collector-1 +alive ", done.stdout, re.M)
    with lp.Lake.open(tmp_path / "runs" / "lake") as lake:
        assert len(lake.heads) == 2


def torch_weights():
    import torch

    first = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    weights = {name: torch.zeros_like(value) for name, value in first.state_dict().items()}
    return weights | {"2.bias": torch.tensor([0.0, 1.0])}


def jax_weights():
    return {"hidden": np.ones((4, 32), np.float32), "output": np.tile(np.float32([0, 1]), (32, 1))}


@pytest.mark.parametrize(("name", "weights"), [("torch", torch_weights), ("jax", jax_weights)])
def test_a_policy_takes_weights_and_acts_in_collectors(name, weights, cluster, tmp_path):
    """The weights make the policy push right; before them it pushes left, or as it was initialised."""
    from ray import cloudpickle
    from worlds import wait_until

    file = tmp_path / f"{name}_policy.py"
    file.write_text(FILES[file.name])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # the workers cannot import it
    make_policy = getattr(module, f"{name.title()}Policy")
    lake = tmp_path / "lake"
    try:
        with (
            ray_cluster.connect(cluster.address, workers=1),
            Collectors(make_env, make_policy, num=1, lake=lake, commit_every="0.2s") as collectors,
            lp.Replay.follow(lake, capacity=100_000, poll_every="0.05s") as replay,
        ):
            collectors.broadcast(weights())
            wait_until(lambda: collectors.status()[0].weights == 1, 120)
            before = replay.recorded
            wait_until(lambda: replay.recorded > before + 200)
            assert replay.recent(20).action.tolist() == [1] * 20
            assert collectors.status()[0].error is None
    finally:
        del sys.modules[file.stem]


class Pushed(gym.Env):
    """Observations above 0, so that the weights of the tests decide for 1."""

    observation_space = gym.spaces.Box(0.5, 1.0, (4,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(4, np.float32), {}

    def step(self, action):
        return np.ones(4, np.float32), 0.0, False, False, {}


def make_env():
    return Pushed()
