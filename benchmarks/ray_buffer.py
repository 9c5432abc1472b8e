"""A lake that many collectors write, beside a replay buffer that is kept in a Ray actor.

The same collectors, learner and Ray cluster in all cases; stacks of 4 frames of 84 x 84. The peers are
TorchRL's `RayReplayBuffer`, and a ring of NumPy arrays in an actor, which has no overhead beyond Ray's own.
The cluster has three nodes on this machine, and the buffer is in the one that is killed. A second table shows
how collectors scale. `python -m benchmarks.ray_buffer`, with the extras `ray`, `torchrl` and `atari`.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import ROOT, in_child
from benchmarks.report import Section, print_report

STACK = (4, 84, 84)
COLLECTORS, BATCH, CHUNK = 4, 256, 50
NODE = {"num_cpus": 8, "object_store_memory": 512 << 20, "node_ip_address": "127.0.0.1"}
KINDS = ("lakepond", "numpy", "torchrl")
SLEEP = 0.02
"""seconds that a step of the sleeping environments takes"""


def run(quick: bool) -> list[Section]:
    """Each case in a process of its own, with a Ray of its own."""
    section = Section(
        "ray: the buffer in a lake, and in a Ray actor", ["measure", *KINDS, "unit", "bar", "verdict"]
    )
    steps, seconds, rate = (2_000, 2.0, 200.0) if quick else (20_000, 15.0, 200.0)
    found = {
        kind: in_child("benchmarks.ray_buffer:case", kind=kind, steps=steps, seconds=seconds, rate=rate)
        for kind in KINDS
    }
    ours, best = found["lakepond"], max(found[kind]["batches"] for kind in KINDS[1:])
    section.add(
        f"batches of {BATCH} at the learner",
        *(found[kind]["batches"] for kind in KINDS),
        "/s",
        "at least 3x the better one",
        ours["batches"] >= 3 * best,
    )
    least = min(found[kind]["bytes"] for kind in KINDS[1:])
    section.add(
        f"memory for {steps:,} steps, all processes",
        *(found[kind]["bytes"] / 1e6 for kind in KINDS),
        "MB",
        "at most 1/4",
        ours["bytes"] <= least / 4,
    )
    section.add("steps before the node is killed", *(found[kind]["before"] for kind in KINDS), "", None, None)
    section.add(
        "of these, steps after it",
        *(found[kind]["after"] for kind in KINDS),
        "",
        "ours complete",
        ours["after"] == ours["before"],
    )
    section.notes.append(
        f"{COLLECTORS} collectors of {rate:g} steps/s each; the learner samples for {seconds:g} s while they "
        "record; memory: growth of the proportional set size of the learner and all processes of Ray"
    )
    return [section, scaling(quick)]


# --- one case -------------------------------------------------------------------------------------


class Game:
    """Frames of noise at a fixed rate of steps; Gymnasium's interface."""

    def __init__(self, rate: float) -> None:
        import gymnasium as gym

        self.observation_space = gym.spaces.Box(0, 255, STACK, np.uint8)
        self.action_space = gym.spaces.Discrete(4)
        self._rng = np.random.default_rng()
        self._t, self._rate, self._began, self._n = 0, rate, time.monotonic(), 0

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode of frames that no other one has."""
        self._t, self._frames = 0, self._rng.integers(0, 256, (504, *STACK[1:]), np.uint8)
        return self._frames[:4], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, info."""
        self._n += 1
        ahead = self._n / self._rate - (time.monotonic() - self._began)
        if ahead > 0:
            time.sleep(ahead)
        self._t += 1
        return self._frames[self._t : self._t + 4], 0.0, False, self._t == 500, {}


def random_policy() -> Any:
    """Four actions at random."""
    rng = np.random.default_rng()
    return lambda obs: rng.integers(0, 4, len(obs))


class Ring:
    """A replay buffer as an actor keeps it: a ring of arrays."""

    def __init__(self, capacity: int) -> None:
        self._columns = {
            "obs": np.zeros((capacity, *STACK), np.uint8),
            "next_obs": np.zeros((capacity, *STACK), np.uint8),
            "action": np.zeros(capacity, np.int64),
            "reward": np.zeros(capacity, np.float32),
            "terminated": np.zeros(capacity, bool),
        }
        self._capacity, self._added = capacity, 0
        self._rng = np.random.default_rng(0)

    def extend(self, steps: dict[str, Any]) -> None:
        """Add steps."""
        count = len(steps["action"])
        at = (self._added + np.arange(count)) % self._capacity
        for name, column in self._columns.items():
            column[at] = steps[name]
        self._added += count

    def sample(self, count: int) -> dict[str, Any]:
        """Steps, drawn uniformly."""
        at = self._rng.integers(0, min(self._added, self._capacity), count)
        return {name: column[at] for name, column in self._columns.items()}

    def size(self) -> int:
        """Steps in it."""
        return min(self._added, self._capacity)


