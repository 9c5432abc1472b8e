"""Environments whose steps say who recorded them: obs is (process, environment, step)."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import gymnasium as gym
import numpy as np
import psutil

import lakepond as lp

EPISODE = 50
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


class Constant:
    """Every action is the number that was broadcast last, 0 before."""

    def __init__(self) -> None:
        self.value = 0

    def load(self, params) -> None:
        self.value = int(params["value"])

    def __call__(self, obs):
        return np.full(len(obs), self.value)


def counted(obs: np.ndarray) -> dict[tuple[int, int], list[int]]:
    """For each environment of each process, the numbers of its steps, in the order of `obs`."""
    found = defaultdict(list)
    for pid, number, n in obs.tolist():
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
def killing_a_busy_worker() -> Iterator[None]:
    """Kill (-9) one Ray worker of a trainer during a block, while it does a task; there must be one."""
    killed, ended = [], threading.Event()

    def kill() -> None:
        while not killed and not ended.wait(0.02):
            for each in psutil.process_iter(["cmdline"]):
                if "_Worker.call" in " ".join(each.info["cmdline"] or ()):
                    ended.wait(0.5)
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
