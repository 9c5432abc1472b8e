"""A lake of real Atari frames: what it takes on disk, how fast it is written, filled from and sampled.

The lake is played once and kept under .cache/bench: 8 emulators on both cores, random play, `STEPS` steps
(LAKEPOND_ATARI_STEPS, a million by default), a commit every 20,000. Play that was stopped goes on.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.frames import CACHE, ENVS, play
from benchmarks.measure import in_child
from benchmarks.report import Section

GAMES = ("breakout", "gravitar")
STEPS = int(os.environ.get("LAKEPOND_ATARI_STEPS", 1_000_000))
FRAMES = FILLED = 400_000
EACH = 20_000  # steps between two commits
CALLS = 250  # of eight steps, played at a time
LONGEST = 27_000  # steps of an episode: half an hour of the game
BARS = {"100 %": 0.8, "10 %": 0.5, "1 %": 0.3}
FRAME_BYTES = 84 * 84


def run(quick: bool) -> list[Section]:
    """One table a game."""
    return [_game(game, 20_000 if quick else STEPS, quick) for game in (GAMES[:1] if quick else GAMES)]


def _game(game: str, steps: int, quick: bool) -> Section:
    section = Section(f"lake: {game}", ["measure", "value", "unit", "bar", "verdict"])
    path = str(lake_of(game, steps))
    made = in_child("benchmarks.lake_atari:size", path=path)
    million = made["bytes"] / made["steps"]
    section.add("a million transitions on disk", million, "MB", "under 150", million < 150)
    rates = in_child("benchmarks.lake_atari:rates", game=game, calls=384 if quick else 2_000)
    ratio = rates["write"] / rates["played"]
    section.add("8 emulators, both cores", rates["played"], "steps/s", None, None)
    section.add("record and commit", rates["write"], "steps/s", None, None)
    section.add("relative to 8 emulators", ratio, "x", "at least 5", ratio >= 5)
    sizes = {"path": path, "turns": 3 if quick else 9}
    for share, found in in_child("benchmarks.lake_atari:frames", **sizes, most=FRAMES).items():
        bar, ratio = BARS[share], found["raw"] / found["read"]
        section.add(f"{share} of {found['frames']:,.0f} frames, read", found["rate"], "MB/s", None, None)
        section.add("relative to decoding the blocks", ratio, "x", f"at least {bar}", ratio >= bar)
    for share, found in in_child("benchmarks.lake_atari:fills", **sizes, steps=min(steps, FILLED)).items():
        section.add(
            f"fill_from, {share} of the transitions", found["steps"] / found["fill"], "steps/s", None, None
        )
        for where, label in (("mapped", "as much memory, mapped before"), ("fresh", "fresh memory")):
            ratio = found[where] / found["fill"]
            section.add(f"the same over decoding its blocks to {label}", ratio, "x", None, None)
    sampled = in_child("benchmarks.lake_atari:samples", path=path, turns=20 if quick else 60)
    section.add("lake.sample(256), median", sampled["ms"], "ms", None, None)
    section.add("lake.sample, steps", sampled["rate"], "steps/s", None, None)
    theirs = reverb(game, 4_000 if quick else 20_000)
    if theirs is None:
        section.notes.append("Reverb: no .venv-reverb with dm-reverb[tensorflow]; not measured")
    else:
        ahead = sampled["rate"] / theirs
        section.add("Reverb 0.14, the same transitions", theirs, "steps/s", None, None)
        section.add("lake.sample relative to Reverb", ahead, "x", "ahead", ahead > 1)
    section.notes += [
        f"{made['steps']:,} steps of (4, 84, 84) uint8, random play, {made['commits']} commits, "
        f"{made['files']} files, {made['bytes'] / 1e6:,.1f} MB",
        "frames: a uniform fraction of all, sorted, read into an array that is reused; decoding: zstandard "
        "decodes the blocks that are needed, on two threads, eight per call: 100 % "
        "into that array, less into two megabytes",
        f"fill_from: of {min(steps, FILLED):,} steps into an empty replay: memory fresh from the system",
        "sample: data compressed in memory and on disk; batches of complete transitions in new arrays",
    ]
    return section


# --- the lake ----------------------------------------------------------------------------------------


def lake_of(game: str, steps: int) -> Path:
    """The cached lake of a game, played on until it has that many steps."""
    import lakepond as lp

    path = CACHE / f"{game}.lake"
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8"))
    with lp.Replay.open(path, spec, capacity=EACH, merge_after=None) as replay:
        if replay.stats().recorded >= steps:
            return path
        for part in _played(game, replay.stats().recorded):
            for k in range(CALLS):
                replay.record(**{name: values[k] for name, values in part.items()})
            if replay.stats().recorded % EACH < CALLS * ENVS:
                replay.commit()
            if replay.stats().recorded >= steps:
                break
    return path


def _played(game: str, seed: int) -> Iterator[dict[str, np.ndarray]]:
    """Endless play, `CALLS` calls at a time, by two processes with four emulators each."""
    context = multiprocessing.get_context("spawn")
    pipes = [context.Pipe(duplex=False) for _ in range(2)]
    players = [
        context.Process(target=_player, args=(game, seed + 4 * half, pipes[half][1]), daemon=True)
        for half in (0, 1)
    ]
    for player in players:
        player.start()
    try:
        while True:
            halves = [receiver.recv() for receiver, _ in pipes]
            yield {name: np.concatenate([half[name] for half in halves], axis=1) for name in halves[0]}
    finally:
        for player in players:
            player.terminate()
            player.join()


def _player(game: str, seed: int, sender: Any) -> None:
    """Four emulators that never stop; blocks while nobody takes what was played."""
    emulators = [_endless(game, seed + env) for env in range(ENVS // 2)]
    while True:
        sender.send(_some(emulators))


def _some(emulators: list[Iterator[tuple[Any, ...]]]) -> dict[str, np.ndarray]:
    """The next `CALLS` calls, (calls, emulators, ...)."""
    calls = [[next(emulator) for emulator in emulators] for _ in range(CALLS)]
    names = ("obs", "next_obs", "action", "terminated", "truncated")
    found = {name: np.array([[step[i] for step in call] for call in calls]) for i, name in enumerate(names)}
    return found | {"reward": np.zeros(found["action"].shape, np.float32)}


def _endless(game: str, seed: int) -> Iterator[tuple[Any, ...]]:
    """Steps of one emulator, played as in `frames.py`, an episode to its own end."""
    from ale_py import ALEInterface, LoggerMode, roms
    from PIL import Image

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.25)
    ale.loadROM(Path(roms.get_rom_path(game)))
    actions, rng = ale.getMinimalActionSet(), np.random.default_rng(seed)

    def small(screen: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(screen).resize((84, 84), Image.Resampling.BOX))

    while True:
        ale.reset_game()
        obs, steps, over = np.stack([small(ale.getScreenGrayscale())] * 4), 0, False
        while not over:
            action = int(rng.integers(len(actions)))
            before = screen = ale.getScreenGrayscale()
            for _ in range(4):
                before = screen
                ale.act(actions[action])
                screen = ale.getScreenGrayscale()
            next_obs = np.concatenate([obs[1:], small(np.maximum(before, screen))[None]])
            steps += 1
            terminated, truncated = ale.game_over(), steps == LONGEST
            over = terminated or truncated
            yield obs, next_obs, action, terminated, truncated and not terminated
            obs = next_obs


def size(path: str) -> dict[str, Any]:
    """What the lake takes, commits and all."""
    import lakepond as lp

    with lp.Lake.open(path) as lake:
        files = [file.stat().st_size for file in Path(path).rglob("*") if file.is_file()]
        return {"steps": len(lake), "bytes": sum(files), "files": len(files), "commits": len(lake.commits())}


# --- writing -----------------------------------------------------------------------------------------


def rates(game: str, calls: int) -> dict[str, float]:
    """Steps a second: eight emulators on both cores, and what a lake can take of the same steps."""
    import lakepond as lp

    parts = _played(game, 0)
    for _ in range(2):  # loaded, and one part ahead in the pipes
        next(parts)
    begin = time.perf_counter()
    for _ in range(2):
        next(parts)
    played = 2 * CALLS * ENVS / (time.perf_counter() - begin)
    parts.close()
    recording, spent = play(game, calls), 0.0
    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8"))
    folder = tempfile.TemporaryDirectory(prefix="lakepond-bench-", dir=".")
    with folder as name, lp.Replay.open(Path(name) / "lake", spec, capacity=8_192) as replay:
        for start in range(0, calls, 64):
            part = recording.steps(start, min(start + 64, calls), last_axis=False)
            begin = time.perf_counter()
            for k in range(len(part)):
                replay.record(
                    obs=part.obs[k],
                    action=part.action[k],
                    reward=np.zeros(ENVS, np.float32),
                    next_obs=part.next_obs[k],
                    terminated=part.terminated[k],
                    truncated=part.truncated[k],
                )
            if start % 512 == 448:
                replay.commit(wait=False)
            spent += time.perf_counter() - begin
        begin = time.perf_counter()
        replay.commit()
        spent += time.perf_counter() - begin
    return {"played": played, "write": calls * ENVS / spent}


# --- reading -----------------------------------------------------------------------------------------


def frames(path: str, most: int, turns: int) -> dict[str, dict[str, float]]:
    """Seconds to read shares of the first `most` frames, and to decode their blocks and nothing else."""
    import lakepond as lp

    found: dict[str, dict[str, float]] = {}
    with lp.Lake.open(path) as lake:
        every = np.arange(lake.reader.rows_count(0))[:most]
        out = np.ones(_blocks(lake, every)[1], np.uint8)
        for share in BARS:
            count = len(every) * int(share.split()[0]) // 100
            seconds: dict[str, list[float]] = {"read": [], "raw": []}
            for turn in range(turns + 1):  # the first is a rehearsal
                numbers = np.sort(_rng(turn).choice(every, count, replace=False, shuffle=False))
                jobs, touched = _blocks(lake, numbers)
                to = out[:touched] if count == len(every) else None
                laps = {
                    "read": lambda n=numbers: lake.reader.rows(0, n, FRAME_BYTES, out),
                    "raw": lambda j=jobs, t=to: _decode(j, t),
                }
                _take(laps, seconds, turn)
            middle = {name: median(laps) for name, laps in seconds.items()}
            rate = count * FRAME_BYTES / middle["read"] / 1e6
            found[share] = middle | {"frames": len(every), "rate": rate}
    return found


def fills(path: str, steps: int, turns: int) -> dict[str, dict[str, float]]:
    """Seconds to fill a replay, and to decode the same blocks and nothing else; medians of turns."""
    import lakepond as lp
    from lakepond.flow import lake_to_pond

    found: dict[str, dict[str, float]] = {}
    with lp.Lake.open(path, commit=_commit_with(path, steps)) as lake:
        for share in BARS:
            count = len(lake) * int(share.split()[0]) // 100
            seconds: dict[str, list[float]] = {"fill": [], "fresh": [], "mapped": []}
            for turn in range(turns + 1):
                jobs, touched = _blocks(lake, _rows_of(lake, lake_to_pond.draw(lake, count, _rng(turn))))
                replay, rng = lp.Replay(lake.spec, count), _rng(turn)
                memory = mmap.mmap(-1, touched, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
                out = np.frombuffer(memory, np.uint8)
                laps = {
                    "fill": lambda r=replay, n=count, g=rng: r.fill_from(lake, n, rng=g),
                    "fresh": lambda j=jobs, o=out: _decode(j, o),
                    "mapped": lambda j=jobs, o=out: _decode(j, o),
                }
                _take(laps, seconds, turn)
                replay.close()
                del replay, laps, out
                memory.close()
            found[share] = {name: median(laps) for name, laps in seconds.items()} | {"steps": count}
    return found


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _take(laps: dict[str, Callable[[], object]], seconds: dict[str, list[float]], turn: int) -> None:
    for name, work in laps.items():
        begin = time.perf_counter()
        work()
        if turn:
            seconds[name].append(time.perf_counter() - begin)


def _commit_with(path: str, steps: int) -> int:
    """The first commit with that many steps."""
    from lakepond.lake.format import commits

    folder = Path(path) / "commits"
    return next(n for n in commits.numbers(folder) if commits.read(folder, n).recorded >= steps)


def _rows_of(lake: Any, ids: np.ndarray) -> np.ndarray:
    """The rows that these steps name, sorted."""
    from lakepond.lake.format.tracks import covered

    named = []
    for part in lake.parts(ids):
        leaf = part.leaves[0]
        named.append(np.unique(leaf.track[covered(leaf.starts, leaf.layout.length)]))
    return np.unique(np.concatenate(named))


def _blocks(lake: Any, numbers: np.ndarray) -> tuple[list[tuple[Any, list[int]]], int]:
    """The blocks that hold these rows, eight to a call, and their plain bytes."""
    from lakepond.lake.format.shard import Shard

    jobs, total = [], 0
    for _, file in lake.reader.row_files(0):
        mine = numbers[(numbers >= file.first) & (numbers < file.first + file.shard.rows)] - file.first
        blocks = np.unique(mine // file.shard.block_rows).tolist()
        shard = Shard(lake.reader.heads[0].segments.local(file.name), file.shard, held=True)
        jobs += [(shard, blocks[at : at + 8]) for at in range(0, len(blocks), 8)]
        total += len(blocks) * file.shard.block_rows * file.shard.row_bytes
    return jobs, total


def _decode(jobs: list[tuple[Any, list[int]]], out: np.ndarray | None) -> None:
    from lakepond.lake.format.shard import Own

    sizes = [len(blocks) * shard.info.block_rows * shard.info.row_bytes for shard, blocks in jobs]
    starts = np.cumsum([0, *sizes])
    waiting = deque(range(len(jobs)))
    lock = threading.Lock()

    def work() -> None:
        own = Own()
        while True:
            with lock:
                if not waiting:
                    return
                k = waiting.popleft()
            shard, blocks = jobs[k]
            room = own.room(sizes[k]) if out is None else out[starts[k] : starts[k + 1]]
            shard._blocks.decode(blocks, room, own.zstd)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(work)
        work()
        other.result()


def samples(path: str, turns: int) -> dict[str, float]:
    """`lake.sample(256)` of the newest commit: milliseconds, and steps a second."""
    import lakepond as lp

    rng, laps = np.random.default_rng(0), []
    with lp.Lake.open(path) as lake:
        for _ in range(5):
            lake.sample(256, rng=rng)
        for _ in range(turns):
            begin = time.perf_counter()
            batch = lake.sample(256, rng=rng)
            laps.append(time.perf_counter() - begin)
            del batch
    return {"ms": 1e3 * median(laps), "rate": 256 / median(laps)}


def reverb(game: str, steps: int) -> float | None:
    """Steps per second that Reverb samples, the faster way, in a venv of its own; None if there is none."""
    import json
    import subprocess

    from benchmarks.measure import ROOT

    python = ROOT / ".venv-reverb" / "bin" / "python"
    if not python.exists():
        return None
    play(game, steps * 3 // 2 // ENVS)
    command = [str(python), "-m", "benchmarks.reverb_peer", game, str(steps)]
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, cwd=ROOT, env=quiet, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Reverb failed:\n{done.stderr[-3000:]}")
    return float(json.loads(done.stdout.splitlines()[-1])["sample/s"])
