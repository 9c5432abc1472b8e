"""Kill a start, a resume and a move at each file operation; then start again and check that nothing is lost.

    python tests/runs/crash_points.py FOLDER

A child process exits before its n-th change of the file system, for every n; Python reports each change
before it is made (an audit event). Then the run is started again and compared with one that was never killed.
Each reward is the number of its step.
"""

import itertools
import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lakepond as lp
from lakepond.lake.format.commits import Start
from lakepond.runs import Run
from lakepond.runs.resume import Resume

SPEC = lp.Spec(obs=lp.Field((2,), "float32"))
CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "os.link")
EXIT = 77
STATE = {"done": 0, "lake_commit": None}


@dataclass(frozen=True)
class Settings:
    generations: int = 9


def train(folder: Path, until: int, *, number: int | None = None, start_over: bool = False) -> None:
    """A trainer: each generation records ten steps, commits, logs one line and saves a checkpoint."""
    how = Resume(number=number, start_over=start_over)
    with Run.create(folder, "mine", Settings(), keep_last=9, prepare=how.prepare) as run:

        def open_lake(commit: int | Start) -> lp.Replay:
            return lp.Replay.open(run.lake_folder, SPEC, 100, commit=commit, merge_after=None)

        checkpoint, replay = how.take_up(run, {}, STATE, open_lake)
        with replay:
            for generation in range(1 + (checkpoint.state["done"] if checkpoint else 0), until + 1):
                for _ in range(10):
                    step = replay.stats().recorded
                    obs = np.full(2, step, np.float32)
                    replay.record(
                        obs=obs, action=0, reward=step, next_obs=obs, terminated=False, truncated=False
                    )
                commit = replay.commit()
                run.log(generation, {"recorded": commit.recorded})
                run.save(generation, {}, {"done": generation, "lake_commit": commit.number})


def check(folder: Path, generations: int) -> None:
    """The run is as if it had never been killed."""
    run = Run.open(folder)
    assert (folder / "metrics.jsonl").read_bytes().count(b"\0") == 0
    assert [(line["step"], line["recorded"]) for line in run.history()] == [
        (generation, 10 * generation) for generation in range(1, generations + 1)
    ]
    assert run.checkpoints()[-1] == generations
    with lp.Lake.open(folder / "lake", run.state()["lake_commit"]) as lake:
        lake.verify()
        assert lake.steps(0, 10 * generations).reward.tolist() == list(range(10 * generations))


def killed_at(number: int, operation: Callable[[], None]) -> bool:
    """Do an operation in a child that exits before its change `number`; whether there were that many."""
    child = os.fork()
    if child == 0:
        seen = itertools.count()

        def hook(event: str, args: tuple[object, ...]) -> None:
            writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_CREAT | os.O_TRUNC)
            if (event in CHANGES or writes) and next(seen) == number:
                os._exit(EXIT)

        sys.addaudithook(hook)
        try:
            operation()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, EXIT), f"the child ended with exit code {code} at change {number}"
    return code == EXIT


def crash_points(name: str, scratch: Path, before: Path | None, operation, after) -> int:
    """Kill `operation(folder)` at each change, then call `after(folder)`; returns the number of changes."""
    for number in itertools.count():
        folder = scratch / f"{name}-{number}"
        if before is not None:
            shutil.copytree(before, folder)
        killed = killed_at(number, lambda folder=folder: operation(folder))
        try:
            after(folder)
        except BaseException as error:
            error.add_note(f"{name} killed before change {number}")
            raise
        shutil.rmtree(folder)
        if not killed:
            return number
    raise AssertionError


def new_run(folder: Path) -> None:
    train(folder, 1)


def finish_new_run(folder: Path) -> None:
    train(folder, 3)
    check(folder, 3)


def back_to_two(folder: Path) -> None:
    train(folder, 2, number=2)


def finish_back_to_two(folder: Path) -> None:
    assert Run.open(folder).checkpoints()[-1] in (2, 3, 4)  # each is a state to resume from
    train(folder, 6)
    check(folder, 6)


def start_over(folder: Path) -> None:
    train(folder, 1, start_over=True)


def finish_start_over(folder: Path) -> None:
    """All that was there is still there, moved or not; and starting over again works."""
    lakes = [path.parent for path in folder.glob("**/lake.json")]
    commits = {path.name for lake in lakes for path in lake.glob("commits/*.json")}
    assert len(commits) >= 4
    train(folder, 2, start_over=True)
    check(folder, 2)
    old = [path for path in folder.glob("old-*/lake") if len(list(path.glob("commits/*.json"))) == 4]
    with lp.Lake.open(old[0]) as lake:
        assert lake.steps(0, 40).reward.tolist() == list(range(40))
    logs = [path.read_text().splitlines() for path in folder.glob("old-*/metrics.jsonl")]
    assert [json.loads(line)["step"] for line in max(logs, key=len)] == [1, 2, 3, 4]


def main() -> None:
    scratch = Path(sys.argv[1])
    found = {"new": crash_points("new", scratch, None, new_run, finish_new_run)}
    train(scratch / "four", 4)
    found["resume_from"] = crash_points("back", scratch, scratch / "four", back_to_two, finish_back_to_two)
    found["start_over"] = crash_points("over", scratch, scratch / "four", start_over, finish_start_over)
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
