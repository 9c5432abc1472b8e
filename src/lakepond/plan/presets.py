"""Workloads with a name."""

from __future__ import annotations

from lakepond.plan.workload import IMAGES, Workload
from lakepond.types import Field, Spec

EIGEN2 = Workload(
    spec=Spec(obs=Field((504, 108, 9), "float32", rows=0), action=Field((108, 2), "float32")),
    per_generation=2_000,
    generations=25,
    capacity=50_000,
    pool=2_500,  # days of the market history: ten years
    episode=145,  # 125 days in which positions may be opened, 20 more to settle
    population=16,
    agent_bytes=15_000_000,
    data_bytes=500_000_000,
)
"""the trading run: 16 agents, 25 generations, windows of 504 days over one market history"""

GRAVITAR = Workload(
    spec=Spec(obs=Field((3, 84, 84), "uint8", rows=0), action=Field((), "int64")),
    per_generation=100_000,
    generations=10,
    population=5,  # four agents and the big one
    agent_bytes=7_000_000,  # a convolutional Q-network of 1.7M weights
    shares=IMAGES,
)
"""four Atari agents pouring into one lake: a million steps"""

PRESETS = {"eigen2": EIGEN2, "gpu": EIGEN2, "gravitar": GRAVITAR}
"""`gpu` records what `eigen2` does: its larger networks stay below what an agent is counted with there"""
