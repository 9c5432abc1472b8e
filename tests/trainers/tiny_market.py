"""The settings of a run on a market so small that a generation takes no time; as `faults.training.ERL`.

Also used by `benchmarks/market_study.py`.
"""

from dataclasses import replace

from lakepond.envs.market import Rules
from lakepond.trainers import erl

TINY = replace(
    erl.PRESETS["demo"],
    generations=25,
    days=400,
    instruments=6,
    rules=Rules(context=20, trading_days=15, settlement_days=5, max_holding=5),
    elites=2,
    children=2,
    mutants=2,
    fitness_episodes=2,
    validation_slices=2,
    width=8,
    capacity=300,
    learn_from=150,
    gradient_steps=32,
    batch_size=8,
    min_free="1MB",
)
