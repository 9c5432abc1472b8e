"""The settings of `erl` and its presets; separate from the trainer so that `--help` does not import JAX."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lakepond.envs.market_rules import Rules
from lakepond.guards import AtFloor
from lakepond.trainers.limits import Limits

if TYPE_CHECKING:
    from lakepond.agents.population import Sizes


@dataclass(frozen=True)
class Config:
    """All settings of a run; the defaults are those of the preset `eigen2`."""

    generations: int = 25
    """number of generations; raise it to continue a finished run"""
    seed: int = 0
    """random seed of everything except the synthetic prices"""

    panel: Path | None = None
    """file of prices (see `lakepond data check`); synthetic prices if not given"""
    days: int = 2500
    """number of synthetic days; with --panel, use the most recent days only (0: all)"""
    instruments: int = 108
    """number of synthetic instruments; with --panel, use those with the most trading days only (0: all)"""
    signal: float = 0.3
    """strength of the mean reversion in synthetic prices, 0 to 1"""
    market_seed: int = 0
    """random seed of the synthetic prices"""
    validation: float = 0.2
    """share of the days used for validation, after the training days"""
    holdout: float = 0.2
    """share of the days held out, the last ones; training never uses them"""
    rules: Rules = field(default_factory=Rules)

    elites: int = 6
    """agents that continue unchanged"""
    children: int = 6
    """agents blended from the winners of two tournaments"""
    mutants: int = 4
    """mutated winners of tournaments; the learner and the champion replace the last two"""
    tournament: int = 3
    """agents per tournament"""
    blend_low: float = 0.2
    """smallest weight of the first parent"""
    blend_high: float = 0.8
    """largest weight of the first parent"""
    mutation_rate: float = 0.2
    """share of a mutant's weights that change"""
    mutation_std: float = 0.05
    """standard deviation of a mutation; grows by half when validation does not improve"""
    mutation_std_max: float = 0.3
    """largest standard deviation of a mutation"""
    patience: int = 3
    """generations without a better champion after which mutation_std grows"""
    inject_every: int = 1
    """generations between two insertions of the learner and the champion into the population"""

    episodes: int = 1
    """recorded episodes per agent and generation"""
    noise: float = 0.1
    """standard deviation of the noise on coefficients while recording; a tenth of it on sale targets"""
    fitness_episodes: int = 8
    """episodes per agent and generation that determine its fitness"""
    validation_slices: int = 4
    """start days of validation episodes, spread over the validation days"""

    capacity: int = 50_000
    """steps that the replay holds"""
    learn_from: int = 10_000
    """steps in the replay at which the learner starts"""
    gradient_steps: int = 256
    """gradient steps of the learner per generation"""
    batch_size: int = 32
    """transitions per gradient step"""
    critics: int = 2
    """1: DDPG; 2: the smaller of two critics, as in TD3"""
    gamma: float = 0.9
    """discount factor per day"""
    tau: float = 0.01
    """step size of the target networks, 0 to 1"""
    actor_rate: float = 5e-4
    """learning rate of the actor"""
    critic_rate: float = 1e-3
    """learning rate of the critics"""
    reward_scale: float = 0.1
    """factor applied to rewards, which are in percent, before training the critics"""
    width: int = 32
    """width of the networks"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """dtype of the matrix products in the networks"""
    together: int = 1
    """episodes embedded at once: 1 for a CPU, 64 or more for a GPU"""

    keep_last: int = 3
    """newest checkpoints to keep"""
    keep_every: int = 5
    """also keep the checkpoint of every n-th generation"""
    min_free: str = "1GB"
    """free disk space below which nothing is written"""
    warn_free: str = "20GB"
    """free disk space below which --at-floor applies; a forecast warns earlier"""
    at_floor: AtFloor = "warn"
    """below warn_free: warn; stop_saving: train without saving; stop: save and end after the generation"""
    push_to: str | None = None
    """URL to push the run to in the background, like gs://bucket/demo"""
    push_every: int = 5
    """generations between two pushes; the last generation is always pushed"""

    @property
    def sizes(self) -> Sizes:
        """Sizes of the population's parts."""
        from lakepond.agents.population import Sizes

        return Sizes(self.elites, self.children, self.mutants)


MAY_CHANGE = (
    "generations",
    "keep_last",
    "keep_every",
    "min_free",
    "warn_free",
    "at_floor",
    "push_to",
    "push_every",
)
"""settings that may differ when a run is resumed"""

PRESETS: dict[str, Config] = {
    "demo": Config(
        generations=12,
        days=1600,
        instruments=24,
        signal=0.5,
        rules=Rules(context=63, trading_days=60),
        fitness_episodes=6,
        capacity=12_000,
        learn_from=1_900,
        gradient_steps=128,
    ),
    "eigen2": Config(),
    "gpu": Config(gradient_steps=1024, batch_size=256, width=128, dtype="bfloat16", together=256),
}

SHARE, COUNT, AMOUNT = (0, 1), (1, inf), (0, inf)
LIMITS: Limits = {
    **dict.fromkeys(
        ("generations", "elites", "tournament", "patience", "inject_every", "episodes", "fitness_episodes"),
        COUNT,
    ),
    **dict.fromkeys(
        ("validation_slices", "capacity", "learn_from", "batch_size", "width", "together", "push_every"),
        COUNT,
    ),
    **dict.fromkeys(
        ("signal", "validation", "holdout", "blend_low", "blend_high", "mutation_rate", "gamma", "tau"), SHARE
    ),
    **dict.fromkeys(
        ("seed", "days", "instruments", "market_seed", "children", "mutation_std", "mutation_std_max"), AMOUNT
    ),
    **dict.fromkeys(
        ("noise", "gradient_steps", "actor_rate", "critic_rate", "reward_scale", "keep_last", "keep_every"),
        AMOUNT,
    ),
    "mutants": (2, inf),
    "critics": (1, 2),
}
"""of every number; `Rules` checks its own"""

HEADINGS: dict[str, tuple[str, ...]] = {
    "": (
        "generations",
        "seed",
        "panel",
        "days",
        "instruments",
        "capacity",
        "gradient_steps",
        "batch_size",
        "min_free",
        "push_to",
    ),
    "market": ("signal", "market_seed", "validation", "holdout"),
    "population": (
        "elites",
        "children",
        "mutants",
        "tournament",
        "blend_low",
        "blend_high",
        "mutation_rate",
        "mutation_std",
        "mutation_std_max",
        "patience",
        "inject_every",
    ),
    "episode": ("episodes", "noise", "fitness_episodes", "validation_slices"),
    "learner": (
        "learn_from",
        "critics",
        "gamma",
        "tau",
        "actor_rate",
        "critic_rate",
        "reward_scale",
        "width",
        "dtype",
        "together",
    ),
    "saving": ("keep_last", "keep_every", "warn_free", "at_floor", "push_every"),
    "rules": tuple(Rules.__dataclass_fields__),
}
"""the settings in `--help`, by heading; those without one are changed most often"""
