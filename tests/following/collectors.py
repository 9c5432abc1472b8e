"""Writers whose steps say who recorded them: `who` is the writer's number, `reward` the step's id.

`python collectors.py PATH NUMBER STEPS EVERY` is one of them as a process: it continues where it stopped,
commits every `EVERY` steps and reports how many are committed.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from reference import WORLDS, same_bytes

STREAMS, EPISODE = 3, 7
QUICK = {"poll_every": "0.01s", "discover_every": "0.05s"}
"""for followers"""
MANY_WORLDS = ["vector", "frames first", "colour frames last", "market window", "dict and tuple", "noise"]


def catch_up(replay: lp.FollowedReplay) -> None:
    """Poll until there is no newer commit."""
    before = None
    while before != (before := [chain.number for chain in replay._follower.states.values()]):
        replay._follower.poll()


def spec_of(world: str = "vector") -> lp.Spec:
    return lp.Spec(
        obs=WORLDS[world].fields, action=lp.Field((2,), "float32"), extras={"who": lp.Field((), "int32")}
    )


def step_of(who: int, n: int, world: str = "vector") -> dict[str, Any]:
    """Step n of a writer: streams take turns, episodes last 7 steps and end in one of two ways."""
    stream, turn = n % STREAMS, n // STREAMS
    episode, t = stream + STREAMS * (turn // EPISODE) + 1000 * who, turn % EPISODE
    observe = WORLDS[world].observe
    return {
        "obs": observe(episode, t),
        "next_obs": observe(episode, t + 1),
        "action": np.array([n, who], np.float32),
        "reward": float(n),
        "terminated": t == EPISODE - 1 and episode % 2 == 0,
        "truncated": t == EPISODE - 1 and episode % 2 == 1,
        "who": who,
        "stream": stream,
    }


def name_of(who: int) -> str:
    return f"collector-{who}" if who else ""


class Collector:
    """A writer in this process."""

    def __init__(self, path: Path, who: int, world: str = "vector", capacity: int = 100, **how: Any) -> None:
        self.who, self.world = who, world
        self.replay = lp.Replay.open(path, spec_of(world), capacity, writer=name_of(who), **how)

    def record(self, count: int, *, commit: bool = True) -> None:
        start = self.replay.recorded
        for n in range(start, start + count):
            self.replay.record(**step_of(self.who, n, self.world))
        if commit:
            self.replay.commit()

    def close(self) -> None:
        self.replay.close()


def steps_in(replay: lp.Replay) -> list[tuple[int, int]]:
    """(who, id) of all live steps, in the order of their arrival."""
    if not len(replay):
        return []
    batch = replay.steps(np.arange(replay.oldest, replay.recorded))
    return list(zip(batch.extras["who"].tolist(), batch.reward.astype(int).tolist(), strict=True))


def each_once_in_order(replay: lp.Replay, expected: dict[int, tuple[int, int]]) -> None:
    """Of each writer the steps [start, stop), each once and in their order, every value as recorded."""
    found = steps_in(replay)
    for who, (start, stop) in expected.items():
        assert [n for other, n in found if other == who] == list(range(start, stop))
    assert len(found) == sum(stop - start for start, stop in expected.values())


def agrees(batch: lp.Batch, world: str = "vector") -> None:
    """Every step of a batch is what its writer recorded."""
    streams: dict[int, tuple[int, int]] = {}
    for i, (who, reward) in enumerate(zip(batch.extras["who"].tolist(), batch.reward.tolist(), strict=True)):
        step = step_of(who, int(reward), world)
        assert same_bytes(_item(batch.obs, i), step["obs"])
        assert same_bytes(_item(batch.next_obs, i), step["next_obs"])
        assert same_bytes(batch.action[i], step["action"])
        assert (batch.terminated[i], batch.truncated[i]) == (step["terminated"], step["truncated"])
        stream = int(batch.stream[i])
        assert streams.setdefault(stream, (who, step["stream"])) == (who, step["stream"])  # kept apart
    assert len(set(streams.values())) == len(streams)


def _item(tree: Any, i: int) -> Any:
    if isinstance(tree, dict):
        return {key: _item(sub, i) for key, sub in tree.items()}
    if isinstance(tree, tuple):
        return tuple(_item(sub, i) for sub in tree)
    return tree[i]


def same_batch(a: lp.Batch, b: lp.Batch) -> bool:
    return all(same_bytes(x, y) for x, y in zip(a, b, strict=True))


def wait_until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "in vain"
        time.sleep(0.005)


def process(path: Path, who: int, steps: int, every: int, *more: str) -> subprocess.Popen[str]:
    """One of them as a process; each line of its output is the number of committed steps."""
    command = [sys.executable, __file__, str(path), str(who), str(steps), str(every), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def report(collector: Collector) -> None:
    sys.stdout.write(f"{collector.replay.recorded}\n")
    sys.stdout.flush()


def main() -> None:
    path, who, steps, every = Path(sys.argv[1]), *map(int, sys.argv[2:5])
    cloud = {"cloud": sys.argv[5], "push_every": "0.1s"} if len(sys.argv) > 5 else {}
    collector = Collector(path, who, **cloud)
    report(collector)
    while collector.replay.recorded < steps:
        collector.record(every)
        report(collector)
        time.sleep(0.002)
    collector.close()


if __name__ == "__main__":
    main()
