"""Drill 1, crash points: an operation is recorded once and then cut off before each of its file changes.

For every change and every mode of `disk.MODES` the folder is rebuilt as the crash leaves it, reopened,
verified against the model and continued. States that were checked already, with the same marks, are not
checked again.
"""

from __future__ import annotations

import random
import shutil
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from faults import disk
from faults.journal import Change, Perform, record

Marks = dict[str, Any]


@dataclass(frozen=True)
class Operation:
    """Something that changes files, and what must hold wherever it is cut off."""

    name: str
    perform: Perform
    check: Callable[[Path, Marks], None]
    """raises unless the folder, left by a crash, holds what the marks promise; may change the folder"""
    prepare: Callable[[Path], None] = lambda root: None
    """make the folder that it starts with; not recorded"""
    trains: bool = False
    """a check takes a second or so"""


@dataclass
class Result:
    """What a drill of one operation found."""

    changes: int = 0
    """file changes that were recorded"""
    checked: int = 0
    """different states that were reopened"""
    failures: list[str] = field(default_factory=list)


def drill(
    operation: Operation,
    scratch: Path,
    *,
    modes: Sequence[str] = disk.MODES,
    most: int | None = None,
    seed: int = 0,
    keep: Path | None = None,
) -> Result:
    """Record an operation in `scratch` and check what crashes leave, `most` of them at most, spread evenly.

    Folders that fail the check are kept below `keep`.
    """
    root = scratch / operation.name.replace(" ", "-")
    root.mkdir(parents=True)
    operation.prepare(root)
    journal = record(root, operation.perform)
    result = Result(changes=sum(change.kind not in ("mark", "open") for change in journal.changes))
    states = _states(journal.before, journal.changes, modes, seed)
    every = 1 if most is None else -(-len(states) // most)
    for at, mode, content, marks in states[seed % every :: every]:
        shutil.rmtree(root)
        disk.write(content, root)
        result.checked += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a check may step back over what a crash left
                operation.check(root, dict(marks))
        except Exception as error:
            last = str(journal.changes[at - 1]) if at else "the start"
            text = f"{operation.name}, {mode} after change {at} of {len(journal.changes)} ({last}), {marks}: "
            result.failures.append(text + f"{type(error).__name__}: {error}"[:400])
            if keep is not None:
                folder = keep / f"{root.name}-{at}-{mode.replace(' ', '-')}"
                shutil.rmtree(folder, ignore_errors=True)
                disk.write(content, folder)
    shutil.rmtree(root)
    return result


State = tuple[int, str, dict[str, bytes | None], Marks]


def _states(
    before: dict[str, bytes | None], changes: list[Change], modes: Sequence[str], seed: int
) -> list[State]:
    """Every different state that a crash can leave: after how many changes, how, the folder, the marks."""
    model = disk.Disk(before)
    marks: Marks = {}
    seen: set[int] = set()
    states: list[State] = []
    for at in range(len(changes) + 1):
        change = changes[at - 1] if at else None
        if change is not None:
            model.apply(change)
            marks = {**marks, **change.marks}
        for mode in modes:
            if mode == "torn" and (change is None or change.kind != "write"):
                continue
            content = model.content(mode, random.Random(f"{seed} {at} {mode}"))
            key = hash((tuple(content.items()), repr(marks)))
            if key not in seen:
                seen.add(key)
                states.append((at, mode, content, marks))
    return states
