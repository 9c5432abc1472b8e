"""Small lakes to view: boards, frame stacks, a market, vectors in a dict; and empty or damaged ones."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from lakepond.envs.market import History, MarketEnv, Rules, features, synthetic


def boards(path: Path, steps: int = 2400, streams: int = 4, commits: int = 6) -> Path:
    """A ball, a paddle and bricks on (10, 10, 4) boards; the reward of a step is 1 when a brick goes."""
    rng = np.random.default_rng(0)
    spec = lp.Spec(
        obs=lp.Field((10, 10, 4), "bool"),
        action=lp.Field((), "int32"),
        extras={"epsilon": lp.Field((), "float32")},
    )
    games = [_Game(rng) for _ in range(streams)]
    with lp.Replay.open(path, spec, capacity=4096) as replay:
        for n in range(steps // streams):
            before = np.stack([game.board() for game in games])
            action = rng.integers(0, 3, streams, dtype=np.int32)
            answer = [game.step(int(a)) for game, a in zip(games, action, strict=True)]
            replay.record(
                obs=before,
                action=action,
                reward=np.array([reward for reward, _ in answer], np.float32),
                next_obs=np.stack([game.board() for game in games]),
                terminated=np.array([end for _, end in answer]),
                truncated=np.zeros(streams, bool),
                epsilon=np.full(streams, max(0.05, 1 - n / 300), np.float32),
            )
            for game, (_, end) in zip(games, answer, strict=True):
                if end:
                    game.reset()
            if (n + 1) % (steps // streams // commits) == 0:
                replay.commit({"frames": (n + 1) * streams})
    return path


class _Game:
    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.reset()

    def reset(self) -> None:
        self.bricks = np.ones((3, 10), bool)
        self.paddle, self.x, self.y = 4, int(self.rng.integers(10)), 4
        self.dx, self.dy = int(self.rng.choice([-1, 1])), 1

    def board(self) -> np.ndarray:
        out = np.zeros((10, 10, 4), bool)
        out[9, self.paddle, 0] = True
        out[self.y, self.x, 1] = True
        back_x, back_y = np.clip(self.x - self.dx, 0, 9), np.clip(self.y - self.dy, 0, 9)
        out[back_y, back_x, 2] = True
        out[1:4, :, 3] = self.bricks
        return out

    def step(self, action: int) -> tuple[float, bool]:
        self.paddle = int(np.clip(self.paddle + action - 1, 0, 9))
        self.x += self.dx
        self.y += self.dy
        if not 0 <= self.x <= 9:
            self.dx, self.x = -self.dx, int(np.clip(self.x, 0, 9))
        if self.y < 0:
            self.dy, self.y = 1, 0
        reward = 0.0
        if 1 <= self.y <= 3 and self.bricks[self.y - 1, self.x]:
            self.bricks[self.y - 1, self.x] = False
            self.dy, reward = -self.dy, 1.0
        if self.y >= 9:
            self.y = 9
            if abs(self.paddle - self.x) > 1:
                return reward, True
            self.dy = -1
        return reward, False


def frames(path: Path, steps: int = 600, streams: int = 2) -> Path:
    """Stacks of four 84 x 84 frames in which a disc goes round; the disc of stream 1 is the smaller one."""
    spec = lp.Spec(obs=lp.Field((4, 84, 84), "uint8"), action=lp.Field((), "int64"))
    rows, columns = np.mgrid[:84, :84]

    def frame(stream: int, t: int) -> np.ndarray:
        angle = t / 9 + stream
        far = (columns - 42 - 26 * np.cos(angle)) ** 2 + (rows - 42 - 26 * np.sin(angle)) ** 2
        picture = 20 + 14 * (((columns // 12) + (rows // 12)) % 2)
        picture[far < (9 - 3 * stream) ** 2] = 235
        picture[80:83, 2 : 2 + min(80, t % 90)] = 130
        return picture.astype(np.uint8)

    with lp.Replay.open(path, spec, capacity=4096) as replay:
        for t in range(steps // streams):
            part = t % 150  # an episode has 150 steps
            stacks = [
                np.stack([[frame(s, max(0, part + ahead - 3 + k)) for k in range(4)] for s in range(streams)])
                for ahead in (0, 1)
            ]
            replay.record(
                obs=stacks[0],
                next_obs=stacks[1],
                action=np.full(streams, (t // 7) % 6),
                reward=np.full(streams, float(part % 30 == 29), np.float32),
                terminated=np.zeros(streams, bool),
                truncated=np.full(streams, part == 149),
            )
            if t % 100 == 99:
                replay.commit({"portion": t // 100})
    return path


def market(path: Path, days: int = 420, instruments: int = 12, context: int = 120, agents: int = 4) -> Path:
    """Agents that walk over one synthetic market and buy what has fallen most below its mean."""
    table = features(synthetic(days, instruments, seed=3))[60:]
    mean, deviation = np.nanmean(table, axis=0), np.nanstd(table, axis=0) + 1e-6
    source = lp.RowSource(np.nan_to_num((table - mean) / deviation).astype(np.float32))
    spec = lp.Spec(
        obs=lp.Field((context, instruments, 9), "float32"), action=lp.Field((instruments, 2), "float32")
    )
    rng = np.random.default_rng(1)
    with lp.Replay.open(path, spec, capacity=4096) as replay:
        for generation in range(5):
            day = rng.integers(context, len(source) - 62, agents)
            for step in range(60):
                below = -source.rows[day - 1, :, 8]
                coefficient = 0.5 + 0.2 * below + 0.1 * rng.standard_normal(below.shape)
                target = rng.uniform(10, 50, below.shape)
                close = source.rows[:, :, 1]
                replay.record(
                    obs=lp.WindowRef(source, day),
                    next_obs=lp.WindowRef(source, day + 1),
                    action=np.stack([coefficient, target], axis=-1).astype(np.float32),
                    reward=(close[day] - close[day - 1])[np.arange(agents), coefficient.argmax(axis=1)],
                    terminated=np.zeros(agents, bool),
                    truncated=np.full(agents, step == 59),
                )
                day = day + 1
            replay.commit({"generation": generation})
    return path


def traded(path: Path, episodes: int = 3, **rules: Any) -> tuple[Path, list[list[Any]]]:
    """The folder of a run on a market with its own rules; and the trades of each episode, by the market."""
    rules = {"context": 30, "trading_days": 40, "settlement_days": 10, "max_holding": 8, **rules}
    history = History.of(synthetic(400, 8, seed=2), Rules(**rules))
    env = MarketEnv(history, Rules(**rules))
    spec = lp.Spec(
        obs={
            "window": lp.Field((30, 8, 9), "float32", rows=0),
            "position": lp.Field((8, 4), "float32", rows=None),
        },
        action=lp.Field((8, 2), "float32"),
        extras={"day": lp.Field((), "int32"), "next_day": lp.Field((), "int32")},
    )
    rng, made = np.random.default_rng(5), []
    with lp.Replay.open(path / "lake", spec, capacity=1024) as replay:
        for stream in range(episodes):
            obs, info = env.reset(options={"start": 60 + 20 * stream})
            ended = False
            while not ended:
                action = np.stack([rng.random(8) * 0.65, rng.uniform(5, 20, 8)], axis=-1).astype(np.float32)
                then, reward, _, ended, after = env.step(action)
                replay.record(
                    obs=obs,
                    action=action,
                    reward=reward,
                    next_obs=then,
                    terminated=False,
                    truncated=ended,
                    stream=stream,
                    day=info["day"],
                    next_day=after["day"],
                )
                obs, info = then, after
            made.append(env.trades)
        replay.commit()
    answer = {"trainer": "mine", "config": {"rules": rules}}
    (path / "config.json").write_text(json.dumps(answer))
    names = {
        "symbols": list(history.symbols),
        "dates": [str(date) for date in history.dates],
        "close": [[float(f"{price:.6g}") for price in one] for one in history.close.T],
    }
    (path / "market.json").write_text(json.dumps(names))
    return path, made


def vectors(path: Path, steps: int = 500) -> Path:
    """Positions and a goal in a dict, a continuous action of two parts, NaN in one reward."""
    rng = np.random.default_rng(0)
    spec = lp.Spec(
        obs={"body": lp.Field((6,), "float32"), "goal": (lp.Field((2,), "float64"), lp.Field((), "int32"))},
        action=lp.Field((2,), "float32"),
    )
    body = rng.standard_normal(6).astype(np.float32)
    with lp.Replay.open(path, spec, capacity=1024) as replay:
        for t in range(steps):
            then = (body + 0.1 * rng.standard_normal(6)).astype(np.float32)
            replay.record(
                obs={"body": body, "goal": (np.array([1.0, t]), np.int32(t))},
                next_obs={"body": then, "goal": (np.array([1.0, t + 1]), np.int32(t + 1))},
                action=rng.uniform(-1, 1, 2).astype(np.float32),
                reward=float(-np.abs(body[0])),
                terminated=t % 50 == 49,
                truncated=False,
            )
            body = then
        replay.commit({"seed": 0})
    return path


def empty(path: Path) -> Path:
    """A lake that was opened and never committed to."""
    with lp.Replay.open(path, lp.Spec(obs=lp.Field((3,), "float32")), capacity=8):
        pass
    return path


def flip(file: Path, at: int = -20) -> None:
    """Change one byte."""
    data = bytearray(file.read_bytes())
    data[at] ^= 0xFF
    file.write_bytes(data)


def copy(lake: Path, to: Path) -> Path:
    """A copy to break."""
    shutil.copytree(lake, to)
    return to


def writers(path: Path, bucket: str) -> Path:
    """Two named writers, each with two commits of episodes of its own; on disk, and pushed to a bucket."""
    spec = lp.Spec(obs=lp.Field((300,), "uint8"))
    for k, name in enumerate(("left", "right")):
        with lp.Replay.open(path, spec, capacity=100, writer=name) as replay:
            for t in range(10 * (k + 1)):
                obs = np.full(300, 100 * k + t, np.uint8)
                end = {"terminated": t % 5 == 4, "truncated": False}
                replay.record(obs=obs, action=t, reward=100.0 * k + t, next_obs=obs + 1, **end)
                if t % 10 == 4:
                    replay.commit()
    lp.push(path, bucket)
    return path
