"""What is done while the pond is locked does not grow with its capacity: counted, not timed.

Python code is counted by the lines that run, NumPy by the bytes that it allocates, writing to whole rings,
which need not allocate, by the memory that they take: a ring takes memory only where it was written.
"""

from __future__ import annotations

import resource
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp

SMALL, LARGE = 4_000, 64_000
VECTOR = lp.Field((3,), "float32")
FRAMES = lp.Field((4, 8, 8), "uint8", rows=0)


def steps(field: lp.Field, start: int, count: int) -> dict[str, np.ndarray]:
    """Steps of two streams in turn; their episodes have 50 steps."""
    t = np.arange(start, start + count)
    obs = ((t // 2)[:, np.newaxis] + np.arange(5)).astype(field.dtype)
    if field is VECTOR:
        seen, then = obs[:, :3], obs[:, 1:4]
    else:
        frames = np.broadcast_to(obs[:, :, np.newaxis, np.newaxis], (count, 5, 8, 8))
        seen, then = frames[:, :4], frames[:, 1:]
    ends = t // 2 % 50 == 49
    rest = {"action": t, "reward": t.astype(np.float32), "terminated": ends, "truncated": ends & False}
    return {
        "obs": np.ascontiguousarray(seen),
        "next_obs": np.ascontiguousarray(then),
        **rest,
        "stream": t % 2,
    }


def filled(field: lp.Field, capacity: int, count: int) -> lp.Replay:
    """A replay that many steps were recorded to."""
    replay = lp.Replay(lp.Spec(obs=field), capacity, alpha=0.6)
    for at in range(0, count, 1_000):
        replay.record(**steps(field, at, min(1_000, count - at)))
    return replay


def calls(replay: lp.Replay, field: lp.Field) -> dict[str, Callable[[], object]]:
    """What a learner and a recorder do."""
    rng = np.random.default_rng(0)
    one = {name: value[0] for name, value in steps(field, replay.recorded, 1).items()} | {"stream": 0}
    return {
        "record": lambda: replay.record(**one),
        "record a batch": lambda: replay.record(**steps(field, replay.recorded, 8)),
        "cut and record": lambda: (replay.cut([0, 5]), replay.record(**one)),
        "end": lambda: replay.end(0),
        "sample": lambda: replay.sample(32, rng=rng),
        "sample, 3 steps": lambda: replay.sample(32, rng=rng, n_step=3, gamma=0.9),
        "sample without replacement": lambda: replay.sample(32, rng=rng, replace=False),
        "sample sequences": lambda: replay.sample(8, rng=rng, sequence_length=4),
        "update priorities": lambda: replay.update_priorities(
            np.arange(-32, 0) + replay.recorded, np.ones(32)
        ),
        "recent": lambda: replay.recent(10),
        "recent of a stream": lambda: replay.recent(10, stream=1),
        "steps": lambda: replay.steps(replay.recorded - np.arange(1, 9)),
        "stats": replay.stats,
    }


def lines_and_bytes(call: Callable[[], object]) -> tuple[int, int]:
    """Lines of lakepond that a call runs, and the most bytes that it allocates."""
    lines = 0

    def trace(frame, event, _):
        nonlocal lines
        if "/lakepond/" not in frame.f_code.co_filename:
            return None
        lines += event == "line"
        return trace

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    call()
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
    return lines, peak


@pytest.mark.parametrize("field", [VECTOR, FRAMES], ids=["vectors", "frames"])
@pytest.mark.parametrize("turns", [1, 2], ids=["full", "overwritten once"])
def test_lines_and_bytes_do_not_grow_with_the_steps_that_are_live(field, turns):
    small, large = (filled(field, size, turns * size) for size in (SMALL, LARGE))
    few, many = calls(small, field), calls(large, field)
    for name, call in few.items():
        for warm_up in (call, many[name]):  # links that are due, caches
            warm_up()
            warm_up()
        lines, used = zip(*(lines_and_bytes(each[name]) for each in (few, many)), strict=True)
        assert lines[1] <= lines[0] + 40, name  # such as a round more of rejected draws
        assert used[1] <= used[0] + 64_000, name  # the live steps are 16 times as many


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("field", [VECTOR, FRAMES], ids=["vectors", "frames"])
def test_no_call_writes_to_the_part_of_a_ring_that_was_never_used(field):
    """Rings of fifty million places, 50 MB or more each, of which 2,000 were written."""
    for call in calls(filled(field, 2_000, 2_000), field).values():
        call()
    before = resident_bytes()
    replay = filled(field, 50_000_000, 2_000)
    for name, call in calls(replay, field).items():
        call()
        assert resident_bytes() - before < 40e6, name
