"""Drill 3, signals: real processes of the command line are killed, interrupted and stopped at random moments.

After each signal the same command is run again, and what it leaves is compared with an undisturbed run. Exit
codes are the documented ones, and no process prints a traceback. A process that is stopped (SIGSTOP) still
owns its lock: a second one that is started meanwhile is refused or shares the work; then the first continues
(SIGCONT).
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lakepond as lp
from faults import training
from faults.model import SPEC, check_lake, record
from faults.outcome import Outcome

DRILL = "signals"
SIGNALS = ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGSTOP")
CODES = {
    "SIGKILL": {-9},
    "SIGTERM": {143},
    "SIGINT": {130},
    "SIGHUP": {-1, 129},
}
"""how a process ends after each signal, besides having been done before (0)"""
BESIDE_ANOTHER = {0, 1, 2, 4}
"""how a process may end that met another one on the same folder: done, refused, or in use"""
READY = "from lakepond.cli import program; print('ready', flush=True); program()"
BUSY = 4
TRIES = 5
"""how often a signal is tried that comes too late"""
LONGEST = 600.0


def start(words: Sequence[str], *, env: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """A process of the command line, returned when the interpreter has started and the command begins."""
    line = [sys.executable, "-c", READY, *words]
    pipe = subprocess.PIPE
    env = training.environment() if env is None else env
    process = subprocess.Popen(line, env=env, stdout=pipe, stderr=pipe, text=True)
    assert process.stdout is not None
    if process.stdout.readline() != "ready\n":
        raise AssertionError(f"it did not start: {process.communicate()[1][-400:]}")
    return process


def finish(process: subprocess.Popen[str], codes: set[int]) -> int:
    """Wait for its end, and check it.

    A signal may come when the command is done and the interpreter is shutting down: that ends it, too.
    """
    try:
        printed, shown = process.communicate(timeout=LONGEST)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError("it did not end") from None
    assert "Traceback" not in shown, f"a traceback, exit code {process.returncode}: {_around(shown)}"
    if printed and process.returncode in (-signal.SIGTERM, -signal.SIGINT):
        return 0
    assert process.returncode in codes, f"exit code {process.returncode}, not {sorted(codes)}: {shown[-400:]}"
    return process.returncode


def _around(shown: str) -> str:
    at = shown.index("Traceback")
    return shown[max(0, at - 150) : at + 450]


def run(words: Sequence[str], codes: set[int] | None = None) -> int:
    return finish(start(words), codes or {0})


def disturb(
    process: subprocess.Popen[str],
    name: str,
    again: Sequence[str],
    outcome: Outcome,
    second: Callable[[], set[int]] = lambda: BESIDE_ANOTHER,
) -> bool:
    """Send a signal and wait for the end; False if it was done before.

    While a process is stopped, the command `again` runs beside it; `second` returns its exit codes.
    """
    if process.poll() is not None:
        finish(process, {0})
        outcome.count("done before the signal")
        return False
    process.send_signal(getattr(signal, name))
    if name != "SIGSTOP":
        hit = finish(process, {0, *CODES[name]}) != 0
        outcome.count(name if hit else f"{name} at the very end")
        return hit
    try:
        code = run(again, second())
    except BaseException:
        process.kill()  # or it would continue to write in the folder of the next round
        process.communicate()
        raise
    process.send_signal(signal.SIGCONT)
    outcome.count(f"SIGSTOP, second process: {code}")
    finish(process, BESIDE_ANOTHER)
    return True


# --- commands that move and mend a lake ----------------------------------------------------------------

COMMITS, STEPS = 60, 300


@dataclass(frozen=True)
class Command:
    """One command: the folder it starts with, its words, and what must hold before and after a repetition."""

    prepare: Callable[[Path], None]
    words: Callable[[Path], list[str]]
    check: Callable[[Path, bool], None]
    """the folder, and whether the command has been done"""
    again: frozenset[int] = frozenset({0})
    """exit codes of a repetition"""


def make_lake(root: Path) -> None:
    with lp.Replay.open(root / "lake", SPEC, capacity=STEPS, merge_after=None) as replay:
        for stop in range(STEPS // COMMITS, STEPS + 1, STEPS // COMMITS):
            record(replay, replay.stats().recorded, stop)
            replay.commit()


def make_bucket(root: Path) -> None:
    make_lake(root)
    lp.push(root / "lake", url(root))


def make_damage(root: Path) -> None:
    make_lake(root)
    with lp.Lake.open(root / "lake", COMMITS // 2) as lake:
        file = root / "lake" / "segments" / lake.commit.segments[-1].name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(bytes(data))


def make_npz(root: Path) -> None:
    make_lake(root)
    with lp.Lake.open(root / "lake") as lake:
        lake.to_npz(root / "npz")


def url(root: Path) -> str:
    return f"file://{root / 'bucket'}"


def check_steps(path: Path, steps: int = STEPS) -> None:
    with lp.Lake.open(path) as lake:
        assert len(lake) == steps, f"{len(lake)} of {steps} steps"
        check_lake(lake)


def check_pushed(root: Path, done: bool) -> None:
    check_steps(root / "lake")
    if done:
        lp.pull(root / "again", url(root)).close()
        check_steps(root / "again")


def check_pulled(root: Path, done: bool) -> None:
    if done:
        check_steps(root / "there")


def check_repaired(root: Path, done: bool) -> None:
    if done:
        check_steps(root / "lake", COMMITS // 2 * (STEPS // COMMITS))


def check_imported(root: Path, done: bool) -> None:
    try:
        with lp.Lake.open(root / "new") as lake:
            lake.verify()
            assert sorted(lake.steps(0, len(lake)).reward.tolist()) == list(range(STEPS)), "an import in part"
    except lp.LakeNotFound:
        assert not done


COMMANDS = {
    "push": Command(make_lake, lambda root: ["push", str(root / "lake"), url(root)], check_pushed),
    "pull": Command(make_bucket, lambda root: ["pull", url(root), str(root / "there")], check_pulled),
    "compact": Command(
        make_lake,
        lambda root: ["compact", str(root / "lake"), "--keep-last", "2"],
        lambda root, done: check_steps(root / "lake"),
    ),
    "repair": Command(make_damage, lambda root: ["repair", str(root / "lake")], check_repaired),
    "import": Command(
        make_npz,
        lambda root: ["import", str(root / "npz"), str(root / "new")],
        check_imported,
        again=frozenset({0, 2}),  # 2: the first or the second process has done it
    ),
}


def drill_command(
    name: str, scratch: Path, chance: random.Random, *, signals: Sequence[str] = SIGNALS, rounds: int = 1
) -> Outcome:
    """Each signal at `rounds` random moments of one command."""
    outcome, command = Outcome(DRILL, name), COMMANDS[name]
    source = scratch / "source"
    source.mkdir(parents=True)
    root = scratch / "root"  # always the same path: what is elsewhere is noted under its URL
    command.prepare(root)
    root.rename(source / "root")
    _copy(source / "root", root)
    process, began = start(command.words(root)), time.monotonic()
    finish(process, {0})
    seconds = time.monotonic() - began
    for number, signal_name in enumerate(list(signals) * rounds):
        _copy(source / "root", root)
        with outcome.attempt(f"{signal_name}, round {number}"):
            process = start(command.words(root))
            time.sleep(0.005 + seconds * chance.random())
            disturb(process, signal_name, command.words(root), outcome)
            command.check(root, False)
            run(command.words(root), set(command.again))
            command.check(root, True)
    return outcome


def _copy(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


# --- a writer ----------------------------------------------------------------------------------------

WRITER = """
    import sys
    import numpy as np
    import lakepond as lp
    from faults.model import SPEC, record
    rng = np.random.default_rng()
    while True:
        kept = {"keep_last": 2, "keep_every": 50, "merge_after": 4}
        with lp.Replay.open(sys.argv[1], SPEC, capacity=90, **kept) as replay:
            for _ in range(30):
                start = replay.stats().recorded
                record(replay, start, start + int(rng.integers(1, 60)))
                if rng.random() < 0.3:
                    replay.commit(wait=False)
                print(replay.commit().recorded, flush=True)
        if rng.random() < 0.5:
            with lp.Lake.open(sys.argv[1]) as lake:
                lake.compact(keep_last=int(rng.integers(1, 4)))
