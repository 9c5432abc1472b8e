"""Committing the market run: 25 generations of 2,000 steps, saved every generation, and opened again."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zstandard

from benchmarks.market_steps import ROW, SHAPE, WINDOW
from benchmarks.measure import in_child
from benchmarks.report import Section

AGENTS, GENERATIONS, STEPS = 16, 25, 2_000


def run(quick: bool) -> list[Section]:
    """One table; each half runs in a process of its own."""
    section = Section("lake: the market run on disk", ["measure", "value", "unit", "bar", "verdict"])
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".") as folder:
        path = str(Path(folder) / "lake")
        generations = 5 if quick else GENERATIONS
        saved = in_child("benchmarks.lake:save", path=path, generations=generations)
        opened = in_child("benchmarks.lake:open_again", path=path)
    old = in_child("benchmarks.lake:unpickle", count=20 if quick else 60)
    held = saved["held_ms"]
    section.add(
        "size on disk, all commits",
        saved["disk"] / saved["floor"],
        "x the lower bound",
        "at most 1.25",
        saved["disk"] <= 1.25 * saved["floor"],
    )
    section.add("size on disk, all commits", saved["disk"] / 1e6, "MB", None, None)
    section.add(
        "the lower bound: columns and distinct rows, compressed with zstd",
        saved["floor"] / 1e6,
        "MB",
        None,
        None,
    )
    section.add(
        "time blocked by commit(wait=False), median", median(held), "ms", "at most 5", median(held) <= 5
    )
    late, early = median(held[-5:]), median(held[:5])
    section.add("the same, last five commits over first five", late / early, "x", None, None)
    section.add("a durable commit, median", median(saved["durable_ms"]), "ms", None, None)
    ratio = median(saved["durable_ms"]) / median(saved["raw_ms"])
    section.add("relative to writing and syncing the same bytes", ratio, "x", "at most 3", ratio <= 3)
    section.add(
        "peak extra memory while committing",
        saved["extra"] / 1e6,
        "MB",
        "at most 64",
        saved["extra"] <= 64 << 20,
    )
    each = old["seconds"] / old["count"] * generations * STEPS
    section.add("open and resume", opened["seconds"], "s", None, None)
    section.add("unpickling the same steps from gzip, extrapolated", each, "s", None, None)
    section.add(
        "opening relative to unpickling",
        each / opened["seconds"],
        "x faster",
        "at least 100",
        each >= 100 * opened["seconds"],
    )
    section.notes += [
        f"{generations} commits of {STEPS:,} steps of {SHAPE} float32 windows, {AGENTS} agents; "
        f"uncompressed {saved['plain'] / 1e9:,.1f} GB",
        "the same bytes: one file of the same size is written, synced and renamed, and its folder synced",
        f"unpickling: {old['count']} transitions, gzip level 6, as the trading project saved them",
    ]
    return [section]


def _panel() -> np.ndarray:
    from lakepond.envs import market

    return market.features(market.synthetic(days=2_500, instruments=ROW[0], seed=0))


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def save(path: str, generations: int) -> dict[str, Any]:
    """Record and commit generation by generation; every second one in the background."""
    import lakepond as lp

    rows, rng = _panel(), np.random.default_rng(0)
    source = lp.RowSource(rows)
    spec = lp.Spec(obs=lp.Field(SHAPE, "float32"), action=lp.Field((ROW[0], 2), "float32"))
    held, durable, raw, actions, extra = [], [], [], [], 0
    with lp.Replay.open(path, spec, capacity=50_000) as replay:
        for generation in range(generations):
            stop = rng.integers(WINDOW, len(rows) - STEPS // AGENTS, AGENTS)
            for t in range(STEPS // AGENTS):
                action = rng.random((AGENTS, ROW[0], 2), np.float32)
                actions.append(action)
                replay.record(
                    obs=lp.WindowRef(source, stop + t),
                    action=action,
                    reward=rng.random(AGENTS, np.float32),
                    next_obs=lp.WindowRef(source, stop + t + 1),
                    terminated=np.zeros(AGENTS, bool),
                    truncated=np.full(AGENTS, t == STEPS // AGENTS - 1),
                )
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
            before = _peak()
            begin = time.perf_counter()
            pending = replay.commit(wait=False)
            held.append(1e3 * (time.perf_counter() - begin))
            commit = pending.result()
            durable.append(1e3 * (time.perf_counter() - begin))
            if generation:  # the first brings libraries into memory
                extra = max(extra, _peak() - before)
            raw.append(1e3 * _write_raw(Path(path).parent, os.urandom(commit.bytes_written)))
        stats = replay.stats()
    lake = lp.Lake.open(path)
    disk = sum(file.stat().st_size for file in Path(path).rglob("*") if file.is_file())
    zstd = zstandard.ZstdCompressor(level=1)
    columns = np.concatenate(actions).tobytes()
    floor = len(zstd.compress(columns)) + len(zstd.compress(os.urandom(4 * stats.steps))) + stats.steps // 4
    floor += len(zstd.compress(rows[: stats.rows].tobytes()))
    assert lake.stats().steps == stats.steps
    return {
        "disk": disk,
        "floor": floor,
        "held_ms": held,
        "durable_ms": durable,
        "raw_ms": raw,
        "extra": extra,
        "plain": stats.bytes_plain,
    }


def _write_raw(folder: Path, data: bytes) -> float:
    begin = time.perf_counter()
    with (folder / "raw.tmp").open("wb", buffering=0) as file:
        file.write(data)
        os.fsync(file.fileno())
    (folder / "raw.tmp").rename(folder / "raw")
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - begin


def open_again(path: str) -> dict[str, float]:
    """How long until a resumed replay can be sampled; the compiled code is loaded before."""
    import lakepond as lp

    warm = lp.Replay(lp.Spec(obs=lp.Field((4, 300), "uint8", rows=0)), 10)
    for t in range(20):
        obs = np.full((4, 300), t, np.uint8)
        warm.record(obs=obs, action=0, reward=0, next_obs=obs, terminated=False, truncated=False)
    warm.sample(2, rng=np.random.default_rng(0))
    begin = time.perf_counter()
    replay = lp.Replay.open(path, capacity=50_000)
    replay.sample(32, rng=np.random.default_rng(0))
    seconds = time.perf_counter() - begin
    replay.close()
    return {"seconds": seconds}


def unpickle(count: int) -> dict[str, float]:
    """The trading project's way: a gzip pickle of whole transitions."""
    from collections import deque

    rows = _panel()
    buffer: deque[dict[str, Any]] = deque()
    for t in range(600, 600 + count):
        buffer.append(
            {
                "state": rows[t - WINDOW : t].copy(),
                "action": np.zeros((ROW[0], 2), np.float32),
                "reward": 0.0,
                "next_state": rows[t - WINDOW + 1 : t + 1].copy(),
                "done": False,
            }
        )
    file = io.BytesIO()
    with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=6) as packed:
        pickle.dump({"capacity": count, "buffer": buffer}, packed, protocol=pickle.HIGHEST_PROTOCOL)
    file.seek(0)
    begin = time.perf_counter()
    with gzip.GzipFile(fileobj=file, mode="rb") as packed:
        pickle.load(packed)  # our own, made above
    return {"seconds": time.perf_counter() - begin, "count": count}
