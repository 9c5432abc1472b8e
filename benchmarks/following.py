"""Following a lake: sampling speed, the way of a step from `record` to `sample`, requests, and 100 writers.

`python -m benchmarks.following [--quick]`, in the venv of the tests, whose servers it uses.
Writers are processes on this machine. The bucket is SeaweedFS on loopback for the delay, moto for counting
requests, and a folder (`file://`) for the fabricated lake.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.frames import step_of
from benchmarks.measure import ROOT, in_child
from benchmarks.report import Section, print_report

sys.path.insert(0, str(ROOT / "tests" / "cloud"))
WRITERS, COMMITS = 100, 1_000
RATE = 250
"""steps per second of each writer whose steps are followed while others are sampled"""


def run(quick: bool) -> list[Section]:
    """One table; every measurement runs in a process of its own."""
    section = Section("following", ["measure", "value", "unit", "bar", "verdict"])
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".") as folder:
        here = Path(folder).absolute()
        _sampling(section, here, quick)
        _delay(section, here, quick)
        _requests(section, here, quick)
        _many(section, here, quick)
    return [section]


# --- writers as processes -------------------------------------------------------------------------


def spec_of(pixels: int) -> Any:
    """Stacks of 4 frames, and when a step was recorded."""
    import lakepond as lp

    return lp.Spec(
        obs=lp.Field((4, pixels, pixels), "uint8", rows=0),
        action=lp.Field((), "int64"),
        extras={"at": lp.Field((), "float64")},
    )


def write(
    path: str, name: str, pixels: int, seconds: float, rate: float, cloud: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Record steps at a rate; commit every second, or push every second to a bucket."""
    import lakepond as lp

    how: dict[str, Any] = {}
    if cloud is not None:
        how = {"cloud": lp.Cloud(**cloud), "push_every": "1s"}
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (512, pixels, pixels), np.uint8)
    with lp.Replay.open(path, spec_of(pixels), 10_000, writer=name, **how) as replay:
        began, committed = time.monotonic(), time.monotonic()
        while time.monotonic() - began < seconds:
            t = replay.recorded % 500
            replay.record(**step_of(frames, t, ends=t == 499), at=time.time())
            if cloud is None and time.monotonic() - committed > 1:
                committed = time.monotonic()
                replay.commit()
            ahead = replay.recorded / rate - (time.monotonic() - began)
            if ahead > 0:
                time.sleep(ahead)
        recorded = int(replay.recorded)
    return {"recorded": recorded}


def _start(path: Path, names: list[str], **arguments: Any) -> list[subprocess.Popen[str]]:
    """Writers of one lake on disk, or each with its own disk and a bucket."""
    started = []
    for name in names:
        home = path / name if "cloud" in arguments else path
        own = json.dumps({"path": str(home), "name": name, **arguments})
        command = [
            sys.executable,
            "-W",
            "ignore",
            "-m",
            "benchmarks.measure",
            "benchmarks.following:write",
            own,
        ]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
    return started


def _recorded(writers: list[subprocess.Popen[str]]) -> int:
    return sum(json.loads(each.communicate()[0].splitlines()[-1])["recorded"] for each in writers)


# --- speed of sampling ----------------------------------------------------------------------------


def _sampling(section: Section, here: Path, quick: bool) -> None:
    import lakepond as lp

    path, pixels, turns, seconds = here / "sampled", 84, 2 if quick else 9, 1.0 if quick else 4.0
    lp.Replay.open(path, spec_of(pixels), 10).close()
    names = [f"collector-{i}" for i in range(4)]
    writers = _start(path, names, pixels=pixels, seconds=3 * turns * seconds + 12, rate=RATE)
    time.sleep(3)
    found = in_child(
        "benchmarks.following:sampled", path=str(path), turns=turns, seconds=seconds, steps=len(names) * RATE
    )
    _recorded(writers)
    section.add("steps sampled, followed lake at rest", found["rest"], "/s", None, None)
    section.add(
        f"steps sampled while following {len(names) * RATE:,} steps/s", found["live"], "/s", None, None
    )
    ratio = found["live"] / found["rest"]
    section.add("following relative to at rest", ratio, "x", "at least 0.9", ratio >= 0.9)
    section.notes.append(
        f"batches of 256 stacks of 4 frames of 84 x 84, medians of {turns} turns of {seconds:g} s; "
        f"{len(names)} writers record and commit on the same {len(os.sched_getaffinity(0))} cores in both "
        f"cases; {found['read']:,} steps were followed meanwhile"
    )


