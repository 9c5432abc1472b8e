"""Run folders as the trainers write them, made by hand so that every number is known."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import lakepond as lp
from lakepond.runs import Run


@dataclass(frozen=True)
class Settings:
    generations: int = 6
    seed: int = 0
    name: str = "<b>bold</b>"


def erl(folder: Path, *, seed: int = 0, generations: int = 6, name: str = "<b>bold</b>") -> Path:
    """Generation g has the fitness 10 g, a spread of g, and holds training for g ms."""
    spec = lp.Spec(obs=lp.Field((4,), "float32"))
    with (
        Run.create(folder, "erl", Settings(seed=seed, name=name)) as run,
        lp.Replay.open(folder / "lake", spec, capacity=512) as replay,
    ):
        for g in range(1, generations + 1):
            for t in range(20):
                row = np.full(4, g * 100 + t, np.float32)
                replay.record(
                    obs=row, action=0, reward=1.0, next_obs=row + 1, terminated=False, truncated=t == 19
                )
            commit = replay.commit({"generation": g})
            run.log(
                g,
                {
                    "generation": g,
                    "fitness_best": 10.0 * g + seed,
                    "fitness_mean": 5.0 * g,
                    "fitness_std": 1.0 * g,
                    "validation_best": 7.0,
                    "bytes_plain": 1_000_000 * g,
                    "bytes_held": 10_000 * g,
                    "lake_bytes": commit.totals.bytes,
                    "held_seconds": 0.001 * g,
                    "held_seconds_total": 0.001 * g * (g + 1) / 2,
                    "train_seconds_total": 10.0 * g,
                    "rss_bytes": 500_000_000 + g,
                    "surprise/of <mine>": float(g % 2),
                    "note": "words are not drawn",
                },
            )
        run.save(generations, {"best": {"w": np.zeros(3, np.float32)}}, {"generation": generations})
    return folder


def evaluated(folder: Path) -> Path:
    """An evaluation beside a run: the champion gains a percent a day, buy-and-hold nothing."""
    home = folder / "evaluation" / "holdout"
    home.mkdir(parents=True)
    account = {
        "total_return": 9.0,
        "sharpe": 1.5,
        "max_drawdown": 0.5,
        "trades": 3,
        "win_rate": 66.7,
        "exposure": 40.0,
    }
    answer = {"part": "holdout", "champion": account, "buy_and_hold": account | {"total_return": 0.0}}
    (home / "result.json").write_text(json.dumps(answer))
    with (home / "equity.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["date", "champion", "buy and hold"])
        table.writerows([f"2020-01-{day:02d}", 1 + (day - 1) / 100, 1.0] for day in range(1, 11))
    with (home / "trades.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["symbol", "entry_date", "exit_date", "profit_percent", "closed_by"])
        table.writerows([["ABC", "2020-01-02", "2020-01-05", p, "target"] for p in (-3.0, 2.0, 12.0)])
    return folder


def mixture(folder: Path, *, lines: int = 40) -> Path:
    """Evaluations that rise by one a line; a reset after every ten, from which two lines are lower."""
    with Run.create(folder, "mixture", Settings()) as run:
        for k in range(1, lines + 1):
            since = k % 10
            level = float(k - (3 if since in (1, 2) and k > 10 else 0))
            run.log(
                k * 1000,
                {
                    "evaluation": level,
                    "evaluation_best": level + 1,
                    "evaluation_agents": [level - 1, level + 1],
                },
            )
            if since == 0:
                run.log(
                    k * 1000, {"reset": k // 10, "evaluation_before": level, "evaluation_after": level - 3}
                )
    return folder


def empty(folder: Path) -> Path:
    """A run that was started and logged nothing."""
    with Run.create(folder, "erl", Settings()):
        return folder
