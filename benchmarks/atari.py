"""Real frames from eight Atari emulators, beside the peers; what is handed over is checked bit for bit."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from benchmarks.frames import ENVS, Play, Steps, invented, play
from benchmarks.measure import KEEP_HEAP, Laps, in_child, interleaved, resident_bytes
from benchmarks.peers import BATCH, CONTESTANTS, PEERS, Lakepond
from benchmarks.report import Section

GAMES = ("breakout", "gravitar")
FRAME = 84 * 84
DRAWS = 10  # batches a turn
BAR = 1.05 * FRAME + 200
REUSED = "lakepond, arrays reused"
MEMCPY = "memcpy of the same bytes, 1 thread"


def run(quick: bool) -> list[Section]:
    """Two sections a game: all contestants, and the bars."""
    sizes = {"capacity": 2_048, "calls": 384, "passes": 1, "repeats": 3}
    if not quick:
        sizes = {"capacity": 20_000, "calls": 3_750, "passes": 3, "repeats": 15}
    games = GAMES[:1] if quick else GAMES
    return [section for game in games for section in _game(game, **sizes)]


def _game(game: str, capacity: int, calls: int, passes: int, repeats: int) -> list[Section]:
    play(game, calls)  # before the clocks run
    sizes = {"game": game, "capacity": capacity, "calls": calls}
    timed = in_child("benchmarks.atari:timing", **sizes, passes=passes, repeats=repeats)
    kept = in_child("benchmarks.atari:timing", env=KEEP_HEAP, **sizes, passes=1, repeats=repeats)
    timed["kept"] = kept["sample"]
    weighed = list(CONTESTANTS)[: 2 if calls < 1_000 else None]  # each takes seconds to start
    memory = {name: in_child("benchmarks.atari:memory", **sizes, name=name) for name in weighed}
    return [_table(game, timed, memory, capacity, calls), _bars(game, timed, memory)]


def _table(game: str, timed: dict[str, Any], memory: dict[str, Any], capacity: int, calls: int) -> Section:
    columns = [
        "contestant",
        "RAM B/step",
        "reported by stats()",
        "record/s, first fill",
        "record/s, ring full",
        "sample/s",
    ]
    columns += ["sample/s, heap kept", "wrong obs", "wrong next_obs", "of these at episode ends"]
    section = Section(f"atari: {game}", columns)
    for name in [*CONTESTANTS, REUSED, MEMCPY]:
        held = memory.get(name, {"rss": None, "own": None})
        rates = [timed[measure].get(name) for measure in ("fill", "full", "sample", "kept")]
        bad, bad_next, at_ends, of = timed["wrong"].get(name, [None] * 4)
        counts = [f"{bad}/{of}", f"{bad_next}/{of}", at_ends] if of else [None] * 3
        section.add(name, held["rss"], held["own"], *rates, *counts)
    section.notes += [
        f"{capacity:,} steps held; stacks of 4 x 84 x 84, {ENVS} environments interleaved, random play; "
        f"{timed['ends']} episode ends in {calls * ENVS:,} steps",
        "record: the best time of each chunk over all passes, summed; "
        "sample: the best round of ten batches of 256",
        "heap kept: glibc is configured to keep freed memory, which avoids page faults in new arrays",
        "cpprb and TorchRL slices get complete episodes, which the caller keeps as arrays until they end",
    ]
    return section


def _bars(game: str, timed: dict[str, Any], memory: dict[str, Any]) -> Section:
    section = Section(
        f"atari: {game}, bars", ["measure", "lakepond", "bar", "ratio", "compared with", "verdict"]
    )
    held = memory[Lakepond.name]["rss"]
    section.add("RAM, B/step", held, BAR, held / BAR, "at most 1.05 x 7,056 + 200", held <= BAR)
    timed["life"] = {name: 2 / (1 / timed["fill"][name] + 1 / timed["full"][name]) for name in timed["fill"]}
    named = [
        peer.name for peer in PEERS if peer.name != "cpprb next_of"
    ]  # shares next_obs only, 4 x the memory
    for measure, label, ours, peers, is_bar in (
        ("life", "record/s, ring filled, then overwritten once", Lakepond.name, named, True),
        ("fill", "record/s, first fill alone", Lakepond.name, named, False),
        ("full", "record/s, ring full alone", Lakepond.name, named, True),
        ("sample", "sample(256)/s, arrays reused", REUSED, named, True),
        ("sample", "sample(256)/s, new arrays", Lakepond.name, named, False),
        ("kept", "sample(256)/s, arrays reused, heap kept", REUSED, named, False),
        ("sample", "sample(256)/s, arrays reused", REUSED, ["cpprb next_of"], False),
    ):
        rates = timed[measure]
        best = max(peers, key=rates.__getitem__)
        verdict = rates[ours] > rates[best] if is_bar else None
        section.add(label, rates[ours], rates[best], rates[ours] / rates[best], best, verdict)
    bad, bad_next, _, _ = timed["wrong"][Lakepond.name]
    section.add("transitions wrong", bad + bad_next, 0, None, "none", bad + bad_next == 0)
    return section


def timing(game: str, capacity: int, calls: int, passes: int, repeats: int) -> dict[str, Any]:
    """Rates and wrong answers of all contestants, taking turns in one process."""
    recording = invented(calls) if game == "invented" else play(game, calls)
    names = [peer.name for peer in PEERS] if game == "invented" else list(CONTESTANTS)
    turn = 125 if calls >= 1_000 else 64  # calls of eight steps
    filling = capacity // ENVS // turn
    fill, full = Laps(), Laps()
    buffers: dict[str, Any] = {}
    for _ in range(passes):
        buffers = {name: CONTESTANTS[name](capacity) for name in names}
        for chunk in range(calls // turn):
            steps = recording.steps(chunk * turn, (chunk + 1) * turn)
            last = chunk + 1 in (filling, calls // turn)
            turns = {name: partial(record, buffer, steps, last) for name, buffer in buffers.items()}
            (fill if chunk < filling else full).take(chunk, turns)
    draws = {name: buffer.sample for name, buffer in buffers.items()}
    if Lakepond.name in buffers:
        draws[REUSED] = buffers[Lakepond.name].sample_reused
    draws[MEMCPY] = _memcpy(recording)
    turns = {name: partial(draw_many, draw) for name, draw in draws.items()}
    sampled = interleaved(turns, DRAWS * BATCH, repeats)
    return {
        "fill": {name: fill.rate(name, turn * ENVS).best for name in names},
        "full": {name: full.rate(name, turn * ENVS).best for name in names},
        "sample": {name: sampled[name].best for name in draws},
        "wrong": {name: wrong(buffers[name], recording) for name in names},
        "ends": int((recording.terminated | recording.truncated).sum()),
    }


def record(buffer: Any, steps: Steps, last: bool) -> None:
    """All calls of this chunk; after the last chunk, what an adapter kept back is owed."""
    for call in range(len(steps)):
        buffer.record(steps, call)
    if last and hasattr(buffer, "finish"):
        buffer.finish()


def draw_many(draw: Callable[[], object]) -> None:
    """One batch after the other, each let go before the next, as a learner would."""
    for _ in range(DRAWS):
        draw()


def memory(game: str, capacity: int, calls: int, name: str) -> dict[str, float | None]:
    """Bytes a step after the first fill, in this process alone."""
    recording = play(game, calls)
    calls = capacity // ENVS
    rehearsal = CONTESTANTS[name](256)
    for start in (0, 32):
        steps = recording.steps(start, start + 32)
        record(rehearsal, steps, last=True)
    del rehearsal, steps
    before = resident_bytes()
    buffer = CONTESTANTS[name](capacity)
    for start in range(0, calls, 50):
        steps = recording.steps(start, min(start + 50, calls))
        record(buffer, steps, last=start + 50 >= calls)
    held = len(buffer)
    own = getattr(buffer, "bytes_held", lambda: None)()
    del steps
    return {"rss": (resident_bytes() - before) / held, "own": own and own / held}


def wrong(buffer: Any, recording: Play, batches: int = 16) -> list[int]:
    """Sampled transitions with wrong obs, with wrong next_obs, those of them at episode ends; all checked."""
    counts = np.zeros(3, int)
    for _ in range(batches):
        reward, obs, next_obs = buffer.unpack(buffer.sample())
        step = np.asarray(reward).reshape(-1).astype(np.int64)
        bad = (np.asarray(obs) != recording.stacks(step)).any(axis=(1, 2, 3))
        bad_next = (np.asarray(next_obs) != recording.stacks(step, ahead=1)).any(axis=(1, 2, 3))
        ends = (recording.terminated | recording.truncated).reshape(-1)[step]
        counts += [bad.sum(), bad_next.sum(), (bad_next & ends).sum()]
    return [*map(int, counts), batches * BATCH]


def _memcpy(recording: Play) -> Callable[[], None]:
    """As many bytes as 256 obs and next_obs, in one piece, from anywhere, into the same array each time."""
    rng = np.random.default_rng(0)
    out = np.ones((2 * BATCH * 4, 84, 84), np.uint8)
    frames = recording.frames

    def draw() -> None:
        start = int(rng.integers(0, len(frames) - len(out)))
        np.copyto(out, frames[start : start + len(out)])

    return draw


def check() -> Section:
    """Every peer's adapter over a few invented episodes, without lakepond."""
    begin = time.perf_counter()
    found = timing("invented", capacity=1_024, calls=320, passes=1, repeats=1)
    columns = [
        "contestant",
        "record/s",
        "sample/s",
        "wrong obs",
        "wrong next_obs",
        "of these at episode ends",
    ]
    section = Section("check of the adapters (no timing worth quoting)", columns)
    for name, (bad, bad_next, at_ends, of) in found["wrong"].items():
        rates = found["fill"][name], found["sample"][name]
        section.add(name, *rates, f"{bad}/{of}", f"{bad_next}/{of}", at_ends)
    section.notes.append(f"took {time.perf_counter() - begin:.1f} s")
    return section
