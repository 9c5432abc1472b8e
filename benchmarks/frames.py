"""Real Atari frames: played once with a fixed seed, kept under .cache/bench, never committed.

Eight emulators. An agent step is four emulator frames, the brighter of the last two, in grey, 84 x 84.
An episode ends when the game is over (terminated) or after LIMIT steps (truncated). A stack is the last four
frames of the episode, its first frame repeated where there are not four yet:

    frame of an episode   0     1     2     3     4
    obs of step 0         0000                          next_obs of step t is obs of step t + 1, and the true
    obs of step 1         0001                          last one at the end of an episode, before the reset
    obs of step 4                           1234
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import ROOT

ENVS, LIMIT, STACK = 8, 400, 4
CACHE = ROOT / ".cache" / "bench"


class Steps(NamedTuple):
    """A few calls of eight steps each, as an environment would hand them over; step k is (k // 8, k % 8)."""

    step: np.ndarray  # (calls, 8) int64
    obs: np.ndarray  # (calls, 8, 4, 84, 84) uint8
    next_obs: np.ndarray
    obs_last: np.ndarray | None  # (calls, 8, 84, 84, 4): the same with the stack on the last axis
    next_obs_last: np.ndarray | None
    action: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def __len__(self) -> int:
        """How many calls."""
        return len(self.step)


class Play(NamedTuple):
    """A whole recording; frames of one environment lie one after the other."""

    frames: np.ndarray  # (n, 84, 84) uint8
    newest: np.ndarray  # (calls, 8): the newest frame of obs
    first: np.ndarray  # (calls, 8): the first frame of the episode
    action: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray

    def stacks(self, step: np.ndarray, ahead: int = 0) -> np.ndarray:
        """`obs` of these steps (ahead=0) or `next_obs` (ahead=1), freshly made."""
        newest = self.newest.reshape(-1)[step][..., None] + ahead + np.arange(1 - STACK, 1)
        return self.frames[np.maximum(newest, self.first.reshape(-1)[step][..., None])]

    def steps(self, start: int, stop: int, last_axis: bool = True) -> Steps:
        """Calls [start, stop)."""
        step = np.arange(start * ENVS, stop * ENVS).reshape(-1, ENVS)
        obs, next_obs = self.stacks(step), self.stacks(step, ahead=1)
        last = [np.ascontiguousarray(np.moveaxis(x, 2, -1)) if last_axis else None for x in (obs, next_obs)]
        part = slice(start, stop)
        return Steps(
            step, obs, next_obs, *last, self.action[part], self.terminated[part], self.truncated[part]
        )


def step_of(frames: np.ndarray, t: int, *, ends: bool = False) -> dict[str, Any]:
    """Step t of an episode that shows these frames one after another, as arguments of `Replay.record`."""
    return {
        "obs": frames[t : t + STACK],
        "action": 0,
        "reward": float(t),
        "next_obs": frames[t + 1 : t + STACK + 1],
        "terminated": False,
        "truncated": ends,
    }


def play(game: str, calls: int, seed: int = 0) -> Play:
    """The cached recording of this game, made now if it is not there yet."""
    path = CACHE / f"{game}-{calls}x{ENVS}-seed{seed}.npz"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        (CACHE / ".gitignore").write_text("*\n")
        recording = _emulate(game, calls, seed)
        aside = path.with_suffix(".tmp.npz")
        np.savez_compressed(aside, **recording._asdict())
        aside.rename(path)
    with np.load(path) as held:
        return Play(**{name: held[name] for name in Play._fields})


def invented(calls: int, seed: int = 0) -> Play:
    """Noise with episode ends, for a check that needs no emulator."""
    rng = np.random.default_rng(seed)
    ends = rng.random((calls, ENVS)) < 0.03
    truncated = ends & (rng.random((calls, ENVS)) < 0.5)
    newest, first = np.empty((2, calls, ENVS), np.int64)
    frame = 0
    for env in range(ENVS):
        begin = frame
        for call in range(calls):
            newest[call, env], first[call, env] = frame, begin
            frame += 1
            if ends[call, env]:
                frame += 1
                begin = frame
        frame += 1
    frames = rng.integers(0, 256, (frame, 84, 84), dtype=np.uint8)
    action = rng.integers(0, 4, (calls, ENVS))
    return Play(frames, newest, first, action, ends & ~truncated, truncated)


def _emulate(game: str, calls: int, seed: int) -> Play:
    columns = [_emulate_one(game, calls, seed * ENVS + env) for env in range(ENVS)]
    offsets = np.cumsum([0] + [len(column.frames) for column in columns])
    for column, offset in zip(columns, offsets[:-1], strict=True):
        column.newest[:] += offset
        column.first[:] += offset
    frames = np.concatenate([column.frames for column in columns])
    return Play(frames, *[np.stack(parts, axis=1) for parts in list(zip(*columns, strict=True))[1:]])


def _emulate_one(game: str, calls: int, seed: int) -> Play:
    from ale_py import ALEInterface, LoggerMode, roms
    from PIL import Image

    ALEInterface.setLoggerMode(LoggerMode.Error)
    ale = ALEInterface()
    ale.setInt("random_seed", seed)
    ale.setFloat("repeat_action_probability", 0.25)
    ale.loadROM(Path(roms.get_rom_path(game)))
    actions = ale.getMinimalActionSet()
    rng = np.random.default_rng(seed)

    def small(screen: np.ndarray) -> np.ndarray:
        return np.asarray(Image.fromarray(screen).resize((84, 84), Image.Resampling.BOX))

    frames = [small(ale.getScreenGrayscale())]
    newest, first, action = np.empty((3, calls), np.int64)
    terminated, truncated = np.zeros((2, calls), bool)
    begin = 0
    for call in range(calls):
        newest[call], first[call] = len(frames) - 1, begin
        action[call] = rng.integers(len(actions))
        before = screen = ale.getScreenGrayscale()
        for _ in range(4):
            before = screen
            ale.act(actions[action[call]])
            screen = ale.getScreenGrayscale()
        frames.append(small(np.maximum(before, screen)))
        terminated[call] = ale.game_over()
        truncated[call] = not terminated[call] and len(frames) - 1 - begin == LIMIT
        if terminated[call] or truncated[call]:
            ale.reset_game()
            frames.append(small(ale.getScreenGrayscale()))
            begin = len(frames) - 1
    return Play(np.stack(frames), newest, first, action, terminated, truncated)