def sampled(path: str, turns: int, seconds: float, steps: int) -> dict[str, Any]:
    """Sample a followed lake while it is followed and after `close`, in turns."""
    import lakepond as lp

    rates: dict[str, list[float]] = {"live": [], "rest": []}
    rng, read = np.random.default_rng(0), 0
    for _ in range(turns):
        with lp.Replay.follow(path, 20_000, min_steps=steps) as replay:
            out = replay.sample(256, rng=rng)
            _rate(replay, rng, out, seconds / 2)  # a rehearsal
            before = replay.recorded
            rates["live"].append(_rate(replay, rng, out, seconds))
            read += replay.recorded - before
        rates["rest"].append(_rate(replay, rng, out, seconds))
    return {**{name: statistics.median(found) for name, found in rates.items()}, "read": read}


def _rate(replay: Any, rng: np.random.Generator, out: Any, seconds: float) -> float:
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        replay.sample(256, rng=rng, out=out)
        count += 256
    return count / (time.perf_counter() - began)


# --- from record to sample ------------------------------------------------------------------------


def _delay(section: Section, here: Path, quick: bool) -> None:
    with _served("Seaweed", here) as (_, cloud):
        names = [f"collector-{i}" for i in range(4)]
        seconds = 8.0 if quick else 40.0
        writers = _start(here / "disks", names, pixels=16, seconds=seconds, rate=100.0, cloud=cloud)
        found = in_child("benchmarks.following:delays", cloud=cloud, seconds=seconds - 3)
        recorded = _recorded(writers)
    section.add("record to sample, median", found["median"], "s", "at most 2", found["median"] <= 2)
    section.add("record to sample, 99th percentile", found["late"], "s", None, None)
    section.notes.append(
        f'{len(names)} writers of 100 steps/s with push_every="1s", SeaweedFS; poll_every="0.5s"; '
        f"{found['steps']:,} of {recorded:,} steps, those recorded after the follower was open"
    )


