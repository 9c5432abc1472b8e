"""The settings of `single`, `mixture`, `live` and `compare`, and their presets.

They are separate from the trainers so that `--help` does not import JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Literal

from lakepond.agents.settings import PQNSettings
from lakepond.trainers.limits import Limits

Suite = Literal["minatar", "atari", "gymnasium"]
NetworkKind = Literal["mlp", "cnn", "nature"]


@dataclass(frozen=True)
class ArenaConfig:
    """The settings that `single`, `mixture` and `live` have in common."""

    game: str = "Breakout"
    """game of the suite; for gymnasium an environment id, or MODULE:ID"""
    suite: Suite = "minatar"
    """minatar: on the device; atari: ale-py; gymnasium: any environment with discrete actions"""
    frames: int = 1_000_000
    """total environment steps of all agents (on Atari a step is four frames of the game)"""
    portion: int = 40_960
    """frames between two evaluations"""
    seed: int = field(default=0, compare=False)  # runs that differ in it share their compiled programs
    """random seed"""
    network: NetworkKind = "mlp"
    """mlp, cnn (as published for MinAtar) or nature (for Atari)"""
    hidden: tuple[int, ...] = (256, 128)
    """widths of the layers of the mlp"""
    pqn: PQNSettings = field(default_factory=PQNSettings)
    epsilon_kind: Literal["linear", "exponential", "constant"] = "linear"
    """schedule of epsilon"""
    epsilon_start: float = 1.0
    """initial probability of a random action"""
    epsilon_end: float = 0.05
    """final probability of a random action"""
    epsilon_share: float = 0.1
    """share of an agent's frames until epsilon_end is reached, after the start and after a reset"""
    evaluation_episodes: int = 64
    """episodes per evaluation, divided among the agents"""
    evaluation_epsilon: float = 0.001
    """probability of a random action in evaluations"""
    evaluation_greedy: bool = True
    """also evaluate without random actions; takes twice the time"""
    evaluation_steps: int = 27_000
    """steps after which an evaluation episode is cut off"""
    checkpoint_every: int = 4
    """evaluations between two checkpoints; a reset and the end always write one"""
    keep_every: int = 1
    """keep every n-th checkpoint besides the last three; 1: all, 0: none"""


@dataclass(frozen=True)
class FleetConfig(ArenaConfig):
    """The settings of several agents and one big agent."""

    dueling: bool = False
    """use dueling networks (separate value and advantage)"""
    agents: int = 4
    """number of agents that train on their own"""
    pqn: PQNSettings = field(default_factory=lambda: PQNSettings(envs=32, minibatches=8))
    big_pond: int = 400_000
    """transitions that the big agent's pond holds; mixture: at most what the lake holds"""
    big_samples: float = 4.0
    """average number of times the big agent trains on a transition"""
    big_batch: int = 256
    """transitions per gradient step of the big agent"""
    big_learning_rate: float = 3e-4
    """learning rate of the big agent (Adam)"""
    big_target_every: int = 500
    """gradient steps between two updates of the big agent's target network"""
    big_double: bool = True
    """double Q-learning"""


@dataclass(frozen=True)
class SingleConfig(ArenaConfig):
    """All settings of a run of `single`."""


