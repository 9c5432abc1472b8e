"""Random bytes, nothing repeats: the cost of looking for repeats, over a plain ring of arrays."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import Laps, fill_randomly, in_child, interleaved, resident_bytes
from benchmarks.report import Section

BAR = 1.10


class Case(NamedTuple):
    """A shape and how it is handed over."""

    shape: tuple[int, ...]
    dtype: str
    envs: int  # steps a call; 0: one step, no leading axis
    capacity: int
    turn: int  # steps a turn; the ring takes a whole number of turns
    batch: int
    headline: bool


CASES = {
    "window (504,108,9) float32, 1 per call": Case((504, 108, 9), "float32", 0, 192, 48, 32, False),
    "window (504,108,9) float32, 16 per call": Case((504, 108, 9), "float32", 16, 192, 48, 32, True),
    "stack (4,84,84) uint8, 8 per call": Case((4, 84, 84), "uint8", 8, 8_192, 1_024, 256, True),
    "vector (17,) float32, 256 per call": Case((17,), "float32", 256, 262_144, 16_384, 256, False),
}


class PlainRing:
    """What anyone would write first: one preallocated array a column, the oldest overwritten."""

    def __init__(self, case: Case) -> None:
        self._columns = {
            "obs": np.zeros((case.capacity, *case.shape), case.dtype),
            "next_obs": np.zeros((case.capacity, *case.shape), case.dtype),
            "action": np.zeros((case.capacity, 2), np.float32),
            "reward": np.zeros(case.capacity, np.float32),
            "terminated": np.zeros(case.capacity, bool),
            "truncated": np.zeros(case.capacity, bool),
        }
        self._capacity, self._at, self._held = case.capacity, 0, 0

    def record(self, stream: int | None = None, **step: Any) -> None:
        """One step, or a batch that does not straddle the end of the ring."""
        many = 1 if stream is not None else len(step["reward"])
        place = self._at if stream is not None else slice(self._at, self._at + many)
        for name, column in self._columns.items():
            column[place] = step[name]
        self._at = (self._at + many) % self._capacity
        self._held = min(self._held + many, self._capacity)

    def sample(self, size: int, rng: np.random.Generator, out: Any = None) -> dict[str, np.ndarray]:
        """Uniform, into `out` if given."""
        drawn = rng.integers(0, self._held, size)
        if out is None:
            return {name: column[drawn] for name, column in self._columns.items()}
        for name, column in self._columns.items():
            np.take(column, drawn, axis=0, out=out[name], mode="clip")  # "raise" would copy through a buffer
        return out


def make(name: str, case: Case) -> Any:
    """An empty contestant."""
    if name == "plain":
        return PlainRing(case)
    import lakepond as lp

    spec = lp.Spec(obs=lp.Field(case.shape, case.dtype), action=lp.Field((2,), "float32"))
    return lp.Replay(spec, case.capacity)


class Source:
    """Fresh random steps; the pool is filled again for every round."""

    def __init__(self, case: Case) -> None:
        self._case, self._rng = case, np.random.default_rng(0)
        self._pool = np.zeros((2, case.turn, *case.shape), case.dtype)
        self._action = self._rng.random((case.turn, 2), dtype=np.float32)
        self._no = np.zeros(case.turn, bool)
        self._reward = np.zeros(case.turn, np.float32)

    def renew(self) -> None:
        """The next steps: all bytes new."""
        fill_randomly(self._pool, self._rng)

    def record(self, buffer: Any) -> None:
        """All steps of the turn, in calls as the case has them."""
        many = self._case.envs
        for start in range(0, self._case.turn, many or 1):
            part: Any = slice(start, start + many) if many else start
            step = {
                "obs": self._pool[0, part],
                "action": self._action[part],
                "reward": self._reward[part],
                "next_obs": self._pool[1, part],
                "terminated": self._no[part],
                "truncated": self._no[part],
            }
            buffer.record(**step) if many else buffer.record(**step, stream=0)


def memory(case: str, name: str) -> float:
    """Bytes a step of a full ring, in this process alone."""
    asked = CASES[case]
    source = Source(asked)
    source.renew()
    source.record(make(name, asked._replace(capacity=asked.turn)))  # rehearsal
    before = resident_bytes()
    buffer = make(name, asked)
    for _ in range(2 * asked.capacity // asked.turn):  # once round and over
        source.renew()
        source.record(buffer)
    grown = resident_bytes() - before
    buffer.sample(1, rng=np.random.default_rng(0))  # still alive
    return grown / asked.capacity


def rates(case: Case, passes: int, repeats: int) -> dict[str, dict[str, float]]:
    """Steps a second: first fill, ring full (from the third round on), sample into reused arrays."""
    source, fill, full = Source(case), Laps(), Laps()
    names, turns = ("plain", "lakepond"), case.capacity // case.turn
    buffers: dict[str, Any] = {}
    for _ in range(passes):
        buffers = {name: make(name, case) for name in names}
        for turn in range(3 * turns):  # empty; overwritten once, which touches the spare slots; as ever after
            source.renew()
            taken = {name: lambda buffer=buffer: source.record(buffer) for name, buffer in buffers.items()}
            if turn // turns == 1:
                [record() for record in taken.values()]
            else:
                (full if turn >= turns else fill).take(turn, taken)
    rng, out = np.random.default_rng(0), {}
    many = max(1, 1024 // case.batch) if case.headline else 64

    def sample(name: str) -> None:
        for _ in range(many):
            out[name] = buffers[name].sample(case.batch, rng=rng, out=out.get(name))

    drawn = interleaved({name: lambda name=name: sample(name) for name in names}, many * case.batch, repeats)
    return {
        "record, first fill": {name: fill.rate(name, case.turn).best for name in names},
        "record, ring full": {name: full.rate(name, case.turn).best for name in names},
        f"sample({case.batch}), arrays reused": {name: drawn[name].best for name in names},
    }


def run(quick: bool) -> list[Section]:
    """One row a case and measure: the cost over the plain ring."""
    columns = ["case", "measure", "plain ring", "lakepond", "unit", "cost", "bar", "verdict"]
    section = Section("random: nothing repeats", columns)
    for name, case in CASES.items():
        bar = f"at most {BAR:.2f} x" if case.headline else None
        measured = rates(case, *((1, 3) if quick else (3, 15)))
        for measure, found in measured.items():
            cost = found["plain"] / found["lakepond"]
            section.add(name, measure, found["plain"], found["lakepond"], "steps/s", cost, None, None)
        _, full, drawn = measured.values()
        plain, ours = (
            (case.envs or 1) / full[who] + case.batch / drawn[who] for who in ("plain", "lakepond")
        )
        ok = ours / plain <= BAR if case.headline else None
        together = f"one call and one sample({case.batch})"
        section.add(name, together, 1e6 * plain, 1e6 * ours, "µs", ours / plain, bar, ok)
        plain, ours = (
            in_child("benchmarks.random_data:memory", case=name, name=who) for who in ("plain", "lakepond")
        )
        ok = ours / plain <= BAR if case.headline else None
        section.add(name, "RAM, ring full", plain, ours, "B/step", ours / plain, bar, ok)
    section.notes += [
        "obs and next_obs are random bytes, independent of each other and of every other step",
        "a training step is one call of record, the ring full, and one sample: that is what compared with on",
        "cost: time or memory relative to the plain ring; lakepond with its default number of threads",
    ]
    return [section]
