"""How time and memory are measured here.

Time: contestants take turns on the same data, so that noise hits all alike, and the best turn counts, because
a busy machine only ever makes code slower. Where turns differ in work (an episode ends in this one, not in
that one) whole passes are repeated over the same data and the best of each turn is summed: see `Laps`.

Memory: growth of the resident set in a fresh process for each contestant, after imports, a rehearsal and the
caller's own arrays, and after the allocator gave back what it could.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
# glibc hands large freed blocks back to the kernel and faults them in again; with these it keeps them.
KEEP_HEAP = {"MALLOC_TRIM_THRESHOLD_": str(2**30), "MALLOC_MMAP_THRESHOLD_": str(2**25)}  # some refuse more


class Rate(NamedTuple):
    """Units a second: in the best turn and in the middle one."""

    best: float
    median: float


class Laps:
    """Times of several passes over the same sequence of turns.

    pass 0:  chunk 0   chunk 1   chunk 2 ...
    pass 1:  chunk 0   chunk 1   chunk 2 ...      the best of each column, summed, is the time of the whole
    """

    def __init__(self) -> None:
        self._seconds: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))

    def take(self, chunk: int, turns: Mapping[str, Callable[[], object]]) -> None:
        """Let every contestant do this chunk, each time another one first."""
        names = list(turns)
        first = (chunk + len(self._seconds[names[0]][chunk])) % len(names)
        for name in names[first:] + names[:first]:
            begin = time.perf_counter()
            turns[name]()
            self._seconds[name][chunk].append(time.perf_counter() - begin)

    def rate(self, name: str, units_a_chunk: int) -> Rate:
        """Units a second over all chunks."""
        chunks = self._seconds[name].values()
        units = units_a_chunk * len(chunks)
        return Rate(units / sum(map(min, chunks)), units / sum(map(statistics.median, chunks)))


def interleaved(turns: Mapping[str, Callable[[], object]], units: int, repeats: int) -> dict[str, Rate]:
    """Units a second for turns that are all the same work."""
    laps = Laps()
    laps.take(0, turns)  # rehearsal: outputs allocated, caches warm
    laps = Laps()
    for _ in range(repeats):
        laps.take(0, turns)
    return {name: laps.rate(name, units) for name in turns}


def resident_bytes() -> int:
    """The resident set of this process, after giving back what can be given back."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Rss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no Rss in /proc/self/smaps_rollup: memory can only be measured on Linux")


def in_child(function: str, env: Mapping[str, str] | None = None, **arguments: Any) -> Any:
    """Call `module:function` with JSON arguments in a fresh process and hand back its result."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.measure", function, json.dumps(arguments)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"{function}({arguments}) failed in its own process:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def fill_randomly(array: np.ndarray, rng: np.random.Generator) -> None:
    """Random bytes in place; the array must be contiguous and a multiple of eight bytes long."""
    words = array.reshape(-1).view(np.uint64)
    words[:] = rng.integers(0, 2**64, len(words), dtype=np.uint64)


def main() -> None:
    """Be the child of `in_child`: the result is the last line of stdout."""
    module, name = sys.argv[1].split(":")
    result = getattr(importlib.import_module(module), name)(**json.loads(sys.argv[2]))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
