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

from benchmarks.frames import step_of
from benchmarks.measure import in_child
from benchmarks.report import Section

COMMITS, GROWN, EARLY, WINDOW = 100_000, 10_000, 100, 128
ENTRIES, STEPS, ROW_BYTES = 78_000, 5_128, 25_000
OPENS = 15


def run(quick: bool) -> list[Section]:
    """One table; every measurement runs in a process of its own."""
    section = Section("lake-scale: cost at any size", ["measure", "value", "unit", "bar", "verdict"])
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".") as folder:
        lakes = Path(folder)
        count = 2_000 if quick else GROWN
        for name, number in (("young", EARLY), ("grown", count)):
            in_child("benchmarks.lake_scale:commits", path=str(lakes / name), count=number)
        both = in_child(
            "benchmarks.lake_scale:compared", one=str(lakes / "young"), other=str(lakes / "grown")
        )
        _add(section, both, f"{EARLY}", f"{count:,}")
        entries, commits = (1_000, 1_000) if quick else (ENTRIES, COMMITS)
        small, large = (
            in_child("benchmarks.lake_scale:fabricate", path=str(lakes / name), **size)
            for name, size in (
                ("small", {"entries": 50, "commits": EARLY}),
                ("large", {"entries": entries, "commits": commits}),
            )
        )
        both = in_child(
            "benchmarks.lake_scale:compared", one=str(lakes / "small"), other=str(lakes / "large")
        )
        _add(section, both, f"{EARLY}, {small['files']:,} files", f"{commits:,}, {large['files']:,} files")
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
        f"commits of 3 steps, default settings, all kept; medians of {WINDOW} commits for size and time, "
        "means for bytes, which include manifests and not merged files; two lakes take turns, each first in "
        "half of the rounds; up to commit "
        f"{count:,} all are real, with observations of 1,000 random bytes",
        f"the large lake: {large['bytes'] / 1e12:.1f} TB in {large['files']:,} files, which are the same two "
        f"files under many entries, {large['rows']:,} rows, and {commits:,} commits; its folder has as many "
        "empty files besides, so listing it takes as long as that of a real lake; the small one is made in "
        "the same way; the commits that are measured are real, with observations of 25,000 random bytes",
        f"opening: median of {OPENS}, page cache warm; Replay.open loads the newest 300 steps",
        f"3 Atari steps per commit: random frames, {tiny['data'] / 1e6:.0f} MB of data",
    ]
    return [section]


def _add(section: Section, both: Any, one: str, other: str) -> None:
    """Size, time and bytes of a commit early and late, and their ratios."""
    for what, name, unit, bar in (
        ("size", "file of a commit", "B", 1.5),
        ("time", "a durable commit", "ms", 1.25),
        ("written", "bytes written", "B", 1.5),
    ):
        early, late = both["one"][what], both["other"][what]
        section.add(f"{name}, around commit {one}", early, unit, None, None)
        section.add(f"{name}, around commit {other}", late, unit, None, None)
        section.add(f"{name}, late over early", late / early, "x", f"at most {bar}", late <= bar * early)


class Costs:
    """Size, time and bytes of some commits of a replay."""

    def __init__(self, path: str) -> None:
        self._folder, self._before = Path(path) / "commits", set[str]()
        self._seen: list[dict[str, float]] = []

    def commit(self, replay: Any) -> None:
        """Record three steps and commit them."""
        from benchmarks.large_lakes import record

        record(replay, 3)
        began = time.perf_counter()
        commit = replay.commit()
        seconds = time.perf_counter() - began
        manifests = {name: size for name, size in commit.named().items() if name.endswith(".manifest")}
        if self._before:
            size = os.path.getsize(self._folder / f"{commit.number:010d}.json")
            new = sum(size for name, size in manifests.items() if name not in self._before)
            written = commit.bytes_written + size + new
            self._seen.append({"size": size, "time": 1e3 * seconds, "written": written})
        self._before = {"", *manifests}  # not empty: the manifests of before are known

    def found(self) -> dict[str, float]:
        """Medians of size and time, mean of the bytes."""
        of = {what: [each[what] for each in self._seen] for what in ("size", "time", "written")}
        return {"size": median(of["size"]), "time": median(of["time"]), "written": mean(of["written"])}


def commits(path: str, count: int) -> dict[str, Any]:
    """Many small commits."""
    import lakepond as lp
    from benchmarks.large_lakes import record, spec_of

    with lp.Replay.open(path, spec_of(1_000), capacity=1_000) as replay:
        for _ in range(count):
            record(replay, 3)
            replay.commit()
    return {}


def fabricate(path: str, entries: int, commits: int) -> dict[str, Any]:
    """A lake of that many files of steps and of rows."""
    import lakepond as lp
    from benchmarks.large_lakes import add_names, make

    make(Path(path), entries=entries, num_commits=commits, steps=STEPS, row_bytes=ROW_BYTES)
    add_names(Path(path), entries)
    with lp.Lake.open(path) as lake:
        found = lake.stats()
        return {"files": found.files, "rows": found.rows, "bytes": found.bytes_on_disk}


def compared(one: str, other: str) -> dict[str, Any]:
    """The next commits of two lakes, which take turns; each is first in half of the rounds."""
    from benchmarks.large_lakes import continued

    costs = {"one": Costs(one), "other": Costs(other)}
    with continued(Path(one), capacity=1_000) as first, continued(Path(other), capacity=1_000) as second:
        turns = [(costs["one"], first), (costs["other"], second)]
        for number in range(WINDOW + 1):  # the second of two in a row is slower, whatever the lakes hold
            for cost, replay in turns if number % 2 else reversed(turns):
                cost.commit(replay)
    return {name: each.found() for name, each in costs.items()}


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
            replay.record(**step_of(frames, t))
            if t % 3 == 2:
                replay.commit()
        named = {name: size for name, size in replay.lake().files() if not name.endswith(".manifest")}
    folder = Path(path)
    metadata = [*(folder / "commits").iterdir(), *(folder / "segments").glob("*.manifest")]
    return {"metadata": sum(file.stat().st_size for file in metadata), "data": sum(named.values())}
