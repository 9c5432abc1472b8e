"""The cloud, beside a bare client: `python -m benchmarks.cloud [--quick]`, in the venv of the tests.

Servers are those of the tests, on this machine: SeaweedFS for throughput and memory, moto to count. What a
real network does to the figures is not measured here; ratios in one run are.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import in_child
from benchmarks.report import Section, print_report

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "cloud"))
MB = 1 << 20


def run(quick: bool) -> list[Section]:
    """One table."""
    import servers

    section = Section("cloud", ["measure", "value", "unit", "bar", "verdict"])
    with tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".") as folder:
        here = Path(folder).absolute()
        seaweed, moto = (kind(_made(here / kind.__name__)) for kind in (servers.Seaweed, servers.Moto))
        try:
            seaweed.start()
            moto.start()
            _throughput(section, seaweed, here, quick)
            _memory(section, seaweed, here)
            _bytes(section, moto, here)
            _sentences(section, moto, seaweed, here)
        finally:
            seaweed.kill()
            moto.kill()
    section.notes += [
        "obstore alone: version 0.12, four threads, each reads a file and puts it with mode='create', "
        "without verification",
        "pushed: the same files as a lake, with LIST, CRC-64, comparison of MD5, and commits",
    ]
    return [section]


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def make_lake(path: str, segments: int, size: int) -> None:
    """A lake with `segments` files of incompressible rows, of about `size` bytes each."""
    import lakepond as lp

    row = 1 * MB
    spec = lp.Spec(obs=lp.Field((row // 8,), "uint64", rows=None))
    rng = np.random.default_rng(0)
    count = max(1, size // row - 1)  # obs and next_obs share their rows, but for one
    with lp.Replay.open(path, spec, capacity=4 * count, codec="none") as replay:
        before = rng.integers(0, 1 << 63, row // 8, np.uint64)
        for _ in range(segments):
            for _ in range(count):
                after = rng.integers(0, 1 << 63, row // 8, np.uint64)
                replay.record(
                    obs=before, action=0, reward=0.0, next_obs=after, terminated=False, truncated=False
                )
                before = after
            replay.commit()


def _throughput(section: Section, server: Any, here: Path, quick: bool) -> None:
    in_child("benchmarks.cloud:make_lake", path=str(here / "wide"), segments=6, size=16 * MB)
    files = sorted(str(file) for file in (here / "wide" / "segments").iterdir())
    size = sum(os.path.getsize(file) for file in files)
    seconds: dict[str, list[float]] = {"bare": [], "pushed": []}
    turns = 2 if quick else 6
    for turn in range(turns + 1):
        order = ["bare", "pushed"] if turn % 2 else ["pushed", "bare"]
        for who in order:
            begin = {
                "bare": lambda turn=turn: in_child(
                    "benchmarks.cloud:put_bare", files=files, options=server.options(), name=f"bare-{turn}"
                ),
                "pushed": lambda turn=turn: in_child(
                    "benchmarks.cloud:push_lake",
                    path=str(here / "wide"),
                    url=server.url(f"push-{turn}"),
                    options=server.options(),
                ),
            }[who]()
            if turn:  # the first is a rehearsal
                seconds[who].append(begin["seconds"])
    best = {who: min(taken) for who, taken in seconds.items()}
    section.add("throughput, obstore alone", size / best["bare"] / 1e6, "MB/s", None, None)
    section.add("throughput, pushed", size / best["pushed"] / 1e6, "MB/s", None, None)
    ratio = best["bare"] / best["pushed"]
    section.add("pushed relative to obstore alone, best rounds", ratio, "x", "at least 0.8", ratio >= 0.8)
    middle = statistics.median(seconds["bare"]) / statistics.median(seconds["pushed"])
    section.add("pushed relative to obstore alone, median rounds", middle, "x", None, None)
    section.notes.append(
        f"{len(files)} files, {size / 1e6:,.0f} MB, {turns} turns, bare and pushed alternate"
    )


def put_bare(files: list[str], options: dict[str, Any], name: str) -> dict[str, float]:
    """The client alone: four threads, nothing checked."""
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "bucket", region="us-east-1", client_options={"allow_http": True, "timeout": "300s"}, **options
    )
    obstore.put(store, f"{name}/rehearsal", b"1", mode="create")
    left = list(files)

    def work() -> None:
        while left:
            try:
                file = left.pop()
            except IndexError:
                return
            obstore.put(
                store,
                f"{name}/{Path(file).name}",
                Path(file).read_bytes(),
                mode="create",
                use_multipart=False,
            )

    begin = time.perf_counter()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return {"seconds": time.perf_counter() - begin}


def push_lake(path: str, url: str, options: dict[str, Any]) -> dict[str, float]:
    """A push of the whole lake to a place where nothing is; memory is counted from after a rehearsal."""
    import lakepond as lp
    from benchmarks.measure import resident_bytes

    with tempfile.TemporaryDirectory() as small:  # libraries and the client's threads
        make_lake(f"{small}/lake", 1, 2 * MB)
        assert lp.push(f"{small}/lake", lp.Cloud(f"{url}-rehearsal", options=options)).done
    before = resident_bytes()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
    begin = time.perf_counter()
    status = lp.push(path, lp.Cloud(url, options=options), timeout=600)
    seconds = time.perf_counter() - begin
    assert status.done, status
    lines = Path("/proc/self/status").read_text().splitlines()
    peak = 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    return {"seconds": seconds, "extra": peak - before}


def _memory(section: Section, server: Any, here: Path) -> None:
    in_child("benchmarks.cloud:make_lake", path=str(here / "large"), segments=4, size=64 * MB)
    files = [file.stat().st_size for file in (here / "large" / "segments").glob("*.rows")]
    got = in_child(
        "benchmarks.cloud:push_lake",
        path=str(here / "large"),
        url=server.url("large"),
        options=server.options(),
    )
    section.add(
        f"extra memory, {len(files)} segments of {max(files) / MB:.0f} MiB at once",
        got["extra"] / 1e6,
        "MB",
        "at most 300",
        got["extra"] <= 300e6,
    )
    shutil.rmtree(here / "large")


def _bytes(section: Section, server: Any, here: Path) -> None:
    """25 generations, 25 commits, 5 pushes, the oldest steps leaving; counted at the server."""
    import small_runs

    import lakepond as lp

    cloud = server.cloud("run")
    with lp.Replay.open(
        here / "run", small_runs.SPEC, capacity=2_000, max_steps=2_000, cloud=cloud
    ) as replay:
        for generation in range(1, 26):
            small_runs.run(replay, commits=1, steps=200)
            if generation % 5 == 0:
                assert replay.push(wait=True).done
        before = len(server.log())
        assert replay.push(wait=True).done
        nothing = [entry[0] for entry in server.log()[before:] if "_lakepond" not in entry[1]]
    puts = [entry for entry in server.log() if entry[0] == "PUT" and "/run/" in entry[1]]
    segments = [entry[1] for entry in puts if "/segments/" in entry[1]]
    lake = small_runs.bytes_of(here / "run")
    ratio = sum(entry[4] for entry in puts) / lake
    section.add("bytes sent over bytes in the lake", ratio, "x", "at most 1.01", ratio <= 1.01)
    most = max(segments.count(path) for path in set(segments))
    section.add(f"PUTs of a segment, most of {len(set(segments))}", most, "", "exactly 1", most == 1)
    section.add("requests of a push with nothing new", len(nothing), "", "1 HEAD", nothing == ["HEAD"])


def _sentences(section: Section, server: Any, strict: Any, here: Path) -> None:
    """How long until an error is reported to a caller that needs the cloud at its start."""
    import servers

    import lakepond as lp

    away = lp.Cloud(server.url("x"), options=server.options(servers.free_ports(1)[0]))
    missing = lp.Cloud("s3://no-such-bucket/x", options=server.options())
    refused = lp.Cloud(strict.url("x"), options={**strict.options(), "secret_access_key": "wrong"})
    cases: dict[str, Callable[[], Any]] = {
        "no such bucket": lambda: lp.pull(here / "none", missing),
        "no server": lambda: lp.pull(here / "none", away),
        "wrong credentials": lambda: lp.pull(here / "none", refused),
    }
    for what, attempt in cases.items():
        begin = time.perf_counter()
        try:
            attempt()
        except lp.CloudError:
            seconds = time.perf_counter() - begin
            section.add(f"{what}: error after", seconds, "s", "at most 2", seconds <= 2)
    code = (
        "import time, lakepond as lp, tempfile; folder = tempfile.mkdtemp(); begin = time.perf_counter()\n"
        "try: lp.pull(folder + '/x', 'gs://bucket/x')\n"
        "except lp.CloudRefused: print(time.perf_counter() - begin)"
    )
    env = {key: value for key, value in os.environ.items() if not key.startswith(("GOOGLE", "STORAGE"))}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**env, "HOME": str(here)}, capture_output=True, text=True
    )
    seconds = json.loads(done.stdout)
    section.add("no credentials: error after, imports included", seconds, "s", "at most 2", seconds <= 2)


if __name__ == "__main__":
    print_report(run)