def collect_into(buffer: Any, kind: str, rate: float) -> None:
    """A collector that sends its steps to a buffer in an actor, 50 at a time."""
    import ray

    env, policy = Game(rate), random_policy()
    obs, _ = env.reset()
    while True:
        rows = []
        for _ in range(CHUNK):
            action = policy(obs[None])[0]
            after, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, after, action, reward, terminated))
            obs = env.reset()[0] if truncated else after
        names = ("obs", "next_obs", "action", "reward", "terminated")
        steps = {name: np.stack(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
        if kind == "torchrl":
            from tensordict import TensorDict

            buffer.extend(TensorDict(steps, batch_size=[CHUNK]))
        else:
            ray.get(buffer.extend.remote(steps))


def case(kind: str, steps: int, seconds: float, rate: float) -> dict[str, Any]:
    """Fill, sample, measure memory, kill the node that has the buffer, and count."""
    folder = tempfile.mkdtemp(prefix="lp-bench-", dir="/tmp")
    os.environ |= {"RAY_TMPDIR": folder, "RAY_AUTH_MODE": "disabled", "PYTHONPATH": str(ROOT)}
    from lakepond.distributed import ray_cluster

    ray = ray_cluster.import_ray()
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    try:
        victim = cluster.add_node(**NODE, resources={"victim": 100})
        cluster.add_node(**NODE, resources={"other": 100})
        cluster.wait_for_nodes()
        with ray_cluster.connect(cluster.address, workers=1):
            measured = _Ours if kind == "lakepond" else _Theirs
            return measured(ray, kind, steps, rate, Path(folder)).measure(
                seconds, lambda: _kill(cluster, victim)
            )
    finally:
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def _kill(cluster: Any, node: Any) -> None:
    cluster.remove_node(node, allow_graceful=False)
    cluster.add_node(**NODE, resources={"victim": 100})


class _Case:
    def __init__(self, ray: Any, kind: str, steps: int, rate: float, folder: Path) -> None:
        self.ray, self.kind, self.steps, self.rate, self.folder = ray, kind, steps, rate, folder

    def measure(self, seconds: float, kill: Any) -> dict[str, Any]:
        self.start()
        empty = _memory()
        while self.size() < self.steps:
            time.sleep(0.05)
        full = _memory()
        for _ in range(5):
            self.sample()
        batches, until = 0, time.monotonic() + seconds
        began = time.monotonic()
        while time.monotonic() < until:
            self.sample()
            batches += 1
        rate = batches / (time.monotonic() - began)
        self.stop()
        before = self.size()
        kill()
        return {"batches": rate, "bytes": full - empty, "before": before, "after": self.left(before)}


class _Ours(_Case):
    """Collectors that write a lake, and a follower in this process."""

    def start(self) -> None:
        import lakepond as lp
        from lakepond.distributed import Collectors

        rate = self.rate
        self.place = f"file://{self.folder}/bucket"
        self.collectors = Collectors(
            lambda: Game(rate), random_policy, COLLECTORS, self.place, folder=self.folder / "disks"
        )
        self.replay = lp.Replay.follow(
            self.place, self.steps, discover_every="0.5s", cache=self.folder / "cache"
        )

    def size(self) -> int:
        return len(self.replay)

    def sample(self) -> None:
        self.replay.sample(BATCH)

    def stop(self) -> None:
        self.collectors.close()
        time.sleep(2)

    def left(self, before: int) -> int:
        """The learner has everything; so has one that is started now."""
        import lakepond as lp

        with lp.Replay.follow(self.place, self.steps) as again:
            until = time.monotonic() + 60
            while len(again) < before and time.monotonic() < until:
                time.sleep(0.1)
            return min(len(again), len(self.replay))


class _Theirs(_Case):
    """A buffer in an actor on the node that dies, which Ray restarts; collectors are on the other one."""

    def start(self) -> None:
        options = {"num_cpus": 1, "resources": {"victim": 1}, "max_restarts": -1, "max_task_retries": -1}
        if self.kind == "numpy":
            self.buffer = self.ray.remote(Ring).options(**options).remote(self.steps)
        else:
            from torchrl.data import LazyTensorStorage, RayReplayBuffer

            self.buffer = RayReplayBuffer(
                storage=partial_storage(LazyTensorStorage, self.steps),
                batch_size=BATCH,
                remote_config=options,
            )
        collect = self.ray.remote(collect_into).options(resources={"other": 1}, max_retries=0)
        client = self.buffer if self.kind == "numpy" else self.buffer.client()
        self.tasks = [collect.remote(client, self.kind, self.rate) for _ in range(COLLECTORS)]

    def size(self) -> int:
        return int(self.ray.get(self.buffer.size.remote())) if self.kind == "numpy" else len(self.buffer)

    def sample(self) -> None:
        if self.kind == "numpy":
            self.ray.get(self.buffer.sample.remote(BATCH))
        else:
            self.buffer.sample()

    def stop(self) -> None:
        for task in self.tasks:
            self.ray.cancel(task, force=True)
        time.sleep(2)

    def left(self, before: int) -> int:
        until = time.monotonic() + 90
        while time.monotonic() < until:
            try:
                return self.size()
            except self.ray.exceptions.RayError:
                time.sleep(0.5)
        return -1


def partial_storage(kind: Any, steps: int) -> Any:
    """Made in the actor."""
    from functools import partial

    return partial(kind, steps)


def _memory() -> int:
    """Proportional set size of this process and all its descendants, in bytes."""
    import psutil

    found = 0
    for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        try:
            found += process.memory_full_info().pss
        except psutil.Error:
            continue
    return found


# --- scaling --------------------------------------------------------------------------------------


class Sleeping:
    """An environment that waits, as a slow simulator on another core would."""

    def __init__(self) -> None:
        import gymnasium as gym

        self.observation_space = gym.spaces.Box(-1, 1, (17,), np.float32)
        self.action_space = gym.spaces.Box(-1, 1, (6,), np.float32)
        self._obs = np.zeros(17, np.float32)

    def reset(self, *, seed: int | None = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return self._obs, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Observation, reward, terminated, truncated, info."""
        time.sleep(SLEEP)
        self._obs = np.random.default_rng().random(17, np.float32)
        return self._obs, 0.0, False, False, {}


def scaling(quick: bool) -> Section:
    """One collector, 8 and 32 on this machine."""
    section = Section(
        "ray: scaling with sleeping collectors", ["collectors", "steps/s", "of linear", "bar", "verdict"]
    )
    counts, seconds = ((1, 4), 5.0) if quick else ((1, 8, 32), 30.0)
    alone = 0.0
    for count in counts:
        rate = in_child("benchmarks.ray_buffer:scaled", count=count, seconds=seconds)["rate"]
        alone = alone or rate
        share = rate / (alone * count)
        last = count == counts[-1]
        section.add(count, rate, share, "at least 0.95" if last else None, share >= 0.95 if last else None)
    section.notes.append(
        f"each step takes {SLEEP * 1e3:g} ms of sleep; steps recorded in {seconds:g} s, with a learner that "
        f"follows; all processes on {len(os.sched_getaffinity(0))} cores"
    )
    return section


def scaled(count: int, seconds: float) -> dict[str, Any]:
    """Steps per second that the collectors record, while a learner follows them."""
    import lakepond as lp
    from lakepond.distributed import Collectors

    os.environ |= {"PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
    with tempfile.TemporaryDirectory(prefix="lp-bench-", dir="/tmp") as folder:
        place = f"file://{folder}/bucket"
        policy = lambda: lambda obs: np.zeros((len(obs), 6), np.float32)  # noqa: E731
        how = {"folder": f"{folder}/disks", "commit_every": "5s"}
        with (
            Collectors(Sleeping, policy, count, place, **how) as them,
            lp.Replay.follow(place, 1_000_000, discover_every="1s", cache=f"{folder}/cache") as replay,
        ):
            while not all(each.steps > 10 / SLEEP for each in them.status()):
                time.sleep(0.1)
            first = (time.monotonic(), sum(each.steps for each in them.status()))
            time.sleep(seconds)
            last = (time.monotonic(), sum(each.steps for each in them.status()))
            arrived = replay.recorded
        assert arrived > 0
        return {"rate": (last[1] - first[1]) / (last[0] - first[0])}


if __name__ == "__main__":
    print_report(run)
