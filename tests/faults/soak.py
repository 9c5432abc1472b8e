"""The whole soak: every drill at length, two cases at a time, each in a process of its own.

    python -m faults                       one to two hours on two quiet cores
    python -m faults --only "crash points" --seed 3
    python -m faults --scale 0.1           the same with a tenth of the rounds

Results are appended to docs/results/faults.jsonl as they come. Started again with the same seed and scale,
on any machine that has this file, it skips cases that held and whose code has not changed since: the folders
of lakepond that the case used, or all of it if the case started other Python processes. At the end it writes
the result page. Exit code 1 if anything did not hold.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Any

from faults import (
    clocks,
    collectors,
    crash_points,
    disk,
    erl_on_ray,
    forks,
    full_disk,
    heed_signals,
    many_machines,
    operations,
    page,
    signals,
    strace,
    training,
)
from faults.outcome import Outcome, Skipped

HOME = Path(__file__).parents[2]
PACKAGE, DRILLS = HOME / "src" / "lakepond", HOME / "tests" / "faults"
NOT_DRILLS = ("__main__.py", "soak.py", "page.py", *(file.name for file in DRILLS.glob("test_*.py")))
"""files of that folder on which no result depends"""
LONGEST = 3600.0
"""seconds after which a case counts as hanging"""
RECORDED = ("commit", "retention", "repair", "checkpoint", "rewind", "push", "local budget", "import")
"""operations with which the recorder is compared with strace"""
KEPT = HOME / ".cache" / "faults"
"""folders that failed a check, to be looked at"""
RANDOM_MODES = ("data lost", "both lost", "mixed")
Run = Callable[[Path, random.Random, float], Outcome]
"""a case: gets a scratch folder, its random numbers, and how much of the full soak is wanted (1: all)"""


def times(full: int, scale: float) -> int:
    """A number of rounds, at least one."""
    return max(1, round(full * scale))


def cases() -> dict[str, Run]:
    """All cases by name, the longest first, so that two processes end together."""
    found: dict[str, Run] = {}
    found["many machines: 16 writers, 1 follower"] = lambda scratch, chance, scale: many_machines.drill(
        scratch, chance, seconds=many_machines.SECONDS * scale
    )
    found["gc on a server: beside writers and readers"] = lambda scratch, chance, scale: collectors.drill(
        scratch, chance, rounds=times(50, scale)
    )
    for trainer in training.TRAINERS:
        found[f"signals: train {trainer}"] = lambda scratch, chance, scale, trainer=trainer: (
            signals.drill_trainer(trainer, scratch, chance, rounds=times(5, scale))
        )
    found["many machines: train erl on Ray workers"] = lambda scratch, chance, scale: erl_on_ray.drill(
        scratch, chance, faults=times(20, scale)
    )
    found["signals: compare"] = lambda scratch, chance, scale: signals.drill_compare(
        scratch, chance, rounds=times(3, scale)
    )
    found["hostile inputs: mutated files"] = hostile_inputs
    found["damaged files: the lake's own tests"] = damaged_files
    found["signals: a writer that is killed"] = lambda scratch, chance, scale: signals.drill_writer(
        scratch, chance, rounds=times(200, scale)
    )
    for name, operation in operations.OPERATIONS.items():
        found[f"crash points: {name}"] = lambda scratch, chance, scale, operation=operation: cut_off(
            operation, scratch, chance, scale
        )
    for trainer in training.TRAINERS:
        found[f"full disk: train {trainer}"] = lambda scratch, chance, scale, trainer=trainer: (
            full_disk.walk_trainer(trainer, scratch, levels(chance, times(40, scale)))
        )
    found["full disk: train erl stop_saving"] = lambda scratch, chance, scale: full_disk.walk_trainer(
        "erl", scratch, levels(chance, times(40, scale)), at_floor="stop_saving"
    )
    for name in full_disk.WALKS:
        found[f"full disk: {name}"] = lambda scratch, chance, scale, name=name: full_disk.walk(
            name, scratch, levels(chance, times(80, scale))
        )
    for name in signals.COMMANDS:
        found[f"signals: {name}"] = lambda scratch, chance, scale, name=name: signals.drill_command(
            name, scratch, chance, rounds=times(8, scale)
        )
    for name in clocks.WALKS:
        found[f"clock jumps: {name}"] = lambda scratch, chance, scale, name=name: clocks.drill(
            name, scratch, chance, rounds=times(40, scale)
        )
    for name in forks.CASES:
        found[f"fork and two writers: {name}"] = lambda scratch, chance, scale, name=name: forks.drill(
            name, scratch, rounds=times(10, scale)
        )
    found["fork and two writers: two writers of one name"] = two_writers
    found["fork and two writers: compare started twice"] = compare_twice
    for name in RECORDED:
        found[f"recorder: {name}"] = lambda scratch, chance, scale, name=name: strace.drill(name, scratch)
    return found


def levels(chance: random.Random, count: int) -> list[int]:
    """Numbers of free bytes: every page up to 64 KB, then at random up to 1 MB."""
    pages = [full_disk.PAGE * number for number in range(17)]
    some = pages + [chance.randrange(1 << 16, 1 << 20) for _ in range(max(0, count - len(pages)))]
    return some if count >= len(pages) else chance.sample(some, count)


def cut_off(operation: crash_points.Operation, scratch: Path, chance: random.Random, scale: float) -> Outcome:
    """All crash points once, then those of the random modes again with other random numbers."""
    outcome = Outcome("crash points", operation.name)
    for number in range(1 if operation.trains else times(6, scale)):
        found = crash_points.drill(
            operation,
            scratch / str(number),
            modes=disk.MODES if number == 0 else RANDOM_MODES,
            most=times(300, scale) if operation.trains else None,
            seed=chance.randrange(1 << 30),
            keep=KEPT,
        )
        outcome.tried += found.checked
        outcome.failures += found.failures
        outcome.notes["file changes"] = found.changes
    return outcome


def fast_folder() -> str | None:
    """A folder in memory, if there is one: the drill makes thousands of small folders."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def two_writers(scratch: Path, chance: random.Random, scale: float) -> Outcome:
    outcome = Outcome(forks.DRILL, "two writers of one name")
    for number in range(times(5, scale)):
        with outcome.attempt(f"round {number}"):
            forks.two_writers(scratch / str(number), 20)
    return outcome


