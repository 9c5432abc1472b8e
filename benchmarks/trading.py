"""`python -m benchmarks.trading`: the trading project's run with the drop-in classes, without its networks.

25 generations of 16 agents x 125 days: 50,000 transitions of (504, 108, 9) float32 windows, added as copies,
as the project does. Every 5 generations the buffer is saved and uploaded; then a second folder, in place of a
new machine, downloads the checkpoints and continues.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.market_steps import AGENTS, DAYS, EPISODE, PLAIN, WINDOW, panel
from lakepond import machine
from lakepond.adapters.trading import ReplayBuffer, get_cloud_sync_from_env

GENERATIONS = 25


def main() -> None:
    """Run it and print what each part takes."""
    days, rng = panel(), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"CLOUD_PROVIDER": "local", "CLOUD_BUCKET": f"{folder}/bucket"}
        run(days, rng, Path(folder))


def run(days: np.ndarray, rng: np.random.Generator, folder: Path) -> None:
    """The run on one machine, and its continuation on another."""
    os.makedirs(folder / "first")
    os.chdir(folder / "first")
    before = machine.resident()
    buffer = ReplayBuffer(50_000, device="cpu", min_size=10_000, seed=0)
    sync = get_cloud_sync_from_env()
    adding = saving = 0.0
    for generation in range(GENERATIONS):
        started = time.perf_counter()
        for _ in range(AGENTS):
            start = int(rng.integers(WINDOW, DAYS - EPISODE))
            state = days[start - WINDOW : start].astype(np.float32)
            for day in range(start + 1, start + EPISODE + 1):
                action = rng.standard_normal((108, 2), np.float32)
                after = days[day - WINDOW : day].astype(np.float32)
                buffer.add(state, action, rng.random(), after, done=float(day == start + EPISODE))
                state = after
        adding += time.perf_counter() - started
        if (generation + 1) % 5 == 0:
            started = time.perf_counter()
            sync.save_and_upload_buffer(
                buffer, "checkpoints/replay_buffer.pkl", "eigen2/checkpoints/replay_buffer.pkl"
            )
            blocked = time.perf_counter() - started
            if not sync.wait_for_uploads(120).done:
                raise RuntimeError(f"not uploaded: {sync.upload_status()}")
            saving += time.perf_counter() - started
            print(
                f"generation {generation + 1}: {len(buffer):,} transitions, saved and uploaded in "
                f"{time.perf_counter() - started:.2f} s (training blocked for {1e3 * blocked:.1f} ms)"
            )
    buffer.sample(4)  # imports torch
    started = time.perf_counter()
    for _ in range(100):
        batch = buffer.sample(4)
    drawn = 10 * (time.perf_counter() - started)
    print(
        f"{adding / len(buffer) * 1e3:.2f} ms per add, {drawn:.1f} ms per batch of 4, {batch['states'].dtype}"
    )
    grown = machine.resident() - before >> 20
    print(f"memory {grown:,} MB; as plain arrays {len(buffer) * PLAIN / 1e9:,.0f} GB")
    sent = sync.upload_status().uploaded_bytes
    disk = sum(f.stat().st_size for f in Path("checkpoints").rglob("*") if f.is_file())
    print(f"disk {disk / 1e6:,.1f} MB, uploaded in all {sent / 1e6:,.1f} MB, all saves {saving:.1f} s")
    sync.shutdown()
    expected = buffer.replay.recent(100).obs.tobytes() if buffer.replay else b""
    buffer.close()
    os.makedirs(folder / "second")
    os.chdir(folder / "second")
    sync = get_cloud_sync_from_env()
    started = time.perf_counter()
    sync.download_checkpoints("checkpoints")
    buffer = ReplayBuffer.load("checkpoints/replay_buffer.pkl", device="cpu", min_size=10_000)
    seconds = time.perf_counter() - started
    same = buffer.replay is not None and buffer.replay.recent(100).obs.tobytes() == expected
    print(f"another machine: {len(buffer):,} transitions again after {seconds:.2f} s, equal: {same}")
    sync.shutdown()
    buffer.close()


if __name__ == "__main__":
    main()
