"""Reverb beside the lake, in a venv of its own, because it wants TensorFlow and an older NumPy.

python3 -m venv .venv-reverb && .venv-reverb/bin/pip install 'dm-reverb[tensorflow]==0.14.0' pillow
.venv-reverb/bin/python -m benchmarks.reverb_peer breakout 20000

A step is one row of a chunk, a transition an item over five frames that share chunks: its best form here.
Sampled transition by transition into arrays of 256, as a learner would have them.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median

import numpy as np

from benchmarks.frames import ENVS, STACK, play

BATCH, TURNS = 256, 20


def main() -> None:
    """Insert the steps of a recording, then sample; the last line is the rate as JSON."""
    import reverb

    game, steps = sys.argv[1], int(sys.argv[2])
    recording = play(game, steps // ENVS)
    table = reverb.Table(
        "steps",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=steps,
        rate_limiter=reverb.rate_limiters.MinSize(1),
    )
    server = reverb.Server([table])
    client = reverb.Client(f"localhost:{server.port}")
    rows = 0
    for env in range(ENVS):
        with client.trajectory_writer(num_keep_alive_refs=STACK + 1) as writer:
            since = 0
            for call in range(steps // ENVS):
                if since == 0:
                    writer.append({"frame": recording.frames[recording.newest[call, env]], "n": np.int64(0)})
                    since = 1
                step = call * ENVS + env
                writer.append(
                    {"frame": recording.frames[recording.newest[call, env] + 1], "n": np.int64(step)}
                )
                since += 1
                if since > STACK:
                    trajectory = {
                        "frame": writer.history["frame"][-STACK - 1 :],
                        "n": writer.history["n"][-1:],
                    }
                    writer.create_item("steps", 1.0, trajectory)
                    rows += 1
                if recording.terminated[call, env] or recording.truncated[call, env]:
                    writer.end_episode()
                    since = 0
            writer.end_episode()
    laps = []
    for _ in range(TURNS):
        begin = time.perf_counter()
        obs = np.empty((BATCH, STACK, 84, 84), np.uint8)
        next_obs = np.empty_like(obs)
        for i, sample in enumerate(client.sample("steps", num_samples=BATCH, emit_timesteps=False)):
            frames = sample.data[0]  # flat, in the order of the names
            obs[i], next_obs[i] = frames[:-1], frames[1:]
        laps.append(time.perf_counter() - begin)
    print(json.dumps({"rate": BATCH / median(laps), "items": rows}))


if __name__ == "__main__":
    main()
