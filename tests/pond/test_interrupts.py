"""Ctrl-C at any moment of recording: a step is complete or absent, and recording continues."""

from __future__ import annotations

import functools
import inspect
import mmap
import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import lakepond as lp
from lakepond.pond import Pond
from lakepond.rows.memory import Slab
from lakepond.types import leaves, rebuild

sys.path.insert(0, str(Path(__file__).parents[1] / "lake"))
from test_lake import agrees, same_batch, spec_of, step_of

WORLD = "dict and tuple"


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line of lakepond that is run, like a signal; None: never."""

    def __init__(self, line: int | None, files: Sequence[str]) -> None:
        self._at, self._files = line, files
        self.lines: list[tuple[str, int]] = []
        """the lines that were reached: file and number"""

    @property
    def raised(self) -> bool:
        return self._at is not None and len(self.lines) > self._at

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not any(f"/lakepond/{part}" in file for part in self._files):
            return None
        if event == "line" and not self.raised:
            self.lines.append((Path(file).name, frame.f_lineno))
            if self.raised:
                raise KeyboardInterrupt
        return self


STORAGE = ("pond/", "rows/")
APPEND = (*STORAGE, "sampling/", "flow/", "replay.py")


def interrupted(line: int | None, call: Callable[[], object], files: Sequence[str] = STORAGE) -> Interrupt:
    """Make a call with an interrupt before its n-th line of these files."""
    interrupt = Interrupt(line, files)
    sys.settrace(interrupt)
    try:
        call()
    except KeyboardInterrupt:
        assert interrupt.raised
    finally:
        sys.settrace(None)
    return interrupt


def checked(replay: lp.Replay) -> lp.Batch:
    """All live steps, after comparing each one and recounting the row stores."""
    for leaf in replay._pond.leaves:
        if leaf.store is not None:
            leaf.store.check()
    batch = replay.recent(len(replay))
    for i in range(len(replay)):
        agrees(batch, i, WORLD)
    return batch


def batch_of(start: int, count: int) -> dict[str, Any]:
    """Steps [start, start + count) as one batch; step n belongs to stream n % 3."""
    steps = [step_of(WORLD, n) for n in range(start, start + count)]
    return {name: stack([step[name] for step in steps]) for name in steps[0]}


def stack(values: list[Any]) -> Any:
    columns = iter(zip(*[[leaf for _, leaf in leaves(value, "")] for value in values], strict=True))
    return rebuild(values[0], lambda: np.stack(next(columns)))


def line_that_publishes() -> tuple[str, int]:
    """Where a pond advances its counter."""
    source, first = inspect.getsourcelines(Pond._advance)
    (at,) = [i for i, line in enumerate(source) if "self.recorded = recorded" in line]
    return "pond.py", first + at


def moments(lines: list[tuple[str, int]], offset: int) -> list[int]:
    """Every line when it is first and when it is last reached, and every fourth moment in between."""
    first = {line: at for at, line in reversed(list(enumerate(lines)))}
    last = {line: at for at, line in enumerate(lines)}
    return sorted({*first.values(), *last.values(), *range(offset, len(lines), 4)})


@pytest.mark.parametrize(
    ("before", "count", "cut", "offset"),
    [(5, 1, False, 0), (30, 1, True, 1), (5, 4, True, 2), (30, 4, False, 3)],
)
def test_an_interrupted_record_is_complete_or_absent(before, count, cut, offset):
    """The lines of an append in turn, each on the same state; absent up to the line that publishes it."""

    made = lp.Replay(spec_of(WORLD), 12, alpha=0.6)
    for n in range(before):
        made.record(**step_of(WORLD, n))
    pickled = pickle.dumps(made)

    def new_replay() -> lp.Replay:
        replay = pickle.loads(pickled)
        replay.sample(4, rng=np.random.default_rng(0), n_step=2, gamma=0.9)
        replay.record(**batch_of(before, 5))
        replay._pond._due = replay.recorded + 1  # the next append updates links and priorities
        if cut:
            replay.cut(np.arange(3))
        return replay

    def record(replay: lp.Replay) -> None:
        if count == 1:
            replay.record(**step_of(WORLD, before + 5))
        else:
            replay.record(**batch_of(before + 5, count))

    complete = new_replay()
    lines = interrupted(None, lambda: record(complete), APPEND).lines
    publishes = lines.index(line_that_publishes())
    assert publishes > 20
    assert len(lines) > publishes + 40  # updating links and priorities
    expected = checked(complete)
    for line in moments(lines, offset):
        replay = new_replay()
        assert interrupted(line, lambda replay=replay: record(replay), APPEND).lines == lines[: line + 1]
        present = replay.recorded == before + 5 + count
        assert present or replay.recorded == before + 5
        assert present == (line > publishes), f"line {line}: {lines[line]}"
        if not present:
            record(replay)
        assert same_batch(checked(replay), expected)
        pond, model = replay._pond, complete._pond
        assert pond.pending_cuts() == model.pending_cuts()
        places = pond.places(pond.ids())
        assert pond.links.ahead[places].tolist() == model.links.ahead[places].tolist(), lines[line]
        assert pond.links.join[places].tolist() == model.links.join[places].tolist()
        assert pond.priorities.total() == pytest.approx(len(replay))
        replay.record(**step_of(WORLD, replay.recorded))
        agrees(replay.recent(1), 0, WORLD)


def test_an_interrupted_growth_leaves_a_replay_that_goes_on(monkeypatch):
    """Every line in turn; then a step that would have fit without it. The rows move each time."""

    def move(slab: Slab, slots: int) -> None:
        before, slab._rows = slab._map or b"", None
        slab._map = mmap.mmap(-1, slots * slab.row_bytes)
        kept = min(len(before), len(slab._map))
        slab._map[:kept] = before[:kept]

    monkeypatch.setattr(Slab, "grow", move)
    spec = lp.Spec(obs=lp.Field((mmap.PAGESIZE,), "uint8", rows=None))
    for line in range(2_000):
        replay = lp.Replay(spec, 200)

        def record(first: int, count: int, replay: lp.Replay = replay) -> None:
            numbers = np.arange(first, first + count + 1, dtype=np.uint8)
            obs = np.repeat(numbers[:, np.newaxis], mmap.PAGESIZE, 1)
            zeros, flags = np.zeros(count, np.int64), np.zeros(count, bool)
            replay.record(
                obs=obs[:-1],
                next_obs=obs[1:],
                action=zeros,
                reward=zeros,
                terminated=flags,
                truncated=flags,
                stream=0,
            )

        record(0, 20)  # leaves room for some more
        interrupt = interrupted(line, lambda: record(20, 40))
        done = replay.stats().recorded
        assert done in (20, 60)
        (store,) = [leaf.store for leaf in replay._pond.leaves]
        assert store.counter("address") in (0, store.slab.address)
        record(done, 0)  # tells how much room there is, and must not tell of rows that are nowhere
        record(done, 1)
        record(done + 1, 70)
        store.check()
        assert (replay.recent(done + 71).obs[:, ::32] == np.arange(done + 71)[:, np.newaxis]).all()
        if not interrupt.raised:
            return
    pytest.fail("there are more lines than that")


def test_an_interrupted_change_of_layout_leaves_the_one_before():
    """The lines of the step that shows the row axis in turn; then a step that shows nothing."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (24, 24, 5), dtype=np.uint8)
    pair = rng.integers(0, 256, (2, 24, 24, 4), dtype=np.uint8)
    flat = np.zeros((24, 24, 4), np.uint8)
    rest = {"action": 0, "reward": 0.0, "terminated": False, "truncated": False}

    def attempt(line: int | None) -> Interrupt:
        replay = lp.Replay(lp.Spec(obs=lp.Field((24, 24, 4), "uint8")), 100)
        replay.record(obs=flat, next_obs=flat, **rest)
        moved = {"obs": frames[..., :4], "next_obs": frames[..., 1:]}
        interrupt = interrupted(line, functools.partial(replay.record, **moved, **rest))
        replay.record(obs=pair[0], next_obs=pair[1], **rest)
        newest, oldest = replay.recent(1), replay.recent(len(replay))
        assert np.array_equal(newest.obs[0], pair[0])
        assert np.array_equal(newest.next_obs[0], pair[1])
        assert not oldest.obs[0].any()
        return interrupt

    attempt(None)  # what is done once in a process is done
    lines = attempt(None).lines
    assert len(lines) > 100
    for line in moments(lines, 0):
        assert attempt(line).raised


def test_an_interrupted_clear_forgets_all_or_nothing():
    """Every line in turn."""
    for line in range(2_000):
        replay = lp.Replay(spec_of(WORLD), 12, alpha=0.6)
        for n in range(20):
            replay.record(**step_of(WORLD, n))
        interrupt = interrupted(line, replay.clear)
        assert len(replay) in (0, 12)
        held = replay._pond.streams
        assert held == ([] if len(replay) == 0 else [0, 1, 2])
        for n in range(20, 26):
            replay.record(**step_of(WORLD, n))
        checked(replay)
        if not interrupt.raised:
            assert len(replay) == 6
            return
    pytest.fail("there are more lines than that")
