"""Cost that does not grow: commit 100,000 beside commit 100, opening 10 TB beside opening a small lake."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np

from benchmarks.measure import in_child
from benchmarks.report import Section

COMMITS, EARLY, WINDOW = 100_000, 100, 128
ENTRIES, STEPS, ROW_BYTES = 78_000, 5_128, 25_000
OPENS = 15


def run(quick: bool) -> list[Section]:
    """One table; every measurement runs in a process of its own."""
    section = Section("lake-scale: cost at any size", ["measure", "value", "unit", "bar", "verdict"])
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".") as folder:
        lakes = Path(folder)
        count = 2_000 if quick else COMMITS
        grown = in_child("benchmarks.lake_scale:commits", path=str(lakes / "grown"), count=count)
        for what, unit, bar in (("size", "B", 1.5), ("time", "ms", 1.25), ("written", "B", 1.5)):
            early, late = grown["early"][what], grown["late"][what]
            name = {"size": "file of a commit", "time": "a durable commit", "written": "bytes written"}[what]
            section.add(f"{name}, around commit {EARLY}", early, unit, None, None)
            section.add(f"{name}, around commit {count:,}", late, unit, None, None)
            section.add(f"{name}, late over early", late / early, "x", f"at most {bar}", late <= bar * early)
        small = in_child(
            "benchmarks.lake_scale:fabricate", path=str(lakes / "small"), entries=50, commits=100
        )
        entries, commits = (1_000, 1_000) if quick else (ENTRIES, COMMITS)
        large = in_child(
            "benchmarks.lake_scale:fabricate", path=str(lakes / "large"), entries=entries, commits=commits
        )
        opened = {
            name: in_child("benchmarks.lake_scale:opened", path=str(lakes / name))
            for name in ("small", "large")
        }
        for what in ("Lake.open", "Replay.open"):
            one, other = opened["small"][what], opened["large"][what]
            section.add(f"{what}, {small['files']:,} files", one, "ms", None, None)
            section.add(f"{what}, {large['files']:,} files, {commits:,} commits", other, "ms", None, None)
            section.add(f"{what}, large over small", other / one, "x", "at most 3", other <= 3 * one)
        memory = opened["large"]["memory"] / 1e6
        section.add(
            "peak memory of the process that opens the large one", memory, "MB", "under 300", memory < 300
        )
        number = 300 if quick else 2_000
        tiny = in_child("benchmarks.lake_scale:tiny", path=str(lakes / "tiny"), count=number)
        ratio = tiny["metadata"] / tiny["data"]
        section.add(
            f"commits and manifests over data, {number:,} commits of 3 steps",
            ratio,
            "x",
            "at most 0.5",
            ratio <= 0.5,
        )
    section.notes += [
        "commits of 3 steps of 1,000 random bytes, default settings, all kept; medians of "
        f"{WINDOW} commits for size and time, means for bytes, which include manifests and not merged files",
        f"the large lake: {large['bytes'] / 1e12:.1f} TB in {large['files']:,} files, which are the same two "
        f"files under many entries, {large['rows']:,} rows; then 110 real commits",
        f"opening: median of {OPENS}, page cache warm; Replay.open loads the newest 300 steps",
        f"3 Atari steps per commit: random frames, {tiny['data'] / 1e6:.0f} MB of data",
    ]
    return [section]


def commits(path: str, count: int) -> dict[str, Any]:
    """Many small commits: size, time and bytes around an early one and around the last."""
    import lakepond as lp
    from lakepond.testing.large_lakes import record, spec_of

    seen: dict[str, list[dict[str, float]]] = {"early": [], "late": []}
    with lp.Replay.open(path, spec_of(1_000), capacity=1_000) as replay:
        before: set[str] = set()
        for number in range(count):
            record(replay, 3)
            began = time.perf_counter()
            commit = replay.commit()
            seconds = time.perf_counter() - began
            when = (
                "early" if abs(number - EARLY) < WINDOW // 2 else "late" if number >= count - WINDOW else None
            )
            manifests = {n: size for n, size in commit.named().items() if n.endswith(".manifest")}
            if when is not None:
                size = os.path.getsize(Path(path) / "commits" / f"{number:010d}.json")
                new = sum(size for name, size in manifests.items() if name not in before)
                written = commit.bytes_written + size + new
                seen[when].append({"size": size, "time": 1e3 * seconds, "written": written})
            before = set(manifests)
    return {
        when: {
            "size": median(each["size"] for each in found),
            "time": median(each["time"] for each in found),
            "written": mean(each["written"] for each in found),
        }
        for when, found in seen.items()
    }


def fabricate(path: str, entries: int, commits: int) -> dict[str, Any]:
    """A lake of that many files of steps and of rows, and then real commits."""
    import lakepond as lp
    from lakepond.testing.large_lakes import continued, make, record

    make(Path(path), entries=entries, num_commits=commits, steps=STEPS, row_bytes=ROW_BYTES)
    with continued(Path(path), capacity=1_000) as replay:
        for _ in range(110):
            record(replay, 3)
            replay.commit()
    with lp.Lake.open(path) as lake:
        found = lake.stats()
        return {"files": found.files, "rows": found.rows, "bytes": found.bytes_on_disk}


def opened(path: str) -> dict[str, Any]:
    """Milliseconds to open a lake to read and to continue it, and the peak memory of this process."""
    import lakepond as lp

    times: dict[str, list[float]] = {"Lake.open": [], "Replay.open": []}
    for _ in range(OPENS):
        gc.collect()
        began = time.perf_counter()
        with lp.Lake.open(path):
            times["Lake.open"].append(time.perf_counter() - began)
        began = time.perf_counter()
        replay = lp.Replay.open(path, capacity=300)
        times["Replay.open"].append(time.perf_counter() - began)
        replay.close()
    lines = Path("/proc/self/status").read_text().splitlines()
    memory = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return {**{name: 1e3 * median(found) for name, found in times.items()}, "memory": memory}


def tiny(path: str, count: int) -> dict[str, Any]:
    """Commits of three Atari steps: bytes of commits and manifests, and of all other files."""
    import lakepond as lp

    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (3 * count + 4, 84, 84), np.uint8)
    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8"), action=lp.Field((), "int64"))
    with lp.Replay.open(path, spec, capacity=1_000) as replay:
        for t in range(3 * count):
            replay.record(
                obs=frames[t : t + 4],
                action=0,
                reward=float(t),
                next_obs=frames[t + 1 : t + 5],
                terminated=False,
                truncated=False,
            )
            if t % 3 == 2:
                replay.commit()
        named = {name: size for name, size in replay.lake().files() if not name.endswith(".manifest")}
    folder = Path(path)
    metadata = [*(folder / "commits").iterdir(), *(folder / "segments").glob("*.manifest")]
    return {"metadata": sum(file.stat().st_size for file in metadata), "data": sum(named.values())}
