"""Drill 5, hostile inputs: the corpus with random changes, in processes with a memory limit, for a while.

    python -m faults.hostile_loop SEED SECONDS    what a process does; it reports each try as a line of JSON

A command may accept or refuse what was changed. It may not raise, print a traceback, take memory, execute
what it reads or end the process.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from faults.outcome import Outcome

MOST_CHANGES = 3
GRACE = 120.0
"""seconds after which a process that should have ended hangs"""


def drill(scratch: Path, chance: random.Random, *, seconds: float) -> Outcome:
    """Start processes until the time is over: one that dies is a failure, and the next one starts."""
    outcome = Outcome("hostile inputs", "mutated files")
    until = time.monotonic() + seconds
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    while (left := until - time.monotonic()) > 0:
        seed = str(chance.randrange(1 << 30))
        line = [sys.executable, "-m", "faults.hostile_loop", seed, str(left)]
        try:
            done = subprocess.run(
                line, env=env | {"TMPDIR": str(scratch)}, capture_output=True, text=True, timeout=left + GRACE
            )
            ended, printed, shown = str(done.returncode), done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            ended, printed, shown = "hangs", _text(late.stdout), _text(late.stderr)
        tries = [json.loads(each) for each in printed.splitlines() if each.endswith("}")]
        outcome.tried += sum("failed" not in each for each in tries)
        outcome.failures += [f"{each['what']}: {each['failed']}" for each in tries if each.get("failed")]
        if ended != "0":
            last = tries[-1]["what"] if tries else f"seed {seed}"
            outcome.failures.append(f"{last}: the process ended with {ended}: {shown[-300:]}")
    return outcome


def _text(data: Any) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""


def loop(chance: random.Random, seconds: float) -> None:
    """Build a case, change it, run it, report it, until the time is over."""
    from faults import hostile

    resource.setrlimit(resource.RLIMIT_AS, (hostile.LIMIT_BYTES, hostile.LIMIT_BYTES))
    until, cases = time.monotonic() + seconds, hostile.cases()
    while time.monotonic() < until:
        case = chance.choice(cases)
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            case.build(folder)
            changes = []
            for _ in range(chance.randint(1, MOST_CHANGES)):
                with contextlib.suppress(RecursionError):  # JSON that is too deep for the mutator, too
                    changes.append(hostile.mutate(folder, chance))
            what = f"{case.name}, {'; '.join(changes)}"
            report(what=what)  # before it runs: the process may not survive it
            before = peak()
            try:
                result = hostile.run(case.command(folder))
                assert "Traceback" not in result.err, result.err[-300:]
                assert not (folder / "opened").exists(), "it was executed"
                grown = peak() - before
                assert grown <= 2 * hostile.MEMORY_BYTES, f"it took {grown >> 20} MB"
            except Exception as error:
                report(what=what, failed=f"{type(error).__name__}: {error}"[:400])


def report(**fields: str) -> None:
    print(json.dumps(fields), flush=True)  # noqa: T201


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


if __name__ == "__main__":
    loop(random.Random(int(sys.argv[1])), float(sys.argv[2]))
