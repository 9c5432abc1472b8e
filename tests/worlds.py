"""Environments whose steps say who recorded them: obs is (process, environment, step)."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import gymnasium as gym
import numpy as np
import psutil

import lakepond as lp
from faults.nodes import Nodes
from lakepond.errors import SpecError

EPISODE = 50
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1"}
LISTEN = "0A"
"""the state of a socket in /proc/net/tcp"""
_numbers = itertools.count()


class Counting(gym.Env):
    """Counts its steps over all episodes; `pause`: seconds that a step takes."""

    observation_space = gym.spaces.Box(0, 2**40, (3,), np.int64)
    action_space = gym.spaces.Discrete(1000)

    def __init__(self, pause: float = 0.002, fail_at: int | None = None) -> None:
        self.number, self.n, self.pause, self.fail_at = next(_numbers), 0, pause, fail_at

    def reset(self, *, seed=None, options=None):
        return self._obs(), {}

    def step(self, action):
        time.sleep(self.pause)
        if self.n == self.fail_at:
            raise RuntimeError("the emulator has crashed")
        self.n += 1
        return self._obs(), float(action), False, self.n % EPISODE == 0, {}

    def _obs(self):
        return np.array([os.getpid(), self.number, self.n], np.int64)


class Hosted(Counting):
    """A game of the suite gymnasium; the reward is 1 where the process sees the first GPU and no other."""

    observation_space = gym.spaces.Box(0, 2**24, (3,), np.float32)  # exact for these numbers
    action_space = gym.spaces.Discrete(2)

    def step(self, action):
        obs, _, *rest = super().step(action)
        return obs, float(os.environ.get("CUDA_VISIBLE_DEVICES") == "0"), *rest

    def _obs(self):
        return super()._obs().astype(np.float32)


gym.register("Hosted-v0", Hosted, kwargs={"pause": 0.0})


class Constant:
    """Every action is the number that was broadcast last, 0 before."""

    def __init__(self) -> None:
        self.value = 0

    def load(self, params) -> None:
        self.value = int(params["value"])

    def __call__(self, obs):
        return np.full(len(obs), self.value)


class TooFew(Constant):
    """Returns no actions."""

    def __call__(self, obs):
        return np.zeros(0, np.int64)


class Counts:
    """What workers of `Workers` do in tests."""

    def __init__(self, name: str) -> None:
        """Nothing depends on the name."""

    def square(self, number: int) -> int:
        if number < 0:
            raise SpecError(f"{number} is negative")
        return number * number

    def die_once(self, file: Path, number: int) -> int:
        """Dies (-9) if it is the first to make the file."""
        try:
            os.close(os.open(file, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return number
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it has survived")

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def gpus(self) -> str | None:
        """Those that JAX and PyTorch see in this process."""
        return os.environ.get("CUDA_VISIBLE_DEVICES")

    def close(self) -> None:
        """There is nothing to release."""


def nothing() -> None:
    """An environment that was forgotten."""


class Sees(Constant):
    """Every action is 1 where the process sees the first GPU and no other, else 0."""

    def __call__(self, obs):
        return np.full(len(obs), int(os.environ.get("CUDA_VISIBLE_DEVICES") == "0"))


def counted(obs: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """For each environment of each process, the numbers of its steps, in the order of `obs`."""
    found = defaultdict(list)
    for pid, number, n in obs.astype(np.int64).tolist():
        found[pid, number].append(n)
    return found


def each_once(obs: np.ndarray) -> dict[int, int]:
    """Of each environment all steps from 0 on, each once and in order; returns the steps of each process."""
    steps = defaultdict(int)
    for (pid, _), numbers in counted(obs).items():
        assert numbers == list(range(len(numbers)))
        steps[pid] += len(numbers)
    return dict(steps)


def all_obs(lake: lp.Lake) -> np.ndarray:
    return lake.steps(lake.commit.oldest, lake.commit.recorded).obs


def all_of(replay: lp.Replay) -> np.ndarray:
    return replay.steps(np.arange(replay.oldest, replay.recorded)).obs


def wait_until(condition, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.05)


@contextmanager
def killing_a_busy_worker(
    cluster: Nodes | None = None, once: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Kill (-9) one worker of a trainer during a block, while it does a task.

    cluster: of the worker; None: the Ray that this process has started. once: it is not killed before this
    is true. Fails if there was no worker to kill.
    """
    killed, ended = [], threading.Event()
    workers = partial(psutil.Process().children, recursive=True) if cluster is None else cluster.workers

    def kill() -> None:
        while not killed and not ended.wait(0.1):
            for each in workers() if once() else ():
                with suppress(psutil.NoSuchProcess):  # it has just ended
                    if "_Worker.call" in " ".join(each.cmdline()):
                        ended.wait(0.2)
                        each.kill()
                        killed.append(each.pid)
                        break

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    assert killed


@contextmanager
def nothing_left_of_ray(pid: int) -> Iterator[set[int]]:
    """For a block that ends a program with a Ray of its own: the processes that it has started.

    They listen at this machine only, and have ended, and Ray's folder is gone, soon after the block.
    """
    started = {child.pid for child in psutil.Process(pid).children(recursive=True)}
    assert listening(started) <= LOOPBACK
    folders = {folder for pid in started for folder in _ray_folders(pid)}
    assert len(folders) == 1
    yield started
    wait_until(lambda: not any(map(_is_running, started)), 15)
    wait_until(lambda: not any(map(os.path.exists, folders)), 15)


def listening(pids: set[int]) -> set[str]:
    """The addresses that these processes listen to, also in a network namespace of their own."""
    found = {address for pid in pids for address in _listening(pid)}
    assert found
    return found


def _listening(pid: int) -> Iterator[str]:
    """psutil reads the sockets of the caller's own namespace only."""
    sockets = {name.removeprefix("socket:[").rstrip("]") for name in _open_files(pid)}
    for table, family in (("tcp", socket.AF_INET), ("tcp6", socket.AF_INET6)):
        with suppress(OSError):  # it was a short one
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                address, state, inode = fields[1].partition(":")[0], fields[3], fields[9]
                if state == LISTEN and inode in sockets:  # words of 32 bits, the lowest byte first
                    words = np.frombuffer(bytes.fromhex(address), np.uint32).byteswap()
                    yield socket.inet_ntop(family, words.tobytes())


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):  # it was closed
                found.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def _is_running(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def _ray_folders(pid: int) -> set[str]:
    start = "/tmp/lakepond-ray-"
    return {"/".join(name.split("/")[:3]) for name in _open_files(pid) if name.startswith(start)}
