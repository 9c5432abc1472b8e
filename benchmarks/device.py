"""The device pond beside flashbax's flat buffer, same shapes, same process: `python -m benchmarks.device`.

Needs flashbax beside lakepond[train]. Prints memory and steps/s of add and sample for Atari stacks
(4, 84, 84) and MinAtar boards (10, 10, 4), and the ratio of ours to theirs; ratios of one run are what counts
on a shared machine. The two take turns, and a ratio is the median of those of the rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.pond.device import Added, DevicePond
from lakepond.types import Field

LANES, CHUNK, BATCH = 32, 32, 256
SHAPES = {
    "atari (4, 84, 84)": (Field((4, 84, 84), "uint8", rows=0), 128),
    "minatar (10, 10, 4)": (Field((10, 10, 4), "uint8", rows=None), 2048),
}


def nbytes(tree: Any) -> int:
    """Of all arrays."""
    return sum(x.nbytes for x in jax.tree.leaves(tree))


ROUNDS, CALLS = 15, 64
Calls = dict[str, tuple[Callable[[], Any], int]]
"""by name: what is timed, and how many steps it adds or samples"""


def rate(call: Callable[[], Any], steps: int) -> float:
    """Steps a second of CPU time: other processes do not count."""
    began = time.process_time()
    for _ in range(CALLS):
        jax.block_until_ready(call())
    return CALLS * steps / (time.process_time() - began)


def rates(calls: Calls) -> dict[str, list[float]]:
    """Of every call, in turns."""
    for call, _ in calls.values():
        jax.block_until_ready(call())
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, (call, steps) in calls.items():
            found[name].append(rate(call, steps))
    return found


def frames(field: Field, count: int) -> jax.Array:
    """Noise, (count, lanes, ...)."""
    rng = np.random.default_rng(0)
    return jnp.asarray(rng.integers(0, 255, (count, LANES, *field.shape), dtype=np.uint8))


def ours(field: Field, capacity: int) -> tuple[int, Calls]:
    """Memory of the device pond, full, and what is timed of it."""
    pond = DevicePond(field, LANES, capacity)
    new = Added(
        action=jnp.zeros((CHUNK, LANES), jnp.int32),
        reward=jnp.ones((CHUNK, LANES)),
        next_obs=frames(field, CHUNK),
        terminated=jnp.zeros((CHUNK, LANES), bool).at[7, 3].set(True),
        truncated=jnp.zeros((CHUNK, LANES), bool),
        reset_obs=frames(field, CHUNK),
    )
    add = jax.jit(pond.add, donate_argnums=0)
    state = pond.begin(pond.init(), new.reset_obs[0])
    for _ in range(capacity // CHUNK + 1):
        state = add(state, new)
    held = {"state": state}

    def add_once() -> Any:
        held["state"] = add(held["state"], new)
        return held["state"].steps

    sample = jax.jit(lambda state, key: pond.sample(state, key, BATCH, n_step=3, gamma=0.99))
    sample_1 = jax.jit(lambda state, key: pond.sample(state, key, BATCH))
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 100_000))
    return nbytes(state), {
        "add": (add_once, CHUNK * LANES),
        "sample 3-step": (lambda: sample(held["state"], next(keys)), BATCH),
        "sample": (lambda: sample_1(held["state"], next(keys)), BATCH),
    }


def theirs(field: Field, capacity: int) -> tuple[int, Calls]:
    """Memory of flashbax's flat buffer, full, and what is timed of it."""
    import flashbax

    buffer = flashbax.make_flat_buffer(
        max_length=capacity * LANES,
        min_length=BATCH,
        sample_batch_size=BATCH,
        add_sequences=True,
        add_batch_size=LANES,
    )
    one = {
        "obs": jnp.zeros(field.shape, jnp.uint8),
        "action": jnp.int32(0),
        "reward": jnp.float32(0),
        "terminated": jnp.bool_(False),
        "truncated": jnp.bool_(False),
    }
    new = {
        "obs": jnp.swapaxes(frames(field, CHUNK), 0, 1),
        "action": jnp.zeros((LANES, CHUNK), jnp.int32),
        "reward": jnp.ones((LANES, CHUNK)),
        "terminated": jnp.zeros((LANES, CHUNK), bool),
        "truncated": jnp.zeros((LANES, CHUNK), bool),
    }
    add = jax.jit(buffer.add, donate_argnums=0)
    state = buffer.init(one)
    for _ in range(capacity // CHUNK + 1):
        state = add(state, new)
    held = {"state": state}

    def add_once() -> Any:
        held["state"] = add(held["state"], new)
        return held["state"].current_index

    sample = jax.jit(buffer.sample)
    keys = iter(jax.random.split(jax.random.PRNGKey(0), 100_000))
    return nbytes(state), {
        "flashbax add": (add_once, CHUNK * LANES),
        "flashbax sample": (lambda: sample(held["state"], next(keys)), BATCH),
    }


def hundred_thousand() -> dict[str, float]:
    """100k Atari steps in a device pond, all of them written, and what 1M would take."""
    field = Field((4, 84, 84), "uint8", rows=0)
    pond = DevicePond(field, 32, 3125)
    state = pond.begin(pond.init(), frames(field, 1)[0])
    new = Added(
        jnp.zeros((25, LANES), jnp.int32),
        jnp.ones((25, LANES)),
        frames(field, 25),
        jnp.zeros((25, LANES), bool),
        jnp.zeros((25, LANES), bool),
        frames(field, 25),
    )
    add = jax.jit(pond.add, donate_argnums=0)
    for _ in range(125):
        state = add(state, new)
    assert int(pond.held(state)) == 100_000
    million = DevicePond(field, 32, 31_250).nbytes
    return {"bytes_100k": nbytes(state), "promised_100k": pond.nbytes, "bytes_1m": million}


def main() -> None:
    """Measure and print."""
    found: dict[str, Any] = {}
    for name, (field, capacity) in SHAPES.items():
        our_bytes, our_calls = ours(field, capacity)
        their_bytes, their_calls = theirs(field, capacity)
        took = rates({**our_calls, **their_calls})
        found[name] = {
            "bytes": [our_bytes, their_bytes],
            "memory_ratio": our_bytes / their_bytes,
            "steps_per_cpu_second": {call: statistics.median(each) for call, each in took.items()},
            **{
                f"{call}_ratio".replace(" ", "_"): statistics.median(
                    mine / peer
                    for mine, peer in zip(took[call], took[f"flashbax {call.split()[0]}"], strict=True)
                )
                for call in our_calls
            },
        }
        print(name, json.dumps(found[name], default=float), file=sys.stderr)
    found["atari memory"] = hundred_thousand()
    print(json.dumps(found, indent=1, default=float))


if __name__ == "__main__":
    main()
