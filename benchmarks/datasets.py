"""DataLoader over a lake four times larger than a memory limit, beside `lake.sample` in one process.

    python -m benchmarks.datasets make       records the lake, 5.7 GB on disk, under .cache/bench
    python -m benchmarks.datasets run        measures all cases, each in a process of its own
    python -m benchmarks.datasets run CASE   measures one: sample, 0, 1, 2, 3, 4, 2-spawn, ...

The private memory of all processes together, the parent and its workers, is watched 20 times a second. A
case with up to two workers fails if it exceeds the limit, or if the lake is not four times larger on disk.
The frames are noise of four bits a pixel, which zstd halves.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

from benchmarks.report import machine

LIMIT = 1_400_000_000
STEPS = 1_600_000
BATCH = 256
SECONDS = 12.0
FOLDER = Path(".cache/bench/datasets")
CASES = {
    "sample": {},
    **{str(workers): {"workers": workers} for workers in range(5)},
    "2-spawn": {"workers": 2, "context": "spawn"},
    "2-replace": {"workers": 2, "replace": True},
    "2-sequences": {"workers": 2, "sequence_length": 20, "burn_in": 10, "batch": 16},
    "2-epoch": {"workers": 2, "whole": True},
    "2-spawn-epoch": {"workers": 2, "context": "spawn", "whole": True},
}


def make() -> None:
    """Record the lake: one environment, episodes of 1,000 steps, four stacked frames."""
    import lakepond as lp

    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8", rows=0), action=lp.Field((), "int64"))
    rng = np.random.default_rng(0)
    with lp.Replay.open(FOLDER / "lake", spec, capacity=4_000) as replay:
        for at in range(0, STEPS, 1_000):
            frames = rng.integers(0, 16, (1_004, 84, 84), dtype=np.uint8)
            stacks = np.lib.stride_tricks.sliding_window_view(frames, 4, axis=0).transpose(0, 3, 1, 2)
            ends = np.arange(1_000) == 999
            replay.record(
                obs=np.ascontiguousarray(stacks[:1_000]),
                action=np.arange(at, at + 1_000) % 18,
                reward=np.arange(at, at + 1_000, dtype=np.float32),
                next_obs=np.ascontiguousarray(stacks[1:1_001]),
                terminated=ends,
                truncated=np.zeros(1_000, bool),
                stream=0,
            )
            if at % 20_000 == 19_000:
                replay.commit()
        replay.commit()


def measure(name: str) -> dict[str, float]:
    """One case, in this process."""
    import lakepond as lp
    from lakepond.adapters.datasets import LakeDataset, LakeLoader

    case = dict(CASES[name])
    lake = lp.Lake.open(FOLDER / "lake")
    disk = lake.stats().bytes_on_disk
    assert disk > 4 * LIMIT, f"the lake has {disk:,} bytes, which is not four times the limit"
    peak = Peak()
    if name == "sample":
        rng = np.random.default_rng(0)
        lake.sample(BATCH, rng=rng)
        begin, batches = time.perf_counter(), 0
        while time.perf_counter() - begin < SECONDS:
            lake.sample(BATCH, rng=rng)
            batches += 1
        seconds, seen = time.perf_counter() - begin, None
    else:
        workers, context = case["workers"], case.pop("context", None)
        whole, size = case.pop("whole", False), case.pop("batch", BATCH)
        options = {name: value for name, value in case.items() if name != "workers"}
        dataset = LakeDataset(lake, size, seed=0, **options)
        context = "fork" if workers and context is None else context
        loader = LakeLoader(dataset, num_workers=workers, multiprocessing_context=context)
        count = np.zeros(STEPS, np.int64)
        begin, batches, first = time.perf_counter(), 0, 0.0
        for batch in loader:
            np.add.at(count, batch.step_id.numpy()[batch.weight.numpy() == 1], 1)
            if batches == 8:  # the workers have started
                first, begin = time.perf_counter() - begin, time.perf_counter()
            batches += 1
            if not whole and time.perf_counter() - begin > SECONDS and batches > 16:
                break
        seconds, batches = time.perf_counter() - begin, batches - 9
        seen = count
        if whole:
            assert (count == 1).all(), "not every step came exactly once"
    found = {"batches/s": batches / seconds, "disk": disk, **peak.stop()}
    assert case.get("workers", 0) > 2 or found["together"] < LIMIT, (
        f"{found['together']:,} bytes of private memory, the limit is {LIMIT:,}"
    )
    if name != "sample":
        assert seen is not None
        found |= {"first batches": first, "steps": int(seen.sum()), "most often": int(seen.max())}
    return found


class Peak:
    """The most private memory of this process and of its workers, 20 times a second."""

    def __init__(self) -> None:
        self._largest = self._total = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped.wait(0.05):
            found = [_private(pid) for pid in (os.getpid(), *_children(os.getpid()))]
            self._largest = max(self._largest, *found)
            self._total = max(self._total, sum(found))

    def stop(self) -> dict[str, float]:
        """The largest process, and all together."""
        self._stopped.set()
        self._thread.join()
        return {"largest": self._largest, "together": self._total}


def _children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _private(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def main() -> None:
    """Make the lake, measure, print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets")
    parser.add_argument("what", choices=["make", "run", "one"])
    parser.add_argument("cases", nargs="*", metavar="case", help=", ".join(CASES))
    asked = parser.parse_args()
    if asked.what == "make":
        make()
    elif asked.what == "one":
        print(json.dumps(measure(asked.cases[0])))
    else:
        kept = FOLDER / "results.json"
        results = json.loads(kept.read_text()) if kept.exists() else {}
        for name in asked.cases or CASES:
            command = [sys.executable, "-W", "ignore", "-m", "benchmarks.datasets", "one", name]
            results[name] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            kept.write_text(json.dumps(results))
        print("\n".join(f"- {key}: {value}" for key, value in machine().items()), end="\n\n")
        print(table(results))


def table(results: dict[str, dict[str, float]]) -> str:
    """In Markdown."""
    lines = [
        "| case | batches/s | over `lake.sample` | largest process, MB | all, MB |",
        "|---|--:|--:|--:|--:|",
    ]
    for name, found in results.items():
        rate = found["batches/s"]
        over = rate / results["sample"]["batches/s"]
        memory = f"{found['largest'] / 1e6:,.0f} | {found['together'] / 1e6:,.0f}"
        lines.append(f"| {name} | {rate:,.1f} | {over:.2f} x | {memory} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