@dataclass(frozen=True)
class MixtureConfig(FleetConfig):
    """All settings of a run of `mixture`."""

    portion: int = 249_856
    """frames of all agents between two resets"""
    evaluate_every: int = 40_960
    """frames between two evaluations"""
    share: bool = True
    """False: no lake and no resets, the agents never exchange anything"""
    pond: int = 16_384
    """steps per agent in the pond; a full pond is poured into the lake"""
    big_start: Literal["best", "fresh", "last"] = "best"
    """initial weights of the big agent: of the best agent, new ones, or its own of the last reset"""
    big_shrink: float = 1.0
    """share of the initial weights to keep, the rest is new (shrink and perturb); 1: keep all"""
    big_new_layers: int = 0
    """number of last layers that always start with new weights"""
    big_n_step: tuple[int, ...] = (3,)
    """n of the n-step returns; several values are used one after another during training, as in BBF"""
    big_gamma: tuple[float, ...] = ()
    """discount factor for each value of big_n_step; none: the agents' gamma"""
    big_rate_end: float = 1.0
    """final learning rate as a fraction of the initial one; decays linearly"""
    big_distill: float = 0.0
    """weight of a loss that pulls the policy towards the best agent's (QDagger)"""
    big_last: float = 0.0
    """like big_samples, for a big agent trained after the last frame, the run's policy; 0: none"""
    clone_to: Literal["all", "worse"] = "all"
    """agents that are replaced by the big agent at a reset: all, or those with a lower evaluation"""
    clone_optimiser: Literal["fresh", "kept", "cloned"] = "fresh"
    """optimiser of replaced agents: a new one, their own, or with the big agent's moments"""
    epsilon_reset: float | Literal["keep"] = 0.3
    """epsilon right after a reset; 1: start from scratch; keep: the schedule continues"""
    epsilon_offsets: tuple[float, ...] = ()
    """added to epsilon, one value per agent, so that agents explore differently"""


@dataclass(frozen=True)
class LiveConfig(FleetConfig):
    """All settings of a run of `live`."""

    big_envs: int = 32
    """environments in which the big agent acts itself"""
    big_pond: int = 200_000
    """transitions that the big agent's pond holds"""
    lake: bool = True
    """also pour all steps into a lake, before they leave the pond"""
    big_n_step: int = 3
    """n of the n-step returns"""
    big_batch: int = 512
    """transitions per gradient step of the big agent; small batches learn worse"""
    big_alpha: float | None = None
    """sample with probability proportional to priority ** alpha; not given: uniformly"""
    big_epsilon_start: float = 1.0
    """initial probability of a random action of the big agent"""
    keep_every: int = 0
    """keep every n-th checkpoint besides the last; each contains the big agent's pond"""


ARMS = (
    "single",
    "mixture",
    "mixture-restart",
    "mixture-keep",
    "mixture-last",
    "live",
    "apart",
    "single-resets",
    "single-epochs",
)
"""what `compare` can compare; see `trainers/compare.py`"""


@dataclass(frozen=True)
class CompareConfig:
    """All settings of a comparison."""

    games: tuple[str, ...] = ("Breakout", "Asterix", "Freeway", "SpaceInvaders")
    """names of the games"""
    arms: tuple[str, ...] = (
        "single",
        "single-epochs",
        "mixture",
        "mixture-restart",
        "live",
        "apart",
        "single-resets",
    )
    """algorithms to compare; may be changed later"""
    seeds: int = 5
    """runs of each arm on each game; may be raised later"""
    frames: int = 524_288
    """frames of each run, over all its agents; rounded down to whole portions"""
    portions: int = 4
    """parts of a run of mixture, with a reset between two parts"""
    evaluations: int = 16
    """evaluations per run"""
    evaluation_episodes: int = 32
    """episodes per evaluation"""
    network: NetworkKind = "mlp"
    """mlp, or cnn as published"""
    hidden: tuple[int, ...] = (128,)
    """widths of the layers of the mlp"""
    big_samples: float = 4.0
    """average number of times the big agent trains on a transition"""
    suite: Suite = "minatar"
    """minatar or atari"""


