"""Sixteen agents over one panel of days, in windows of 504 days: almost every row has been seen before."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from benchmarks.market_steps import (
    AGENTS,
    BATCH,
    DAYS,
    EPISODE,
    PLAIN,
    ROW,
    SHAPE,
    Walk,
    Windows,
    copies,
    new_replay,
    panel,
    record,
    references,
    views,
    walk,
    wrong,
)
from benchmarks.measure import Laps, Rate, in_child, interleaved, resident_bytes
from benchmarks.report import Section

TURN = 128  # steps
KILO = 1_500  # the bar of 1.5 KB, read strictly


def run(quick: bool) -> list[Section]:
    """Memory, recording, sampling."""
    held = 2_000 if quick else 50_000
    section = Section("market", ["measure", "best", "median", "unit", "of memcpy", "bar", "verdict"])
    for how in ("arrays", "references"):
        _add_memory(section, held, how)
    rows = panel()
    _add_recording(section, rows, *((500, 2, 1) if quick else (4_000, 12, 3)))
    _add_sampling(section, rows, held, 5 if quick else 25)
    section.notes += [
        f"{AGENTS} agents, {EPISODE}-step episodes, {DAYS:,} days x {ROW} float32, synthetic prices; "
        f"uncompressed {PLAIN:,} B/step",
        "memcpy: one thread copies the same windows into a ring of four slots (record) "
        "or into the same arrays repeatedly (sample)",
        "record: the best time of each block of 128 steps over all passes, summed; "
        "a block has about one episode start",
    ]
    return [section]


def memory(held: int, how: str) -> dict[str, float]:
    """Bytes a step with everything counted, and the rate of the whole fill, in this process alone."""
    rows, steps = panel(), walk(held)
    pool = np.ones((2, 2, *SHAPE), np.float32)
    windows = copies(rows, steps, pool) if how == "arrays" else references(rows, steps)
    record(new_replay(64), steps, 0, 64, windows)  # rehearsal
    before = resident_bytes()
    replay = new_replay(held)
    begin = time.perf_counter()
    record(replay, steps, 0, held, windows)
    seconds = time.perf_counter() - begin
    grown, stats = resident_bytes() - before, replay.stats()
    return {
        "rss": grown / stats.steps,
        "own": stats.bytes_held / stats.steps,
        "rate": held / seconds,
        "rows": stats.rows,
        "wrong": wrong(replay, rows, steps),
    }


def _add_memory(section: Section, held: int, how: str) -> None:
    found = in_child("benchmarks.market:memory", held=held, how=how)
    judged = held == 50_000  # the panel's rows weigh too much on fewer
    bar = f"at most {KILO:,}" if judged else None
    for measure, label in (("rss", "RAM"), ("own", "RAM reported by stats()")):
        verdict = found[measure] <= KILO if judged else None
        section.add(f"{label}, {how}", found[measure], None, "B/step", None, bar, verdict)
    section.add(f"wrong of {4 * BATCH}, {how}", found["wrong"], None, "steps", None, "0", found["wrong"] == 0)
    section.notes.append(
        f"{how}: {held:,} steps from empty at {found['rate']:,.0f} steps/s "
        "(nothing else running; includes making the windows); "
        f"{found['rows']:,} rows in memory; uncompressed it is {PLAIN / found['rss']:,.0f} x larger"
    )


class _Pass:
    """Four replays and a bare ring, warmed up alike, that take the same steps in turns."""

    def __init__(self, rows: np.ndarray, steps: Walk, pool: np.ndarray, warm: int) -> None:
        self._rows, self._steps, self._pool = rows, steps, pool
        self._ring = np.ones((4, 2, *SHAPE), np.float32)
        self._view, self._refs = views(rows, steps), references(rows, steps)
        self._actions = np.broadcast_to(steps.action, (AGENTS, *steps.action.shape)).copy()
        self.replays = {name: new_replay(len(steps.stop)) for name in ("arrays", "views", "refs", "batched")}
        for name, replay in self.replays.items():
            record(replay, steps, 0, warm, self._view if name in ("arrays", "views") else self._refs)

    def turns(self, start: int) -> dict[str, Callable[[], None]]:
        """Steps [start, start + TURN) for every contestant; the arrays to hand over are made here."""
        make = copies(self._rows, self._steps, self._pool)
        for k in range(start, start + TURN):
            make(k)
        step = partial(self._record, start)
        return {
            "memcpy": partial(self._memcpy, start, self._made),
            "memcpy of views": partial(self._memcpy, start, self._view),
            "arrays": partial(step, "arrays", self._made),
            "views": partial(step, "views", self._view),
            "refs": partial(step, "refs", self._refs),
            "batched": partial(self._batched, start),
        }

    def _made(self, k: int) -> np.ndarray:
        return self._pool[k % TURN]

    def _record(self, start: int, name: str, windows: Windows) -> None:
        record(self.replays[name], self._steps, start, start + TURN, windows)

    def _memcpy(self, start: int, windows: Windows) -> None:
        for k in range(start, start + TURN):
            obs, next_obs = windows(k)
            np.copyto(self._ring[k % 4, 0], obs)
            np.copyto(self._ring[k % 4, 1], next_obs)

    def _batched(self, start: int) -> None:
        import lakepond as lp

        source = self._refs(start)[0].source
        for k in range(start, start + TURN, AGENTS):
            stop = self._steps.stop[k : k + AGENTS]
            self.replays["batched"].record(
                obs=lp.WindowRef(source, stop),
                action=self._actions,
                reward=np.arange(k, k + AGENTS, dtype=np.float32),
                next_obs=lp.WindowRef(source, stop + 1),
                terminated=np.zeros(AGENTS, bool),
                truncated=self._steps.truncated[k : k + AGENTS],
            )


def _add_recording(section: Section, rows: np.ndarray, warm: int, turns: int, passes: int) -> None:
    warm -= warm % AGENTS
    steps, laps = walk(warm + turns * TURN), Laps()
    pool = np.ones((TURN, 2, *SHAPE), np.float32)
    for _ in range(passes):
        taking = _Pass(rows, steps, pool, warm)
        for turn in range(turns):
            laps.take(turn, taking.turns(warm + turn * TURN))
    for name, label, limit, least_ratio, least in (
        ("memcpy", "memcpy of both windows", "memcpy", None, None),
        ("arrays", "record, arrays", "memcpy", 0.7, None),
        ("memcpy of views", "memcpy, windows as views of the history", "memcpy of views", None, None),
        ("views", "record, views of the history", "memcpy of views", None, None),
        ("refs", "record, WindowRef, one step per call", "memcpy", None, None),
        ("batched", "record, WindowRef, 16 agents per call", "memcpy", None, 20_000),
    ):
        best, median = laps.rate(name, TURN)
        ratio = best / laps.rate(limit, TURN).best
        bar, verdict = None, None
        if least_ratio:
            bar, verdict = f"at least {least_ratio} x memcpy", ratio >= least_ratio
        elif least:
            bar, verdict = f"at least {least:,}", best >= least
        section.add(label, best, median, "steps/s", ratio, bar, verdict)
    bad = sum(wrong(replay, rows, steps) for replay in taking.replays.values())
    section.add(f"wrong of {16 * BATCH}, after recording", bad, None, "steps", None, "0", bad == 0)


def _sampling(rows: np.ndarray, held: int, repeats: int) -> dict[str, Rate]:
    """sample(32) into reused arrays, one and two threads, and as many windows copied from the panel."""
    steps, rng = walk(held), np.random.default_rng(0)
    replays: dict[str, Any] = {}
    for how, windows in (("arrays", views(rows, steps)), ("refs", references(rows, steps))):
        many = held if how == "refs" else min(held, 6_000)  # arrays take a while, and sample no differently
        for threads in (1, 2):
            replay = replays[f"{how} {threads}"] = new_replay(many, threads)
            record(replay, steps, 0, many, windows)
    out, view = np.ones((2, BATCH, *SHAPE), np.float32), views(rows, steps)
    batches = dict.fromkeys(replays)

    def copy(items: range, drawn: np.ndarray) -> None:
        for item in items:
            obs, next_obs = view(drawn[item])
            np.copyto(out[0, item], obs)
            np.copyto(out[1, item], next_obs)

    def sample(name: str) -> None:
        batches[name] = replays[name].sample(BATCH, rng=rng, out=batches[name])

    with ThreadPoolExecutor(2) as pool:

        def memcpy(threads: int) -> None:
            drawn = rng.integers(0, held, BATCH)
            parts = [range(BATCH)] if threads == 1 else [range(BATCH // 2), range(BATCH // 2, BATCH)]
            list(map(copy, parts, [drawn]) if threads == 1 else pool.map(copy, parts, [drawn, drawn]))

        turns: dict[str, Callable[[], object]] = {
            "memcpy 1": partial(memcpy, 1),
            "memcpy 2": partial(memcpy, 2),
        }
        turns |= {name: partial(sample, name) for name in replays}
        turns["fresh 1"] = lambda: replays["refs 1"].sample(BATCH, rng=rng)
        return interleaved(turns, BATCH, repeats)


def _add_sampling(section: Section, rows: np.ndarray, held: int, repeats: int) -> None:
    rates = _sampling(rows, held, repeats)
    for name, label, bar in (
        ("memcpy 1", "memcpy of 32 x both windows, 1 thread", None),
        ("arrays 1", "sample(32), arrays recorded, 1 thread", "at least 0.85 x memcpy"),
        ("refs 1", "sample(32), WindowRef recorded, 1 thread", "at least 0.85 x memcpy"),
        ("fresh 1", "sample(32), WindowRef recorded, 1 thread, new arrays", None),
        ("memcpy 2", "memcpy of 32 x both windows, 2 threads", None),
        ("arrays 2", "sample(32), arrays recorded, 2 threads", "faster than 1 thread"),
        ("refs 2", "sample(32), WindowRef recorded, 2 threads", "faster than 1 thread"),
    ):
        best, median = rates[name]
        ratio, verdict = best / rates["memcpy 1"].best, None
        if bar:
            verdict = ratio >= 0.85 if name.endswith("1") else best > rates[name[:-1] + "1"].best
        section.add(label, best, median, "steps/s", ratio, bar, verdict)
