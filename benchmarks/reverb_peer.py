"""Reverb on the Atari workload, in a venv of its own, because it needs TensorFlow and an older NumPy.

.venv-bench/bin/python -c "from benchmarks.frames import play; play('breakout', 3750)"
python3 -m venv .venv-reverb && .venv-reverb/bin/pip install 'dm-reverb[tensorflow]==0.14.0' pillow
.venv-reverb/bin/python -m benchmarks.reverb_peer breakout 20000 docs/results/reverb.json

A step is one row of a chunk and a transition an item over five frames, so frames are stored once. Sampled
with `client.sample` and with a batched `TrajectoryDataset`; the faster of the two counts.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frames import ENVS, STACK, Play, play
from benchmarks.measure import Laps, resident_bytes

BATCH, CALLS, PASSES, DRAWS, TURNS = 256, 125, 3, 10, 15
"""items per batch, calls of eight steps between two flushes, and how often each is measured"""


class Reverb:
    """A table of transitions, with one writer per environment."""

    def __init__(self, capacity: int, recording: Play) -> None:
        import reverb

        self.recording = recording
        table = reverb.Table(
            "steps",
            sampler=reverb.selectors.Uniform(),
            remover=reverb.selectors.Fifo(),
            max_size=capacity,
            rate_limiter=reverb.rate_limiters.MinSize(1),
        )
        self.server = reverb.Server([table])
        self.client = reverb.Client(f"localhost:{self.server.port}")
        self._writers = [self.client.trajectory_writer(num_keep_alive_refs=STACK + 1) for _ in range(ENVS)]
        self._starts = [True] * ENVS

    def record(self, start: int, stop: int) -> None:
        """Calls [start, stop), until the server has them."""
        recording = self.recording
        for call in range(start, stop):
            for env, writer in enumerate(self._writers):
                newest = recording.newest[call, env]
                for _ in range(STACK * self._starts[env]):  # the first frame of an episode fills its stack
                    writer.append({"frame": recording.frames[newest], "n": np.int64(0)})
                writer.append({"frame": recording.frames[newest + 1], "n": np.int64(call * ENVS + env)})
                item = {"frame": writer.history["frame"][-STACK - 1 :], "n": writer.history["n"][-1:]}
                writer.create_item("steps", 1.0, item)
                self._starts[env] = bool(recording.terminated[call, env] or recording.truncated[call, env])
                if self._starts[env]:
                    writer.end_episode()
        for writer in self._writers:
            writer.flush()

    def one_by_one(self) -> Callable[[], tuple[Any, ...]]:
        """A function that returns a batch from `client.sample`."""

        def draw() -> tuple[Any, ...]:
            obs = np.empty((BATCH, STACK, 84, 84), np.uint8)
            next_obs, steps = np.empty_like(obs), np.empty(BATCH, np.int64)
            for i, sample in enumerate(self.client.sample("steps", BATCH, emit_timesteps=False)):
                frames, number = sample.data  # flat, in the order of the names
                obs[i], next_obs[i], steps[i] = frames[:-1], frames[1:], number[0]
            return obs, next_obs, steps

        return draw

    def batched(self) -> Callable[[], tuple[Any, ...]]:
        """A function that returns a batch of a `TrajectoryDataset`, which prefetches on its own threads."""
        import reverb
        import tensorflow as tf

        data = reverb.TrajectoryDataset(
            f"localhost:{self.server.port}",
            "steps",
            dtypes={"frame": tf.uint8, "n": tf.int64},
            shapes={"frame": tf.TensorShape([STACK + 1, 84, 84]), "n": tf.TensorShape([1])},
            max_in_flight_samples_per_worker=2 * BATCH,
        )
        batches: Iterator[Any] = data.batch(BATCH).prefetch(1).as_numpy_iterator()

        def draw() -> tuple[Any, ...]:
            frames, number = next(batches).data["frame"], None
            return frames[:, :-1].copy(), frames[:, 1:].copy(), number

        return draw


def measure(game: str, capacity: int) -> dict[str, Any]:
    """Memory, rates and wrong answers, by the names of the columns in docs/results/bench.md."""
    calls = capacity * 3 // 2 // ENVS
    recording = play(game, calls)
    filling = capacity // ENVS // CALLS
    rehearsal = Reverb(256, recording)
    rehearsal.record(0, 64)
    rehearsal.one_by_one()()
    del rehearsal
    fill, full = Laps(), Laps()
    memory = 0.0
    for number in range(PASSES):
        before = resident_bytes()
        buffer = Reverb(capacity, recording)
        for chunk in range(calls // CALLS):
            turn = partial(buffer.record, chunk * CALLS, (chunk + 1) * CALLS)
            (fill if chunk < filling else full).take(chunk, {"Reverb": turn})
            if number == 0 and chunk + 1 == filling:
                memory = (resident_bytes() - before) / capacity
    rates = {}
    for name, draw in (("client.sample", buffer.one_by_one()), ("TrajectoryDataset", buffer.batched())):
        draw()
        laps = []
        for _ in range(TURNS):
            begin = time.perf_counter()
            for _ in range(DRAWS):
                draw()
            laps.append(time.perf_counter() - begin)
        rates[name] = DRAWS * BATCH / min(laps)
    wrong = np.zeros(2, int)
    draw = buffer.one_by_one()
    for _ in range(16):
        obs, next_obs, steps = draw()
        wrong += [
            (found != recording.stacks(steps, ahead)).any(axis=(1, 2, 3)).sum()
            for ahead, found in enumerate((obs, next_obs))
        ]
    return {
        "contestant": "Reverb",
        "RAM B/step": memory,
        "record/s, first fill": fill.rate("Reverb", CALLS * ENVS).best,
        "record/s, ring full": full.rate("Reverb", CALLS * ENVS).best,
        "sample/s": max(rates.values()),
        "sample/s by way": rates,
        "wrong obs": f"{wrong[0]}/{16 * BATCH}",
        "wrong next_obs": f"{wrong[1]}/{16 * BATCH}",
    }


def main() -> None:
    """Measure; the last line is the result as JSON, which also goes to a file if one is named."""
    found = json.dumps(measure(sys.argv[1], int(sys.argv[2])))
    if len(sys.argv) > 3:
        command = f".venv-reverb/bin/python -m benchmarks.reverb_peer {' '.join(sys.argv[1:])}"
        date = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
        report = {"command": command, "date": date, "version": "dm-reverb 0.14.0", **json.loads(found)}
        Path(sys.argv[3]).write_text(json.dumps(report, indent=1) + "\n")
    print(found)


if __name__ == "__main__":
    main()
