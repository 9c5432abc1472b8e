"""What the ERL trainer logs of each generation; docs/erl.md tells the meaning and unit of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from lakepond import machine
from lakepond.agents import population
from lakepond.agents.market_network import Array
from lakepond.lake.format.commits import Commit
from lakepond.replay import Replay

if TYPE_CHECKING:
    from lakepond.trainers.erl_settings import Config
    from lakepond.trainers.erl_state import Counters


def learner_place(config: Config, number: int, fitness: Array) -> int | None:
    """The rank that the injected learner had among its population, 1 the best; None where there was none."""
    if number == 1 or (number - 1) % config.inject_every:
        return None
    ranked: list[int] = np.asarray(population.ranking(fitness)).tolist()
    return 1 + ranked.index(config.sizes.total - 1)


def describe(fitness: Array, counters: Counters, replay: Replay, place: int | None) -> dict[str, Any]:
    """The metrics of a generation that follow from the seed alone."""
    stats, known = replay.stats(), np.asarray(fitness)
    return {
        "fitness_best": float(known.max()),
        "fitness_mean": float(known.mean()),
        "fitness_std": float(known.std()),
        "validation_best": counters.best_score,
        "best_generation": counters.best_generation,
        "mutation_std": counters.std,
        "learner_rank": place,
        "steps": stats.steps,
        "recorded": stats.recorded,
        "bytes_plain": stats.bytes_plain,
    }


def clock(
    config: Config, counters: Counters, seconds: float, held: float, replay: Replay, commit: Commit | None
) -> dict[str, Any]:
    """The metrics of a generation that tell of the machine; a resumed run has others."""
    mean = counters.train_seconds / counters.generation
    stats = replay.stats()
    return {
        "seconds": seconds,
        "held_seconds": held,
        "held_seconds_total": counters.held_seconds,
        "train_seconds_total": counters.train_seconds,
        "seconds_left": mean * (config.generations - counters.generation),
        "lake_bytes": 0 if commit is None else commit.totals.bytes,
        "distinct_rows": stats.rows,  # now and then one is held twice: docs/erl.md
        "bytes_held": stats.bytes_held,
        "rss_bytes": machine.resident(),
    }
