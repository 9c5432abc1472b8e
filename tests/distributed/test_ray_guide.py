"""The code of docs/howto/ray.md: the program runs as shown, its policies collect, Ray accepts its YAML."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import gymnasium as gym
import numpy as np
import yaml

import lakepond as lp
from lakepond.cli import main
from lakepond.distributed import Collectors
from lakepond.distributed.collector import Collector, MakePolicy
from worlds import wait_until

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "ray.md"
FILES = dict(re.findall(r'^```\w+ title="(\S+)"\n(.*?)^```', GUIDE.read_text(), re.M | re.S))


def test_the_program_runs_as_it_is_shown(tmp_path):
    (tmp_path / "train.py").write_text(FILES["train.py"])
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3_000:]
    assert re.search(r"^collector-1 +alive ", done.stdout, re.M)
    with lp.Lake.open(tmp_path / "runs" / "lake") as lake:
        assert len(lake.heads) == 2


def test_ray_up_takes_the_cluster():
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = prepare_config(yaml.safe_load(FILES["cluster.yaml"]))
    validate_config(config)
    assert config["head_setup_commands"][0] == config["worker_setup_commands"][0]  # lakepond on every machine
    assert "lakepond[ray]" in config["worker_setup_commands"][0]
    assert config["available_node_types"]["collectors"]["min_workers"] == config["max_workers"]


def test_the_job_of_kuberay_has_the_image_and_version_of_the_guide():
    """The names of the fields are those of the API reference of KubeRay, ray.io/v1."""
    job = yaml.safe_load(FILES["rayjob.yaml"])
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert job["spec"].keys() == {"entrypoint", "shutdownAfterJobFinishes", "backoffLimit", "rayClusterSpec"}
    cluster = job["spec"]["rayClusterSpec"]
    assert cluster.keys() == {"rayVersion", "headGroupSpec", "workerGroupSpecs"}
    head, (workers,) = cluster["headGroupSpec"], cluster["workerGroupSpecs"]
    names = {"rayStartParams", "template"}
    assert head.keys() == names
    assert workers.keys() == names | {"groupName", "replicas", "minReplicas", "maxReplicas"}
    assert all(isinstance(value, str) for value in head["rayStartParams"].values())
    (one,), (other,) = (each["template"]["spec"]["containers"] for each in (head, workers))
    assert one["image"] == other["image"]
    image = yaml.safe_load(FILES["cluster.yaml"])["docker"]["image"]
    assert FILES["Dockerfile"].startswith(f"FROM {image}\n")
    assert image.startswith(f"rayproject/ray:{cluster['rayVersion']}-")


def test_the_entrypoint_of_a_trainer_resumes_a_run_or_starts_it(tmp_path, capsys):
    """The command that does not apply is refused: the first without a run, the second where one is."""
    entrypoint = yaml.safe_load(re.search(r"^ *entrypoint: sh.*", GUIDE.read_text(), re.M)[0])["entrypoint"]
    shell, option, commands = shlex.split(entrypoint)
    assert (shell, option) == ("sh", "-c")
    first, second = (shlex.split(each)[1:] for each in commands.split(" || "))
    assert [word for word in first if word != "--resume"] == second
    moved = {"/tmp/run": str(tmp_path / "run"), "gs://bucket/run": f"file://{tmp_path}/bucket"}
    first, second = ([moved.get(word, word) for word in command] for command in (first, second))
    assert main(first) == 1
    assert "has no run" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "config.json").write_text("{}")
    assert main(second) == 2
    assert "contains another run; resume it" in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("run*"))


@contextmanager
def policy_of_the_guide(name: str, folder: Path) -> Iterator[MakePolicy]:
    """The class in a file of the guide, by the name of its framework."""
    from ray import cloudpickle

    file = folder / f"{name}_policy.py"
    file.write_text(FILES[file.name])
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = sys.modules[file.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cloudpickle.register_pickle_by_value(module)  # the workers cannot import it
    try:
        yield getattr(module, f"{name.title()}Policy")
    finally:
        del sys.modules[file.stem]


def test_a_policy_in_torch_takes_weights_and_acts_in_collectors(local, tmp_path):
    """The weights make the policy push right; before them it pushes left."""
    import torch

    first = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.ReLU(), torch.nn.Linear(32, 2))
    weights = {name: torch.zeros_like(value) for name, value in first.state_dict().items()}
    weights |= {"2.bias": torch.tensor([0.0, 1.0])}
    lake = tmp_path / "lake"
    with (
        policy_of_the_guide("torch", tmp_path) as make_policy,
        Collectors(make_env, make_policy, num=1, lake=lake, commit_every="0.2s") as collectors,
        lp.Replay.follow(lake, capacity=100_000, poll_every="0.05s") as replay,
    ):
        collectors.broadcast(weights)
        wait_until(lambda: collectors.status()[0].weights == 1, 120)
        before = replay.recorded
        wait_until(lambda: replay.recorded > before + 200)
        assert replay.recent(20).action.tolist() == [1] * 20
        assert collectors.status()[0].error is None


def test_a_policy_in_jax_takes_weights_and_acts_in_a_collector(tmp_path):
    """As in Ray, where a collector is made and used in the same way, in another process."""
    weights = {"hidden": np.ones((4, 32), np.float32), "output": np.tile(np.float32([0, 1]), (32, 1))}
    with (
        policy_of_the_guide("jax", tmp_path) as make_policy,
        Collector(make_env, make_policy, tmp_path / "lake", "c0") as collector,
    ):
        collector.run(steps=10)
        collector.load(1, weights)
        collector.run(steps=30)
        assert (collector.status.weights, collector.status.error) == (1, None)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.steps(0, 30).action.tolist() == [0] * 10 + [1] * 20


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
