"""Sixteen agents trade at random over a market history; their replay is recorded, sampled and weighed.

python examples/record_market.py                 the size of a real run: 50,000 steps of (504, 108, 9)
python examples/record_market.py --steps 2000    a taste
"""

from __future__ import annotations

import json
import resource
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

import lakepond as lp
from lakepond.envs import market


@dataclass(frozen=True)
class Config:
    """What is recorded."""

    steps: int = 50_000
    """steps in all; at 2,000 a generation, 50,000 are 25 generations"""
    agents: int = 16
    days: int = 2_500
    """days of the synthetic market"""
    instruments: int = 108
    context: int = 504
    """days an agent sees"""
    episode: int = 125
    """steps of an episode, from a random day on"""
    seed: int = 0
    out: Path = Path("runs/record_market")


def compile_first(spec: lp.Spec, source: lp.RowSource, context: int) -> None:
    """The first record and sample on a new machine compile for some seconds; these are not counted."""
    rehearsal = lp.Replay(spec, capacity=2)
    for stop in range(context, context + 4):
        rehearsal.record(
            obs=lp.WindowRef(source, stop),
            action=np.zeros((len(source.rows[0]), 2), np.float32),
            reward=0.0,
            next_obs=lp.WindowRef(source, stop + 1),
            terminated=False,
            truncated=False,
        )
    rehearsal.sample(1, rng=np.random.default_rng(0))


def main(config: Config) -> None:
    """Record, sample, weigh."""
    talk = Console(stderr=True)
    rng = np.random.default_rng(config.seed)
    panel = market.synthetic(days=config.days, instruments=config.instruments, seed=config.seed)
    rows = market.features(panel)
    returns = np.nan_to_num(np.diff(np.log(rows[..., 1]), axis=0))  # of the close, day by day
    source = lp.RowSource(rows)

    spec = lp.Spec(
        obs=lp.Field((config.context, config.instruments, len(market.FEATURES)), "float32"),
        action=lp.Field((config.instruments, 2), "float32"),
    )
    compile_first(spec, source, config.context)
    replay = lp.Replay(spec, capacity=config.steps)
    agents = np.arange(config.agents)
    rounds = -(-config.steps // config.agents)
    began = time.perf_counter()
    for t in track(range(rounds), f"{config.agents} agents recording", console=talk):
        if t % config.episode == 0:  # a new episode: each agent from its own day on
            stop = rng.integers(config.context, config.days - config.episode, config.agents)
        action = rng.random((config.agents, config.instruments, 2), np.float32)
        action[..., 1] = 10 + 40 * action[..., 1]  # the sale target, in percent
        bought = action[..., 0].argmax(axis=1)
        replay.record(
            obs=lp.WindowRef(source, stop),
            action=action,
            reward=100 * returns[stop - 1, bought],
            next_obs=lp.WindowRef(source, stop + 1),
            terminated=np.zeros(config.agents, bool),
            truncated=np.full(config.agents, t % config.episode == config.episode - 1),
            stream=agents,
        )
        stop = stop + 1
    recorded = time.perf_counter() - began

    batch = None
    began = time.perf_counter()
    for _ in track(range(50), "sampling", console=talk):
        batch = replay.sample(32, rng=rng, out=batch)
    sampled = (time.perf_counter() - began) / 50

    stats = replay.stats()
    table = Table("", "uncompressed", "lakepond", title=f"{stats.steps:,} steps of {config.agents} agents")
    table.add_row("memory", f"{stats.bytes_plain / 1e9:,.1f} GB", f"{stats.bytes_held / 1e6:,.1f} MB")
    table.add_row("per step", f"{spec.step_nbytes:,} B", f"{stats.bytes_held / stats.steps:,.0f} B")
    table.add_row("market days stored", f"{2 * config.context * stats.steps:,}", f"{stats.rows:,}")
    table.add_row("record", "", f"{stats.steps / recorded:,.0f} steps/s")
    table.add_row("sample(32), both windows", "", f"{1e3 * sampled:.1f} ms")
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    table.add_row("peak memory of this process", "", f"{peak / 1e6:,.0f} MB")
    Console().print(table)

    config.out.mkdir(parents=True, exist_ok=True)
    report = config.out / "report.json"
    figures = {"ratio": stats.ratio, "record_seconds": recorded, "sample_seconds": sampled, "peak_rss": peak}
    report.write_text(
        json.dumps({"config": asdict(config), "stats": asdict(stats), **figures}, default=str, indent=2)
    )
    print(f"{stats.ratio:,.0f} times smaller. The figures are in {report}.")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