def compare_twice(scratch: Path, chance: random.Random, scale: float) -> Outcome:
    outcome = Outcome(forks.DRILL, "compare started twice")
    for number in range(times(3, scale)):
        with outcome.attempt(f"round {number}"):
            forks.compare_twice(scratch / str(number), chance)
    return outcome


def damaged_files(scratch: Path, chance: random.Random, scale: float) -> Outcome:
    """The tests of the lake with damaged and truncated files and random columns, at length."""
    outcome = Outcome("damaged files", "the lake's own tests")
    env = {**os.environ, "LAKEPOND_HYPOTHESIS": "soak" if scale >= 1 else "default"}
    chosen = ["-k", "damaged or sealed or any_columns or flipped", "-p", "no:cacheprovider"]
    line = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-o", "faulthandler_timeout=600"]
    done = subprocess.run(
        [*line, str(HOME / "tests" / "lake"), *chosen], env=env, capture_output=True, text=True, cwd=HOME
    )
    with outcome.attempt("pytest"):
        assert done.returncode == 0, done.stdout[-600:]
    if passed := re.search(r"(\d+) passed", done.stdout):
        outcome.tried = int(passed[1])
    return outcome


def hostile_inputs(scratch: Path, chance: random.Random, scale: float) -> Outcome:
    """The corpus of hostile inputs with random mutations, for a while."""
    from faults import hostile_loop

    if importlib.util.find_spec("faults.hostile") is None:
        raise Skipped("there is no corpus (tests/faults/hostile.py)")
    return hostile_loop.drill(scratch, chance, seconds=300 * scale)


# --- running -----------------------------------------------------------------------------------------


def code_digest(parts: Iterable[str]) -> str:
    """Of the drills, and of folders and modules of lakepond."""
    found = hashlib.sha256()
    drills = [file for file in DRILLS.glob("*.py") if file.name not in NOT_DRILLS]
    chosen = [PACKAGE / part for part in parts]
    files = [file for path in chosen for file in ([path] if path.is_file() else path.rglob("*.py"))]
    for file in sorted({*drills, *files}):
        found.update(str(file.relative_to(HOME)).encode() + file.read_bytes())
    return found.hexdigest()[:12]


