"""`view` on a lake of millions of steps: time to the first answer, to the first paint, and to an episode.

    python -m benchmarks.view [--steps 5000000] [--lake FOLDER]

Makes a lake of small boards, as 64 MinAtar environments would, serves it in this process and asks over
loopback; with Chromium, also opens the page and reads the browser's own clock. Not part of `make bench`.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from lakepond.report.view import ViewServer

STREAMS, TURNS, COMMIT_STEPS = 64, 128, 1 << 16
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


def make(path: Path, steps: int) -> None:
    """A lake of (10, 10, 4) boards: episodes of about 120 steps, each walking through one long reel."""
    rng = np.random.default_rng(0)
    reel = rng.random((200_000, 10, 10, 4), np.float32) < 0.06
    spec = lp.Spec(obs=lp.Field((10, 10, 4), "bool"), action=lp.Field((), "int32"))
    at = rng.integers(0, len(reel), STREAMS)
    with lp.Replay.open(path, spec, capacity=2 * COMMIT_STEPS) as replay:
        recorded = 0
        while recorded < steps:
            turns = min(TURNS, -(-(steps - recorded) // STREAMS))
            ends = rng.random((turns, STREAMS)) < 1 / 120
            places = np.empty((turns + 1, STREAMS), np.int64)
            places[0] = at
            for turn in range(turns):
                places[turn + 1] = np.where(ends[turn], rng.integers(0, len(reel), STREAMS), places[turn] + 1)
            following = (places[:-1] + 1) % len(reel)
            places, at = places[:-1] % len(reel), places[-1] % len(reel)
            replay.record(
                obs=reel[places.reshape(-1)],
                next_obs=reel[following.reshape(-1)],
                action=rng.integers(0, 6, turns * STREAMS, dtype=np.int32),
                reward=(rng.random(turns * STREAMS) < 0.05).astype(np.float32),
                terminated=ends.reshape(-1),
                truncated=np.zeros(turns * STREAMS, bool),
                stream=np.tile(np.arange(STREAMS), turns),
            )
            recorded += turns * STREAMS
            if recorded % COMMIT_STEPS < turns * STREAMS:
                replay.commit({"frames": recorded})


class Asker:
    """Asks the server over one connection, as a browser would."""

    def __init__(self, server: ViewServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port)
        self._headers = {"Authorization": f"Bearer {server.token}"}

    def __call__(self, address: str) -> tuple[float, bytes]:
        """Seconds and the answer."""
        begin = time.perf_counter()
        self._connection.request("GET", address, headers=self._headers)
        answer = self._connection.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise RuntimeError(f"{address}: {answer.status} {body[:300]!r}")
        return time.perf_counter() - begin, body


def measure(path: Path) -> dict[str, Any]:
    """Seconds per request, each to a server that was just started or has not had such a request."""
    found: dict[str, Any] = {}
    begin = time.perf_counter()
    with ViewServer(path) as server:
        found["server ready"] = time.perf_counter() - begin
        ask = Asker(server)
        for name in (
            "lake",
            "spec",
            "commits",
            "streams",
            "episodes?order=newest&limit=50",
            "files?kind=rows",
        ):
            found[name.split("?")[0]] = ask(f"/api/{name}")[0]
        begin = time.perf_counter()
        server.api.of({})._index.wait(600)
        found["all episodes known, after that"] = time.perf_counter() - begin
        found["best episodes"] = ask("/api/episodes?order=best&limit=50")[0]
        rng = np.random.default_rng(1)
        episodes = json.loads(ask("/api/episodes?order=oldest&limit=500&offset=1000")[1])["episodes"]
        both = []
        for one in rng.permutation(np.array(episodes, object))[:20].tolist():
            words = f"stream={one['stream']}&first={one['first']}&last={one['last']}"
            both.append(ask(f"/api/episode?{words}")[0] + ask(f"/api/pictures?{words}&at=0")[0])
        found["an episode and its first frames, median"] = statistics.median(both)
        found["an episode and its first frames, slowest"] = max(both)
        found["distribution of reward"] = ask("/api/distribution?column=reward")[0]
        found["sharing"] = ask("/api/sharing")[0]
    if shutil.which("chromium"):
        with ViewServer(path) as server, browser() as page:
            page.goto(server.url)
            page.wait_for_selector("[data-ready='overview']")
            found["first contentful paint in Chromium"] = page.evaluate(
                "performance.getEntriesByName('first-contentful-paint')[0].startTime / 1000"
            )
            found["overview with figures in Chromium"] = page.evaluate("performance.now() / 1000")
    return found


@contextmanager
def browser() -> Iterator[Any]:
    """A page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        chromium = play.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        try:
            yield chromium.new_page()
        finally:
            chromium.close()


def main(say: Callable[[str], None] = print) -> None:
    """Make the lake unless it is there, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5_000_000)
    parser.add_argument("--lake", type=Path, help="use or make it here, and leave it")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-") as folder:
        path = asked.lake or Path(folder) / "lake"
        if not path.exists():
            begin = time.perf_counter()
            make(path, asked.steps)
            say(f"made a lake of {asked.steps:,} steps in {time.perf_counter() - begin:.0f} s")
        with lp.Lake.open(path) as lake:
            stats = lake.stats()
        size = f"{stats.files} files, {stats.bytes_on_disk / 1e6:.0f} MB"
        say(f"{stats.steps:,} steps, {size}, {os.cpu_count()} cores")
        for name, seconds in measure(path).items():
            say(f"{name:<45} {seconds * 1000:>9.1f} ms")


if __name__ == "__main__":
    main()