"""


def drill_writer(scratch: Path, chance: random.Random, *, rounds: int) -> Outcome:
    """A process that commits, merges and compacts one lake is killed at random moments, again and again."""
    outcome, path = Outcome(DRILL, "a writer that is killed"), scratch / "lake"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    line = [sys.executable, "-c", textwrap.dedent(WRITER), str(path)]
    acknowledged = 0
    for number in range(rounds):
        if acknowledged > 15_000:  # the model has 20,000 steps
            shutil.rmtree(path)
            acknowledged = 0
        with outcome.attempt(f"kill {number}"):
            process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True, env=env)
            assert process.stdout is not None
            printed = [process.stdout.readline()]
            time.sleep(chance.uniform(0.01, 0.6))
            process.kill()
            printed += process.communicate()[0].splitlines()
            acknowledged = max([acknowledged, *(int(word) for word in printed if word.strip().isdigit())])
            with lp.Lake.open(path) as lake:
                there = lake.commit.recorded
                assert there >= acknowledged, f"{there} of {acknowledged} acknowledged steps"
                check_lake(lake)
    return outcome


# --- trainers ----------------------------------------------------------------------------------------

LONGER: dict[str, dict[str, Any]] = {
    "erl": {"generations": 40},
    "single": {"env-steps": 16_384},
    "mixture": {"env-steps": 12_288},
    "live": {"env-steps": 12_800},
}


def drill_trainer(
    trainer: str,
    scratch: Path,
    chance: random.Random,
    *,
    signals: Sequence[str] = SIGNALS,
    rounds: int = 1,
    **other: Any,
) -> Outcome:
    """All these signals, one after another, to runs that are resumed after each; each ends as undisturbed."""
    outcome, other = Outcome(DRILL, f"train {trainer}"), {**LONGER[trainer], **other}
    training.train_here(trainer, scratch / "undisturbed", **other)
    wanted = training.fingerprint(scratch / "undisturbed")
    moments = [line["time"] for line in training.log_lines(scratch / "undisturbed")]
    pause = 3 * (moments[-1] - moments[0]) / len(moments)
    order = list(signals) * rounds
    chance.shuffle(order)
    folder = scratch / "run"

    def check() -> None:
        differ = training.differences(training.fingerprint(folder), wanted)
        assert not differ, f"not as undisturbed: {differ}"

    def second() -> set[int]:
        """A run that is at its end has released its lock."""
        return {BUSY} if len(training.log_lines(folder)) < len(moments) else {0, BUSY}

    for name in order:
        for _ in range(TRIES):
            logged = len(training.log_lines(folder))
            with outcome.attempt(f"{name} after {logged} lines of the log"):
                process = start(training.words(trainer, folder, *training.resuming(trainer, folder), **other))
                early = chance.random() < 0.2 and name != "SIGSTOP"
                _wait(process, folder, logged, chance.uniform(0.01, 3) if early else None)
                time.sleep(chance.random() * pause)
                again = training.words(trainer, folder, *training.resuming(trainer, folder), **other)
                hit = disturb(process, name, again, outcome, second)
                if process.returncode == 0:  # it is at its end: the next one starts from the beginning
                    check()
                    shutil.rmtree(folder)
                if hit:
                    break
                outcome.tried -= 1
        else:
            outcome.failures.append(f"{name} came too late {TRIES} times")
    with outcome.attempt(f"the end, after {order}"):
        training.train_here(trainer, folder, **other)
        check()
    return outcome


def _wait(process: subprocess.Popen[str], folder: Path, logged: int, seconds: float | None) -> None:
    """Some seconds; None: until one more line is logged."""
    until = time.monotonic() + (LONGEST if seconds is None else seconds)
    while time.monotonic() < until and process.poll() is None:
        if seconds is None and len(training.log_lines(folder)) > logged:
            return
        time.sleep(0.002)


# --- compare -----------------------------------------------------------------------------------------


SEEDS = 3
COMPARED = {
    **{"games": ("Breakout",), "arms": ("single",), "seeds": SEEDS, "env_steps": 32_768, "evaluations": 8},
    **{"evaluation_episodes": 4, "hidden": (8,), "reset_parts": 2},
}


def compare_words(folder: Path) -> list[str]:
    words = ["compare", "--folder", str(folder)]
    for name, value in COMPARED.items():
        words += [f"--{name.replace('_', '-')}", *map(str, value if isinstance(value, tuple) else (value,))]
    return words


def compared(folder: Path) -> dict[str, dict[str, str]]:
    """The metrics and results of all runs of a comparison."""
    found = {}
    for run in sorted(path.parent for path in folder.glob("*/*/*/config.json")):
        result = json.loads((run / "result.json").read_text())
        shown = {name: value for name, value in result.items() if "second" not in name}
        shown = json.dumps(shown, sort_keys=True)
        found[str(run.relative_to(folder))] = {"metrics": training.metrics(run), "result": shown}
    return found


def drill_compare(
    scratch: Path, chance: random.Random, *, signals: Sequence[str] = SIGNALS, rounds: int = 1
) -> Outcome:
    """A comparison that gets all these signals and is started again after each."""
    outcome, folder = Outcome(DRILL, "compare"), scratch / "runs"
    run(compare_words(scratch / "undisturbed"))
    wanted = compared(scratch / "undisturbed")
    process, began = start(compare_words(scratch / "timed")), time.monotonic()
    finish(process, {0})
    seconds = time.monotonic() - began
    order = list(signals) * rounds
    chance.shuffle(order)

    def check() -> None:
        found = compared(folder)
        differ = sorted(name for name in {*found, *wanted} if found.get(name) != wanted.get(name))
        assert not differ, f"not as undisturbed: {differ}"

    for name in order:
        with outcome.attempt(name):
            process = start(compare_words(folder))
            time.sleep(0.05 + seconds * chance.random())
            disturb(process, name, compare_words(folder), outcome)
            if process.returncode == 0 and all_done(folder):
                check()
                shutil.rmtree(folder)
    with outcome.attempt(f"the end, after {order}"):
        run(compare_words(folder))
        check()
    return outcome


def all_done(folder: Path) -> bool:
    return len(list(folder.glob("*/*/*/result.json"))) == SEEDS