class Used:
    """Which folders and modules of lakepond this process uses; [""]: all, for it started other processes."""

    def __init__(self) -> None:
        self._processes = False
        sys.addaudithook(self._note)

    def _note(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("os.fork", "os.posix_spawn", "os.exec"):
            self._processes = True
        elif event == "subprocess.Popen":
            self._processes |= any(Path(str(word)).name.startswith("python") for word in args[1])

    def parts(self) -> list[str]:
        """Their names, like "lake" and "types.py"."""
        if self._processes:
            return [""]
        loaded = [
            Path(module.__file__)
            for module in list(sys.modules.values())
            if getattr(module, "__file__", None)
        ]
        return sorted({file.relative_to(PACKAGE).parts[0] for file in loaded if file.is_relative_to(PACKAGE)})


def run_case(name: str, seed: int, scale: float) -> dict[str, Any]:
    """One case in this process."""
    began, used = time.monotonic(), Used()
    drill, _, case = name.partition(": ")
    home = fast_folder() if drill == "crash points" else None
    with tempfile.TemporaryDirectory(prefix="lakepond-faults-", dir=home) as scratch:
        try:
            outcome = cases()[name](Path(scratch), random.Random(f"{seed} {name}"), scale)
        except Skipped as why:
            outcome = Outcome(drill, case, skipped=str(why))
        except Exception as error:
            outcome = Outcome(drill, case, tried=1, failures=[f"the drill: {type(error).__name__}: {error}"])
    outcome.drill, outcome.case = drill, case
    parts = used.parts()
    code = {"parts": parts, "code": code_digest(parts)}
    return {**asdict(outcome), "seconds": round(time.monotonic() - began, 1), **code}


def run_as_process(name: str, seed: int, scale: float) -> dict[str, Any]:
    """One case in a process of its own, which may crash or hang without ending the soak."""
    line = [
        sys.executable,
        "-m",
        "faults",
        "--case",
        name,
        "--seed",
        str(seed),
        "--scale",
        str(scale),
    ]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HOME / "tests"), *filter(None, sys.path)])}
    drill, _, case = name.partition(": ")
    try:
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=LONGEST)
        return dict(json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired:
        why = f"it did not end within {LONGEST:,.0f} s"
    except (ValueError, IndexError):
        why = f"its process ended with {done.returncode}: {done.stderr[-400:]}"
    code = {"parts": [""], "code": code_digest([""])}
    return {**asdict(Outcome(drill, case, tried=1, failures=[why])), "seconds": LONGEST, **code}


def read_results(file: Path, key: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The cases that held with this seed and length and with the present code, by their names."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return {
        f"{each['drill']}: {each['case']}": each
        for each in found
        if not each["failures"]
        and all(each.get(name) == value for name, value in key.items())
        and each["code"] == code_digest(each["parts"])
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rounds of the whole soak")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--results", type=Path, default=HOME / "docs" / "results" / "faults.jsonl")
    parser.add_argument(
        "--page", type=Path, help="result page (default: docs/results/faults.md, of a full run)"
    )
    parser.add_argument("--case", help=argparse.SUPPRESS)
    given = parser.parse_args()
    heed_signals()
    if given.case:
        print(json.dumps(run_case(given.case, given.seed, given.scale)))  # noqa: T201
        return 0
    key = {"seed": given.seed, "scale": given.scale}
    done = read_results(given.results, key)
    wanted = [name for name in cases() if given.only in name]
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text("".join(json.dumps(each) + "\n" for each in done.values()))  # not of other code
    print(f"{len(wanted)} cases, {sum(name in done for name in wanted)} done before", flush=True)  # noqa: T201
    with ThreadPoolExecutor(given.jobs) as pool:
        futures = {
            pool.submit(run_as_process, name, given.seed, given.scale): name
            for name in wanted
            if name not in done
        }
        for future in as_completed(futures):
            result = {**future.result(), **key, "date": time.strftime("%Y-%m-%d", time.gmtime())}
            done[futures[future]] = result
            with given.results.open("a") as file:
                file.write(json.dumps(result) + "\n")
            show(result)
    results = [done[name] for name in wanted]
    if given.page is not None or not given.only:
        page.write(given.page or HOME / "docs" / "results" / "faults.md", results)
    failed = sum(bool(result["failures"]) for result in results)
    print(f"{len(results)} cases, {sum(r['tried'] for r in results):,} faults, {failed} cases failed")  # noqa: T201
    return 1 if failed else 0


def show(result: dict[str, Any]) -> None:
    """One line of progress, and the first failures."""
    state = result["skipped"] or (f"{len(result['failures'])} FAILED" if result["failures"] else "held")
    text = (
        f"{result['drill']}: {result['case']}: {result['tried']:,} tried, {state}, {result['seconds']:.0f} s"
    )
    print("\n    ".join([text, *result["failures"][:3]]), flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