def delays(cloud: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Seconds from `record` until a step can be sampled, for all steps that arrive."""
    replay = _follow(cloud, 50_000)
    found: list[float] = []
    began, known = time.time(), replay.recorded
    while time.time() - began < seconds:
        recorded = replay.recorded
        if recorded > known:
            at = replay.steps(np.arange(known, recorded), only=()).extras["at"]
            found += (time.time() - at[at > began]).tolist()
            known = recorded
        time.sleep(0.005)
    replay.close()
    return {"median": statistics.median(found), "late": float(np.quantile(found, 0.99)), "steps": len(found)}


@contextmanager
def _served(kind: str, here: Path) -> Iterator[tuple[Any, dict[str, Any]]]:
    """An object store during a block, and the arguments of `Cloud` for a run in it."""
    import servers

    folder = here / kind.lower()
    folder.mkdir()
    server = getattr(servers, kind)(folder)
    try:
        server.start()
        yield server, {"url": server.url("run"), "options": server.options()}
    finally:
        server.kill()


def _follow(cloud: dict[str, Any], capacity: int, **how: Any) -> Any:
    """Follow a lake as soon as its first writer has made it."""
    import lakepond as lp

    until = time.monotonic() + 60
    while True:
        try:
            return lp.Replay.follow(lp.Cloud(**cloud), capacity, discover_every="2s", **how)
        except lp.LakeNotFound:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


# --- requests -------------------------------------------------------------------------------------


def _requests(section: Section, here: Path, quick: bool) -> None:
    with _served("Moto", here) as (server, cloud):
        seconds = 10.0 if quick else 30.0
        writers = _start(
            here / "counted",
            ["collector-0", "collector-1"],
            pixels=16,
            seconds=seconds,
            rate=50.0,
            cloud=cloud,
        )
        time.sleep(5)
        follower = in_child("benchmarks.following:polls", cloud=cloud, seconds=seconds / 3)
        _recorded(writers)
        log = server.log()
    puts = [entry[1] for entry in log if entry[0] == "PUT" and "/writers/" in entry[1]]
    pushes = [name for name in puts if "/commits/" in name]
    most = len(puts) / len(pushes)
    section.add("PUTs per writer and push", most, "", "at most 3", most <= 3)
    per_poll = follower["gets"] / (follower["polls"] * follower["chains"])
    section.add("GETs per writer and poll", per_poll, "", "at most 1", per_poll <= 1)
    section.add("LISTs between discoveries", follower["lists"], "", "0", follower["lists"] == 0)
    section.notes.append(
        f"requests: 2 writers, {len(pushes)} pushes with all their files; {follower['polls']} polls of "
        f"{follower['chains']} writers; files of new steps are further GETs, {follower['files']} here"
    )


def polls(cloud: dict[str, Any], seconds: float) -> dict[str, Any]:
    """Requests of a follower between two discoveries, counted at its own client."""
    replay = _follow(cloud, 10_000, poll_every="0.5s")
    follower = replay._follower
    bucket = follower.chains.store.bucket
    found = {"polls": 0, "gets": 0, "lists": 0, "files": 0, "chains": len(follower.states)}
    follower._discover_every = 3_600.0
    time.sleep(1)
    polling: list[bool] = []
    get, listed, folders, poll = bucket.get, bucket.list, bucket.folders, follower.poll

    def count_get(name: str, timeout: float) -> Any:
        if polling:  # and not in a poll that began before this counted
            found["files" if "/segments/" in name else "gets"] += 1
        return get(name, timeout)

    def count_list(prefix: str) -> Any:
        found["lists"] += 1
        return listed(prefix)

    def count_folders(prefix: str) -> Any:
        found["lists"] += 1
        return folders(prefix)

    def count_poll() -> bool:
        found["polls"] += 1
        polling.append(True)
        try:
            return poll()
        finally:
            polling.clear()

    bucket.get, bucket.list, bucket.folders, follower.poll = count_get, count_list, count_folders, count_poll
    time.sleep(seconds)
    result = dict(found)
    replay.close()
    return result


# --- many writers ---------------------------------------------------------------------------------


def _many(section: Section, here: Path, quick: bool) -> None:
    writers, commits = (10, 100) if quick else (WRITERS, COMMITS)
    in_child("benchmarks.following:fabricate", path=str(here / "many"), writers=writers, commits=commits)
    for where, place in (("disk", str(here / "many")), ("bucket", f"file://{here / 'many-bucket'}")):
        found = in_child("benchmarks.following:opened", place=place)
        what = f"{writers} writers x {commits:,} commits, {where}"
        section.add(f"{what}: open", found["open"], "s", "under 10", found["open"] < 10)
        section.add(f"{what}: until all steps are loaded", found["loaded"], "s", None, None)
        section.add(f"{what}: peak memory", found["memory"] / 1e6, "MB", "under 500", found["memory"] < 500e6)
        section.add(f"{what}: snapshot()", found["snapshot"], "s", "under 1", found["snapshot"] < 1)
        section.add(f"{what}: open from the snapshot", found["again"], "s", None, None)
        section.notes.append(
            f"{where}: {found['steps']:,} steps loaded, capacity 100,000, {found['chains']} chains"
        )
    section.notes.append(
        "fabricated: one writer makes all of its commits, of 10 steps each; the others are links to its files"
    )


def fabricate(path: str, writers: int, commits: int) -> None:
    """A lake of many writers on disk, and the same in the layout of a bucket."""
    import lakepond as lp

    lake, bucket = Path(path), Path(f"{path}-bucket")
    with lp.Replay.open(lake, spec_of(16), 1_000, writer="collector-0") as replay:
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (10 * commits + 5, 16, 16), np.uint8)
        for t in range(10 * commits):
            replay.record(**step_of(frames, t, ends=t % 500 == 499), at=0.0)
            if t % 10 == 9:
                replay.commit()
    bucket.mkdir()
    os.link(lake / "lake.json", bucket / "lake.json")
    first = lake / "writers" / "collector-0"
    for i in range(writers):
        copies = [bucket / "writers" / f"collector-{i}.{i:012x}"]
        if i:
            copies.append(lake / "writers" / f"collector-{i}")
        for kind in ("commits", "segments"):
            for copy in copies:
                (copy / kind).mkdir(parents=True)
                for file in (first / kind).iterdir():
                    if file.suffix in (".json", ".rows", ".steps", ".manifest"):
                        os.link(file, copy / kind / file.name)


def opened(place: str) -> dict[str, Any]:
    """Seconds to follow a lake, to take a snapshot and to open that, and the peak memory of this process."""
    import lakepond as lp

    began = time.perf_counter()
    replay = lp.Replay.follow(place, 100_000)
    seconds = time.perf_counter() - began
    while len(replay) < 100_000 and any(each.steps_behind for each in replay.lag()):
        time.sleep(0.01)
    loaded = time.perf_counter() - began
    lines = Path("/proc/self/status").read_text().splitlines()
    memory = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    steps, chains = len(replay), len(replay.lag())
    began = time.perf_counter()
    snapshot = replay.snapshot()
    taken = time.perf_counter() - began
    replay.close()
    began = time.perf_counter()
    lp.Replay.follow(place, 100_000, snapshot=snapshot.number).close()
    again = time.perf_counter() - began
    return {
        "open": seconds,
        "loaded": loaded,
        "memory": memory,
        "snapshot": taken,
        "again": again,
        "steps": steps,
        "chains": chains,
    }


if __name__ == "__main__":
    print_report(run)