SINGLE: dict[str, SingleConfig] = {
    "minatar": SingleConfig(),
    "published": SingleConfig(frames=10_000_000, portion=409_600, network="cnn"),
    "atari": SingleConfig(
        suite="atari",
        frames=10_000_000,
        portion=500_000,
        network="nature",
        pqn=PQNSettings(learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": SingleConfig(
        frames=8_192,
        portion=1_024,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        evaluation_episodes=4,
    ),
}
MIXTURE: dict[str, MixtureConfig] = {
    "minatar": MixtureConfig(),
    "published": MixtureConfig(frames=9_961_472, portion=2_490_368, evaluate_every=409_600, network="cnn"),
    "atari": MixtureConfig(
        suite="atari",
        frames=10_000_000,
        portion=2_500_000,
        evaluate_every=500_000,
        network="nature",
        pqn=PQNSettings(envs=32, minibatches=8, learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": MixtureConfig(
        frames=8_192,
        portion=2_048,
        evaluate_every=1_024,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        pond=512,
        big_samples=0.25,
        evaluation_episodes=4,
    ),
}
LIVE: dict[str, LiveConfig] = {
    "minatar": LiveConfig(),
    "published": LiveConfig(frames=10_000_000, portion=409_600, network="cnn", big_pond=1_000_000),
    "atari": LiveConfig(
        suite="atari",
        frames=10_000_000,
        portion=500_000,
        network="nature",
        pqn=PQNSettings(envs=32, minibatches=8, learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": LiveConfig(
        frames=12_288,
        portion=2_560,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        big_envs=8,
        big_pond=4_000,
        big_samples=0.5,
        big_batch=64,
        evaluation_episodes=4,
    ),
}
COMPARE: dict[str, CompareConfig] = {
    "minatar": CompareConfig(),
    "tiny": CompareConfig(
        games=("Breakout",),
        arms=ARMS,
        seeds=2,
        frames=4 * 4096,
        evaluations=4,
        evaluation_episodes=4,
        hidden=(16,),
        big_samples=0.25,
    ),
}
"""minatar: minutes; published: the settings of PQN's authors; tiny: seconds, to test an installation"""

SHARE, COUNT, AMOUNT = (0, 1), (1, inf), (0, inf)
LIMITS: Limits = {
    **dict.fromkeys(("frames", "portion", "evaluate_every", "hidden", "agents", "pond", "big_pond"), COUNT),
    **dict.fromkeys(("evaluation_episodes", "evaluation_steps", "checkpoint_every", "big_batch"), COUNT),
    **dict.fromkeys(("big_target_every", "big_n_step", "big_envs"), COUNT),
    **dict.fromkeys(("seeds", "portions", "evaluations"), COUNT),
    **dict.fromkeys(("envs", "rollout", "epochs", "minibatches"), COUNT),
    **dict.fromkeys(("epsilon_start", "epsilon_end", "epsilon_share", "epsilon_reset"), SHARE),
    **dict.fromkeys(("evaluation_epsilon", "big_epsilon_start", "big_shrink", "big_gamma"), SHARE),
    **dict.fromkeys(("gamma", "trace"), SHARE),
    **dict.fromkeys(("seed", "keep_every", "big_samples", "big_learning_rate", "big_new_layers"), AMOUNT),
    **dict.fromkeys(("big_rate_end", "big_distill", "big_last", "big_alpha"), AMOUNT),
    **dict.fromkeys(("learning_rate", "max_gradient"), AMOUNT),
    "epsilon_offsets": (-1, 1),
}

HEADINGS: dict[str, tuple[str, ...]] = {
    "": (
        "game",
        "suite",
        "frames",
        "portion",
        "evaluate_every",
        "seed",
        "network",
        "hidden",
        "agents",
        "envs",
        "learning_rate",
        "big_samples",
    ),
    "PQN": ("rollout", "epochs", "minibatches", "gamma", "trace", "max_gradient"),
    "epsilon": (
        "epsilon_kind",
        "epsilon_start",
        "epsilon_end",
        "epsilon_share",
        "epsilon_reset",
        "epsilon_offsets",
    ),
    "evaluation": (
        "evaluation_episodes",
        "evaluation_epsilon",
        "evaluation_greedy",
        "evaluation_steps",
    ),
    "saving": ("checkpoint_every", "keep_every", "lake"),
    "reset": ("share", "pond", "clone_to", "clone_optimiser"),
    "big-agent": (
        "dueling",
        "big_envs",
        "big_pond",
        "big_batch",
        "big_learning_rate",
        "big_target_every",
        "big_double",
        "big_start",
        "big_shrink",
        "big_new_layers",
        "big_n_step",
        "big_gamma",
        "big_rate_end",
        "big_distill",
        "big_last",
        "big_alpha",
        "big_epsilon_start",
    ),
}
"""the settings in `--help`, by heading; those without one are changed most often"""
COMPARE_HEADINGS: dict[str, tuple[str, ...]] = {"": tuple(CompareConfig.__dataclass_fields__)}
