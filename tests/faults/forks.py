"""Drill 6, fork and two writers: a forked child changes nothing and never hangs; two writers lose nothing."""

from __future__ import annotations

import os
import pickle
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from faults import signals, training
from faults.model import SPEC, check_and_continue, record
from faults.outcome import Outcome

DRILL = "fork and two writers"
SECONDS = 30.0
"""after which a child counts as hanging"""


def in_child(work: Callable[[], Any]) -> Any:
    """What `work` returns in a forked child, or the exception that it raises; AssertionError if it hangs."""
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of forks beside threads: that is what is tried here
        child = os.fork()
    if child == 0:
        try:
            result: Any = work()
        except BaseException as error:
            result = RuntimeError(f"{type(error).__name__}: {error}")
        os.write(writes, pickle.dumps(result))
        os._exit(0)
    os.close(writes)
    try:
        answered, _, _ = select.select([reads], [], [], SECONDS)
        if not answered:
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reads, "rb") as pipe:
            data = pipe.read()
    finally:
        os.waitpid(child, 0)
    assert answered, "the child hangs"
    return pickle.loads(data)


def is_locked(path: Path) -> bool:
    """Whether another process can not write the lake."""
    code = f"import lakepond as lp; lp.Replay.open({str(path)!r}, capacity=10).close()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 or "LakeLocked" in done.stderr, done.stderr[-300:]
    return done.returncode != 0


def child_closes(scratch: Path) -> None:
    path = scratch / "lake"
    with lp.Replay.open(path, SPEC, capacity=30) as replay:
        record(replay, 0, 10)
        replay.commit()
        record(replay, 10, 15)
        in_child(replay.close)
        assert is_locked(path), "the child's close() released the parent's lock"
        record(replay, 15, 20)
        assert replay.commit().recorded == 20
    check_and_continue(path, 20, 20)


def child_commits(scratch: Path) -> None:
    path = scratch / "lake"
    with lp.Replay.open(path, SPEC, capacity=30) as replay:
        record(replay, 0, 10)
        replay.commit()
        record(replay, 10, 15)
        answer = in_child(replay.commit)
        assert isinstance(answer, RuntimeError), f"a child committed: {answer}"
        record(replay, 15, 20)
        assert replay.commit().recorded == 20
    check_and_continue(path, 20, 20)


def child_samples(scratch: Path) -> None:
    """As a DataLoader's workers do: from lake and replay, in batches large enough for two threads."""
    spec = lp.Spec(obs=lp.Field((100, 100), "uint8"))
    path = scratch / "lake"
    with lp.Replay.open(path, spec, capacity=300) as replay:
        ids = np.arange(300)
        obs = np.broadcast_to((ids % 251).astype(np.uint8)[:, None, None], (300, 100, 100))
        ends = np.zeros(300, bool)
        given = {"obs": obs, "next_obs": obs, "action": ids, "reward": ids.astype(np.float32)}
        replay.record(**given, terminated=ends, truncated=ends, stream=0)
        replay.commit()
        with lp.Lake.open(path) as lake:

            def draw() -> bool:
                for source in (replay, lake):
                    batch = source.sample(256, rng=np.random.default_rng(0))
                    if not (batch.obs[:, 5, 5] == batch.reward % 251).all():
                        return False
                return True

            assert draw()
            assert in_child(draw) is True


CASES: dict[str, Callable[[Path], None]] = {
    "a forked child closes": child_closes,
    "a forked child commits": child_commits,
    "a forked child samples": child_samples,
}

WRITER = """
    import sys
    import lakepond as lp
    from faults.model import SPEC, record
    left = int(sys.argv[2])
    while left:
        try:
            with lp.Replay.open(sys.argv[1], SPEC, capacity=40) as replay:
                start = replay.stats().recorded
                record(replay, start, start + 3)
                print(replay.commit().number, start + 3, flush=True)
                left -= 1
        except lp.LakeLocked:
            pass
"""


def two_writers(scratch: Path, commits: int) -> None:
    """Two processes open, write and close one lake as fast as they can: every commit is there, once."""
    path = scratch / "lake"
    line = [sys.executable, "-c", textwrap.dedent(WRITER), str(path), str(commits)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    writers = [subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)]
    printed = [writer.communicate(timeout=300)[0].split() for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0]
    numbers = sorted(int(number) for words in printed for number in words[::2])
    assert numbers == list(range(2 * commits)), f"commits {numbers}"
    stops = sorted(int(stop) for words in printed for stop in words[1::2])
    assert stops == list(range(3, 6 * commits + 1, 3)), f"two commits of the same steps: {stops}"
    check_and_continue(path, 6 * commits, 6 * commits, capacity=40)


def compare_twice(scratch: Path, chance: random.Random) -> None:
    """Two processes share one comparison: each run is done once and ends as undisturbed."""
    signals.run(signals.compare_words(scratch / "undisturbed"))
    folder = scratch / "runs"
    first = signals.start(signals.compare_words(folder))
    time.sleep(chance.uniform(0, 1))
    second = signals.start(signals.compare_words(folder))
    for process in (first, second):
        signals.finish(process, {0})
    found, wanted = signals.compared(folder), signals.compared(scratch / "undisturbed")
    differ = {name: training.differences(found.get(name, {}), wanted[name]) for name in wanted}
    assert found == wanted, f"differ: {differ}"


def drill(name: str, scratch: Path, *, rounds: int = 1) -> Outcome:
    """One of the cases in this process."""
    outcome = Outcome(DRILL, name)
    for number in range(rounds):
        with outcome.attempt(f"round {number}"):
            CASES[name](scratch / str(number))
    return outcome
