"""Learning curves of PQN on MinAtar beside those of its authors' script, at the same frames.

    git clone https://github.com/mttga/purejaxql somewhere
    python -m benchmarks.pqn_curves somewhere --who ours theirs --seeds 0 1
    python -m benchmarks.pqn_curves --report

The published settings, network and schedules of ten million frames, without sticky actions, both stopped at
`--frames`; the score is the mean of the training episodes that ended since the line before. Their convolution
is computed as slices and a matmul, the same numbers quicker on a CPU. One file a run, written at its end; a
run whose file is there is not done again, so start the command once a core with one of `--who` each.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import numpy as np
from flax import linen as nn

from benchmarks.pqn import EpisodeLog, their_config, their_script
from lakepond.agents import networks
from lakepond.agents.epsilon import Epsilon
from lakepond.agents.pqn import PQN, PQNSettings
from lakepond.envs.minatar import MinAtar
from lakepond.trainers import single

GAMES = ("Breakout", "Asterix", "Freeway", "SpaceInvaders")
SCHEDULE = 10_000_000
"""frames over which the learning rate falls; epsilon over the first tenth"""
LINE = 25
"""updates between two lines of a curve: 102,400 frames"""


class Point(NamedTuple):
    """Of a curve."""

    frames: int
    score: float
    episodes: int


class Conv(nn.Module):
    """Flax's, without padding and strides, by slices and a matmul; its parameters have the same names."""

    features: int
    kernel_size: tuple[int, int]
    strides: int
    padding: str
    kernel_init: Callable[..., Any]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """(batch, height, width, channels)."""
        assert (self.strides, self.padding) == (1, "VALID")
        shape = (*self.kernel_size, x.shape[-1], self.features)
        kernel = self.param("kernel", self.kernel_init, shape)
        bias = self.param("bias", nn.initializers.zeros, (self.features,))
        params = {"weight": kernel.reshape(-1, self.features), "bias": bias}
        return networks.conv(params, x, self.kernel_size[0], 1, "slices")


class ScoreLog(EpisodeLog):
    """Also returns the scores of the episodes that end, which the script averages like all else."""

    def step(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        """Five values, as of old."""
        obs, state, reward, done, info = super().step(key, state, action, params)
        return obs, state, reward, done, {**info, "ended": done * info["returned_episode_returns"]}


def theirs(checkout: Path, game: str, seed: int, frames: int) -> Iterator[Point]:
    """A run of their script."""
    script = their_script(checkout, ScoreLog)
    script.nn = SimpleNamespace(**{**vars(nn), "Conv": Conv})
    config = {**their_config(game, frames), "TOTAL_TIMESTEPS_DECAY": SCHEDULE}
    seen = jax.jit(script.make_train(config))(jax.random.PRNGKey(seed))["metrics"]
    ended, over = (np.asarray(seen[name]) for name in ("ended", "returned_episode"))  # means of 4,096 steps
    for start in range(0, len(over), LINE):
        part = slice(start, min(start + LINE, len(over)))
        episodes = over[part].sum() * 4096
        yield Point(part.stop * 4096, float(4096 * ended[part].sum() / max(episodes, 1)), round(episodes))


def ours(game: str, seed: int, frames: int) -> Iterator[Point]:
    """A run of ours."""
    env = MinAtar(game, sticky=0.0)
    network = networks.make("cnn", env.obs, env.actions)
    pqn = PQN(env, network, Epsilon(env_steps=SCHEDULE // 10), PQNSettings(), SCHEDULE // 4096)
    state = pqn.init(jax.random.PRNGKey(seed))
    for start in range(0, frames // 4096, LINE):
        count = min(LINE, frames // 4096 - start)
        state, sums, _ = single.train(pqn, state, count)
        episodes = int(sums.episodes)
        yield Point((start + count) * 4096, float(sums.score) / max(episodes, 1), episodes)


def report(folder: Path) -> str:
    """Scores over the half million frames up to some points, one row a game and frames, by run."""
    curves = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    names = sorted({name.split("-", 1)[1] for name in curves})
    lines = ["| game | frames | " + " | ".join(names) + " |", "|---|---:|" + "---:|" * len(names)]
    for game in GAMES:
        for until in range(1_000_000, SCHEDULE + 1, 1_000_000):
            found = [_score(curves.get(f"{game}-{name}"), until) for name in names]
            if any(found):
                lines.append(f"| {game} | {until // 1_000_000}M | " + " | ".join(found) + " |")
    return "\n".join(lines)


def _score(curve: Any, until: int) -> str:
    """The mean score of the episodes that ended in the half million frames before."""
    if curve is None or curve[-1][0] < until - 100_000:
        return ""
    part = [Point(*point) for point in curve if until - 500_000 < point[0] <= until]
    episodes = sum(point.episodes for point in part)
    return f"{sum(point.score * point.episodes for point in part) / episodes:.1f}" if episodes else "–"


def main() -> None:
    """Train what is not there yet, then print the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkout", type=Path, nargs="?", help="of purejaxql; only for theirs")
    parser.add_argument("--who", nargs="+", choices=("ours", "theirs"), default=["ours"])
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--frames", type=int, default=5_000_000)
    parser.add_argument("--folder", type=Path, default=Path("runs/pqn"))
    parser.add_argument("--report", action="store_true", help="train nothing")
    asked = parser.parse_args()
    if "theirs" in asked.who and asked.checkout is None and not asked.report:
        parser.error("theirs needs a checkout of purejaxql; give its path first.")
    asked.folder.mkdir(parents=True, exist_ok=True)
    for seed in [] if asked.report else asked.seeds:
        for game in asked.games:
            for who in asked.who:
                file = asked.folder / f"{game}-{who}-{seed}.json"
                if file.exists():
                    continue
                began = time.perf_counter()
                settings = game, seed, asked.frames
                points = list(ours(*settings) if who == "ours" else theirs(asked.checkout, *settings))
                file.write_text(json.dumps(points))
                print(f"{file.stem}: {points[-1]} in {time.perf_counter() - began:.0f} s", flush=True)
                jax.clear_caches()
    print(report(asked.folder))


if __name__ == "__main__":
    main()
