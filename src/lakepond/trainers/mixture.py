"""`mixture`: four agents learn alone; now and then all continue as one that learned from them all (B).

The Lake is on disk; the agents' Pond is on the device, with one lane for each environment of each agent.

    while env_steps < N:
        1  train_agents           each agent trains by itself with PQN, and adds its steps to the Pond
        2  pour                   when the Pond is full, it is poured into the Lake, in the background
        3  stop_agents_after      stop after `reset_every` steps
        4  fill_big_pond          fill one BigPond from the Lake, uniformly
        5  train_big_agent        train one BigAgent on it with DQN, each transition several times
        6  stop_big_agent_after   stop
        7  clone_agents           clone the agents from the BigAgent; reset their epsilon

Environment steps are counted over all agents; evaluations and resets are logged against them. The controls:
`agents=1` is one agent with resets from its own Lake, `share=False` four agents that never meet, and with
`big_replay_ratio=0` the agents continue as copies of the best one: nothing is learned at a reset. A run can
stop, be saved and be resumed between any two calls of `train_agents`.

From top to bottom: settings, what they come to, the seven steps, the run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lakepond import lazy, stopping
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.lake.read.lake import Lake
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.limits import ABOVE_0, Limits, check_limits
from lakepond.trainers.loop import LAKE, Loop, create_run
from lakepond.trainers.pushing import Pushing
from lakepond.types import Array, Field

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from lakepond.agents import dqn, fleet, pqn
    from lakepond.agents.dqn import DQN, DQNMetrics, DQNState
    from lakepond.agents.networks import Params
    from lakepond.agents.pqn import PQN, PQNMetrics, PQNState
    from lakepond.flow import device_fill
    from lakepond.pond import device_memory
    from lakepond.pond.device import DevicePond, PondState
    from lakepond.trainers import arena
    from lakepond.trainers.mixture_workers import MixtureOnWorkers
else:  # `lakepond train mixture --help` reads the settings below and imports none of these
    jax, jnp = lazy.Module("jax"), lazy.Module("jax.numpy")
    dqn, pqn = lazy.Module("lakepond.agents.dqn"), lazy.Module("lakepond.agents.pqn")
    fleet, arena = lazy.Module("lakepond.agents.fleet"), lazy.Module("lakepond.trainers.arena")
    device_fill = lazy.Module("lakepond.flow.device_fill")
    device_memory = lazy.Module("lakepond.pond.device_memory")


@dataclass(frozen=True)
class MixtureConfig:
    """All settings of a run."""

    game: str = "Breakout"
    """game of the suite; for gymnasium and gymnax an id, or MODULE:ID; for module MODULE:FUNCTION"""
    suite: Literal["minatar", "atari", "gymnasium", "gymnax", "module"] = "minatar"
    """minatar, gymnax: on the device; atari: ale-py; gymnasium: on the host; module: your own"""
    frame_stack: int = 4
    """frames per observation, on Atari"""
    env_steps: int = 1_000_000
    """total environment steps of all agents; on Atari each is four frames of the emulator"""
    reset_every: int = 249_856
    """environment steps of all agents between two resets"""
    evaluate_every: int = 40_960
    """environment steps between two evaluations"""
    seed: int = field(default=0, compare=False)  # not compared: programs are shared
    """random seed"""
    network: Literal["mlp", "cnn", "nature"] = "mlp"
    """mlp, cnn (as published for MinAtar) or nature (for Atari)"""
    hidden: tuple[int, ...] = (256, 128)
    """widths of the layers of the mlp"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the products in the network; bfloat16 is faster on an accelerator"""
    dueling: bool = False
    """use dueling networks (separate value and advantage)"""

    agents: int = 4
    """number of agents that train on their own"""
    pqn: PQNSettings = field(default_factory=lambda: PQNSettings(envs=32, minibatches=8))
    epsilon_kind: Literal["linear", "exponential", "constant"] = "linear"
    """schedule of epsilon"""
    epsilon_start: float = 1.0
    """initial probability of a random action"""
    epsilon_end: float = 0.05
    """final probability of a random action"""
    epsilon_share: float = 0.1
    """share of an agent's steps until epsilon_end is reached, after the start and after a reset"""
    epsilon_reset: float | Literal["keep"] = 0.3
    """epsilon right after a reset; 1: start from scratch; keep: the schedule continues"""
    epsilon_offsets: tuple[float, ...] = ()
    """added to epsilon, one value per agent, so that agents explore differently"""
    share: bool = True
    """False: no lake and no resets, the agents never exchange anything"""
    pond: int = 16_384
    """steps per agent in the pond; a full pond is poured into the lake"""
    clone_optimiser: Literal["fresh", "kept", "cloned"] = "fresh"
    """optimiser of replaced agents: a new one, their own, or with the big agent's moments"""

    big_pond: int = 400_000
    """transitions that the big agent's pond holds; at most what the lake holds"""
    big_replay_ratio: float = 4.0
    """average number of times the big agent trains on a transition of its pond at a reset; 0: not at all"""
    big_last: float = 0.0
    """like big_replay_ratio, for a big agent trained after the last step, the run's policy; 0: none"""
    big_batch: int = 256
    """transitions per gradient step of the big agent"""
    big_learning_rate: float = 3e-4
    """learning rate of the big agent (Adam)"""
    big_rate_end: float = 1.0
    """final learning rate as a fraction of the initial one; decays linearly"""
    big_target_every: int = 500
    """gradient steps between two updates of the big agent's target network"""
    big_double: bool = True
    """double Q-learning"""
    big_start: Literal["best", "fresh", "last"] = "best"
    """initial weights of the big agent: of the agent with the best training score, new, or its own last"""
    big_shrink: float = 1.0
    """share of the initial weights to keep, the rest is new (shrink and perturb); 1: keep all"""
    big_new_layers: int = 0
    """number of last layers that always start with new weights"""
    big_n_step: tuple[int, ...] = (3,)
    """n of the n-step returns; several values are used one after another during training, as in BBF"""
    big_gamma: tuple[float, ...] = ()
    """discount factor for each value of big_n_step; none: the agents' gamma"""
    big_distill: float = 0.0
    """weight of a loss that pulls the policy towards the best agent's (QDagger)"""

    evaluation_episodes: int = 64
    """episodes per evaluation"""
    evaluation_epsilon: float = 0.001
    """probability of a random action in evaluations"""
    evaluation_greedy: bool = True
    """also evaluate without random actions; takes twice the time"""
    evaluation_steps: int = 27_000
    """steps after which an evaluation episode is cut off"""
    checkpoint_every: int = 4
    """evaluations between two checkpoints; a reset and the end always write one"""
    keep_every: int = field(default=1, compare=False)
    """keep every n-th checkpoint besides the last three; 1: all, 0: none"""
    max_steps: int | None = field(default=None, compare=False)
    """steps to keep in the lake, older ones are dropped; not given: all"""
    keep_last: int | None = field(default=None, compare=False)
    """newest commits of the lake to keep besides those of checkpoints; not given: all"""
    min_free: str = field(default="1GB", compare=False)
    """free disk space below which nothing is written to the lake"""
    push_to: str | None = field(default=None, compare=False)
    """URL to push the run to in the background, like gs://bucket/demo"""
    push_every: int = field(default=4, compare=False)
    """checkpoints between two pushes; the end is always pushed"""

    @property
    def update_steps(self) -> int:
        """Environment steps of one update of all agents."""
        return self.agents * self.pqn.update_steps

    @property
    def updates(self) -> int:
        """Updates of each agent in the run."""
        return self.env_steps // self.update_steps

    @property
    def reset_updates(self) -> int:
        """Updates between two resets."""
        return max(1, self.reset_every // self.update_steps)

    @property
    def evaluation_updates(self) -> int:
        """Updates between two evaluations."""
        return max(1, self.evaluate_every // self.update_steps)

    @property
    def pond_updates(self) -> int:
        """Updates that fill the Pond."""
        return self.pond // self.pqn.update_steps

    @property
    def stages(self) -> list[tuple[int, float]]:
        """n-step and gamma of each stage of the training at a reset (annealed as in BBF, Schwarzer 2023)."""
        n_steps, gammas = self.big_n_step, self.big_gamma or (self.pqn.gamma,)
        count = max(len(n_steps), len(gammas))
        if {len(n_steps), len(gammas)} - {1, count}:
            raise ConfigError(
                f"{len(n_steps)} values of big_n_step and {len(gammas)} of big_gamma do not match; "
                "give the same number of both, or one value of either."
            )
        return [(n_steps[i % len(n_steps)], gammas[i % len(gammas)]) for i in range(count)]


PRESETS: dict[str, MixtureConfig] = {
    "minatar": MixtureConfig(),
    "published": MixtureConfig(
        env_steps=9_961_472, reset_every=2_490_368, evaluate_every=409_600, network="cnn"
    ),
    "atari": MixtureConfig(
        suite="atari",
        env_steps=10_000_000,
        reset_every=2_500_000,
        evaluate_every=500_000,
        network="nature",
        pqn=PQNSettings(envs=32, minibatches=8, learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": MixtureConfig(
        env_steps=8_192,
        reset_every=2_048,
        evaluate_every=1_024,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        pond=512,
        big_replay_ratio=0.25,
        evaluation_episodes=4,
    ),
}
"""minatar: minutes; published: the settings of PQN's authors; tiny: seconds, to test an installation"""

LIMITS: Limits = {
    name: limits
    for limits, names in {
        (1, inf): "env_steps reset_every evaluate_every frame_stack hidden agents pond big_pond big_batch "
        "big_target_every big_n_step evaluation_episodes evaluation_steps checkpoint_every max_steps "
        "keep_last push_every envs rollout epochs minibatches",
        (0, 1): "epsilon_start epsilon_end epsilon_share epsilon_reset evaluation_epsilon big_shrink "
        "big_gamma gamma lam big_rate_end",
        (0, inf): "seed keep_every big_replay_ratio big_last big_learning_rate big_new_layers big_distill "
        "learning_rate",
        (ABOVE_0, inf): "max_gradient",
        (-1, 1): "epsilon_offsets",
    }.items()
    for name in names.split()
}
"""of every number, those of PQN included"""


# --- what the settings come to -------------------------------------------------------------------------


@dataclass(frozen=True)
class MixtureAlgorithm:
    """The algorithm for some settings; nothing here changes."""

    config: MixtureConfig
    pqn: PQN
    dqn: DQN
    pond: DevicePond
    big_pond: DevicePond


def build(config: MixtureConfig) -> MixtureAlgorithm:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, LIMITS)
    arena.check_budget(config.env_steps, "reset_every", config.reset_every, config.update_steps)
    if config.pond % config.pqn.update_steps:
        raise ConfigError(
            f"a Pond of {config.pond:,} steps is not a multiple of an agent's update of "
            f"{config.pqn.update_steps:,} steps; "
            f"take {max(1, config.pond // config.pqn.update_steps) * config.pqn.update_steps:,}."
        )
    _ = config.stages  # raises if they do not match
    env = arena.make_env(config)
    network = arena.network_of(config, env)
    layers = len(jax.eval_shape(network.init, jax.random.PRNGKey(0)))
    if config.big_new_layers > layers:
        raise ConfigError(f"big_new_layers is {config.big_new_layers}, but the network has {layers} layers.")
    epsilon = arena.make_epsilon(
        config.epsilon_kind,
        config.epsilon_start,
        config.epsilon_end,
        int(config.env_steps / config.agents * config.epsilon_share),
        config.epsilon_offsets,
    )
    settings = dqn.DQNSettings(
        batch=config.big_batch,
        learning_rate=config.big_learning_rate,
        target_every=config.big_target_every,
        double=config.big_double,
        distill=config.big_distill,
    )
    return MixtureAlgorithm(
        config,
        pqn.PQN(env, network, epsilon, config.pqn, config.updates),
        dqn.DQN(network, settings, spread=env.resumes),
        arena.make_pond(env.obs, config.agents * config.pqn.envs, config.agents * config.pond),
        make_big_pond(config, env.obs),
    )


def make_big_pond(config: MixtureConfig, obs: Field) -> DevicePond:
    """The BigPond; if the steps of a fill need more rows, a larger one takes its place."""
    return device_fill.pond_for(obs, min(config.big_pond, config.env_steps))


# --- the seven steps -----------------------------------------------------------------------------------


@lazy.jit(static_argnums=0, donate_argnums=(1, 2))
def train_agents(
    mixture: MixtureAlgorithm, agents: PQNState, pond: PondState | None, updates: int
) -> tuple[PQNState, PondState | None, PQNMetrics]:
    """Step 1: `updates` updates of every agent; metrics are summed over them, one entry per agent."""
    numbers = jnp.arange(mixture.config.agents)

    def one(state: PQNState, number: jax.Array) -> tuple[Any, ...]:
        state, rollout, metrics = mixture.pqn.update(state, number)
        return state, None if pond is None else rollout, metrics

    def update(_: int, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        agents, held, sums = carry
        agents, rollouts, metrics = fleet.over_agents(one, agents, numbers, divide=mixture.pqn.env.resumes)
        if held is not None:
            held = mixture.pond.add(held, arena.as_lanes(rollouts))
        return agents, held, jax.tree.map(jnp.add, sums, metrics)

    zero = jax.tree.map(lambda x: jnp.zeros(len(numbers), x.dtype), pqn.PQNMetrics.zero())
    result: tuple[Any, Any, Any] = jax.lax.fori_loop(0, updates, update, (agents, pond, zero))
    return result


class MixtureInProcess:
    """Step 1 in this process; `mixture_workers.MixtureOnWorkers` does the same on many machines."""

    def __init__(self, mixture: MixtureAlgorithm) -> None:
        self._mixture = mixture

    def train(
        self, agents: PQNState, pond: PondState | None, updates: int
    ) -> tuple[PQNState, PondState | None, PQNMetrics]:
        """The agents and the Pond after some updates, and the sums of metrics."""
        return train_agents(self._mixture, agents, pond, updates)

    def status(self) -> dict[str, Any]:
        """The metrics of workers; there are none."""
        return {}


def pour(
    mixture: MixtureAlgorithm, pond: PondState, poured: int, lake: DeviceLake, note: dict[str, Any]
) -> None:
    """Step 2: hand the steps of the Pond from number `poured` on to the Lake, which writes them meanwhile."""
    arena.pour_new(mixture.pond, pond, poured, lake, note, "lower the setting `pond`")


def stop_agents_after(config: MixtureConfig, updates: int) -> int:
    """Step 3: after how many more updates the agents stop: for a pour, an evaluation, a reset or the end."""
    every = (config.pond_updates, config.evaluation_updates, config.reset_updates)
    return min(*(each - updates % each for each in every), config.updates - updates)


def fill_big_pond(
    shape: DevicePond, pond: PondState | None, lake: Lake, rng: np.random.Generator
) -> tuple[DevicePond, PondState]:
    """Step 4: fill the BigPond with steps of the Lake, all equally likely; see `flow.device_fill`.

    pond: the state to reuse, invalid afterwards; None: a new one. Returns the shape too, for it may grow.
    """
    shape, pond = device_fill.fill(shape, pond, lake, rng)
    jax.block_until_ready(pond)  # type: ignore[no-untyped-call]
    return shape, pond


def train_big_agent(
    mixture: MixtureAlgorithm,
    shape: DevicePond,
    pond: PondState,
    big: DQNState,
    teacher: Params,
    key: jax.Array,
    steps: int,
) -> tuple[DQNState, dict[str, float]]:
    """Step 5: `steps` gradient steps with DQN on uniform batches of the BigPond, divided among the stages."""
    stages, sums = mixture.config.stages, []
    for number, (n_step, gamma) in enumerate(stages):
        count = steps * (number + 1) // len(stages) - steps * number // len(stages)
        key_stage = jax.random.fold_in(key, number)
        big, new = learn(mixture, shape, n_step, big, pond, teacher, key_stage, count, steps, gamma)
        sums.append(jax.tree.map(np.asarray, new))  # waits for the device
    loss, value = (float(sum(getattr(each, name) for each in sums)) / steps for name in ("loss", "value"))
    return big, {"big_loss": loss, "big_value": value}


@lazy.jit(static_argnames=("mixture", "shape", "n_step"), donate_argnames="state")
def learn(
    mixture: MixtureAlgorithm,
    shape: DevicePond,
    n_step: int,
    state: DQNState,
    pond: PondState,
    teacher: Params,
    key: jax.Array,
    steps: int,
    total: int,
    gamma: float,
) -> tuple[DQNState, DQNMetrics]:
    """The gradient steps of one stage of step 5, `steps` of `total`; metrics are summed over them."""
    config = mixture.config
    decay = 1.0 - config.big_rate_end

    def step(number: int, carry: tuple[DQNState, DQNMetrics]) -> tuple[DQNState, DQNMetrics]:
        state, sums = carry
        key_batch = jax.random.fold_in(key, number)
        batch = shape.sample(pond, key_batch, config.big_batch, n_step=n_step, gamma=gamma)
        rate = 1.0 - decay * state.updates / total if decay else 1.0
        state, _, metrics = mixture.dqn.update(state, batch, rate=rate, teacher=teacher)
        return state, jax.tree.map(jnp.add, sums, metrics)

    zero = dqn.DQNMetrics(*[jnp.float32(0)] * 3)
    result: tuple[DQNState, DQNMetrics] = jax.lax.fori_loop(0, steps, step, (state, zero))
    return result


def start_big_agent(mixture: MixtureAlgorithm, best: Params, last: Params, key: jax.Array) -> DQNState:
    """The BigAgent before step 5: with the weights of the best agent, its own last ones, or new ones."""
    config = mixture.config
    fresh = mixture.pqn.network.init(key)
    known = {"best": best, "fresh": fresh, "last": last}[config.big_start]
    kept = config.big_shrink
    if kept < 1.0:
        known = jax.tree.map(lambda old, new: kept * old + (1.0 - kept) * new, known, fresh)
    old = list(fresh)[: len(fresh) - config.big_new_layers]  # in the order of the network, the head last
    params = {name: known[name] if name in old else fresh[name] for name in fresh}
    return mixture.dqn.init(jax.tree.map(jnp.copy, params))


def stop_big_agent_after(config: MixtureConfig, transitions: int, ratio: float) -> int:
    """Step 6: after how many gradient steps it has seen each transition of its pond `ratio` times."""
    return max(len(config.stages), round(ratio * transitions / config.big_batch))


def clone_agents(mixture: MixtureAlgorithm, agents: PQNState, big: DQNState) -> PQNState:
    """Step 7: the agents continue in their environments as copies of the BigAgent, with epsilon reset."""
    config, optimiser = mixture.config, agents.optimiser
    if config.clone_optimiser != "kept":
        fresh = mixture.pqn.optimiser.init(big.params)
        if config.clone_optimiser == "cloned":
            fresh = dqn.with_moments(fresh, big.optimiser)
        optimiser = fleet.repeat(fresh, config.agents)
    to = None if config.epsilon_reset == "keep" else config.epsilon_reset
    return agents._replace(
        params=fleet.repeat(big.params, config.agents),
        optimiser=optimiser,
        epsilon=mixture.pqn.epsilon.reset(agents.epsilon, to),
    )


# --- the run -------------------------------------------------------------------------------------------


@stopping.deferring("portion")
def run(
    config: MixtureConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    start_over: bool = False,
    ray: str | None = None,
    gpus_per_agent: float = 0.0,
    loggers: Sequence[Logger] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train to the end in `folder`, from the newest usable checkpoint there if it has a run; returns metrics.

    `resume`: there must be a run; `resume_from`: continue from that checkpoint; `start_over`: move what the
    folder holds to a dated folder first. `ray`: train each agent on a worker of a Ray cluster, "local",
    "auto" or host:port, with a share of a GPU if it is to have one.
    """
    how = Resume(required=resume or resume_from is not None, number=resume_from, start_over=start_over)
    how.find(folder)
    with ExitStack() as stack:
        cluster = None
        if ray is not None:  # before JAX has threads: starting Ray forks
            from lakepond.trainers import mixture_workers

            check_limits(config, LIMITS)
            cluster = stack.enter_context(mixture_workers.connect(config, ray, gpus_per_agent))
        mixture = build(config)
        if config.share:
            ponds = (mixture.pond, mixture.big_pond)
            steps = sum(pond.lanes * pond.capacity for pond in ponds)
            device_memory.check_fits(sum(pond.nbytes for pond in ponds), steps)
        kept = stack.enter_context(create_run(folder, "mixture", config, how, loggers))
        step_1: MixtureInProcess | MixtureOnWorkers = MixtureInProcess(mixture)
        if cluster is not None:
            step_1 = stack.enter_context(mixture_workers.MixtureOnWorkers(cluster, mixture, kept.folder))
        return _MixtureTraining(mixture, kept, how, step_1, tell).train()


class _MixtureTraining:
    """A run in progress: what the functions above are called with, and the files beside it."""

    def __init__(
        self,
        mixture: MixtureAlgorithm,
        kept: Run,
        how: Resume,
        step_1: MixtureInProcess | MixtureOnWorkers,
        tell: Callable[[str], None],
    ) -> None:
        config = mixture.config
        self.mixture, self.config, self.kept, self.step_1, self.tell = mixture, config, kept, step_1, tell
        self.evaluate = arena.evaluator_of(config, mixture.pqn.network)
        key_agents, self.key_big = jax.random.split(jax.random.PRNGKey(config.seed))
        keys = jax.random.split(key_agents, config.agents)
        self.agents = fleet.over_agents(mixture.pqn.init, keys, divide=mixture.pqn.env.resumes)
        # of each agent since the last reset: the sum of the scores of its training episodes, and their number
        self.scores, self.episodes = np.zeros(config.agents), np.zeros(config.agents, int)
        self.big: Params = mixture.pqn.network.init(self.key_big)
        self.big_pond_shape = mixture.big_pond
        self.big_pond: PondState | None = None  # allocated at the first reset
        self.resets, self.big_samples = 0, 0  # so far; samples: transitions in gradients of the BigAgent
        self.seconds = dict.fromkeys(("train", "pour", "fill", "learn", "evaluate"), 0.0)
        state = {"lake_commit": None} | self._state()
        added = {name: state.pop(name) for name in ("score_sums", "score_episodes")}  # older runs lack them
        open_lake = partial(arena.open_lake, config, kept.lake_folder, mixture.pond.obs)
        checkpoint, self.lake = how.take_up(
            kept, self._arrays(), state, open_lake if config.share else lambda _: None
        )
        if checkpoint is not None:
            state = added | checkpoint.state
            self.agents = arena.restored(self.agents, checkpoint.arrays["agents"], mixture.pqn.env)
            self.big = jax.tree.map(jnp.array, checkpoint.arrays["big"])
            self.scores, self.episodes = np.array(state["score_sums"]), np.array(state["score_episodes"])
            self.seconds = state["seconds"]
            self.resets, self.big_samples = state["resets"], state["big_samples"]
            tell(f"resuming from checkpoint {checkpoint.number}, {state['frames']:,} steps")
        self.pond: PondState | None = None
        self.poured = 0  # steps of each lane of the Pond that are in the Lake
        if config.share:
            obs = self.agents.env.obs.reshape(-1, *mixture.pond.obs.shape)
            self.pond = mixture.pond.begin(mixture.pond.init(), obs)
        pushing = Pushing(kept.folder, config.push_to)
        self.loop = Loop(kept, self.lake, Guard(kept.folder, unit="evaluation"), pushing=pushing)

    @property
    def updates(self) -> int:
        """Updates of each agent so far."""
        return int(self.agents.updates[0])

    @property
    def env_steps(self) -> int:
        """Environment steps of all agents so far."""
        return self.updates * self.config.update_steps

    def _learned(self) -> dict[str, int]:
        """Transitions in gradients, and gradient steps one after another: the agents learn side by side."""
        settings, big_steps = self.config.pqn, self.big_samples // self.config.big_batch
        return {
            "samples": self.env_steps * settings.epochs + self.big_samples,
            "gradient_steps": self.updates * settings.gradient_steps + big_steps,
        }

    def train(self) -> dict[str, Any]:
        """Train to the end of the run; returns the metrics of the last evaluation."""
        config, loop = self.config, self.loop
        metrics: dict[str, Any] = {}
        sums, since = None, self.updates
        with loop:
            while self.updates < config.updates and loop.continues():
                new = self._train(stop_agents_after(config, self.updates))
                sums = new if sums is None else jax.tree.map(np.add, sums, new)
                if self.updates % config.pond_updates == 0:
                    self._pour()
                at_end = self.updates == config.updates
                resets = self.updates % config.reset_updates == 0
                if self.updates % config.evaluation_updates and not resets and not at_end:
                    continue
                metrics = self._evaluate(sums, self.updates - since)
                sums, since = None, self.updates
                if config.share and at_end and config.big_last:
                    self._reset(config.big_last, metrics["evaluation"])
                elif config.share and resets and not at_end:
                    self._reset(config.big_replay_ratio, metrics["evaluation"])
                number = -(-self.updates // config.evaluation_updates)
                due = resets or at_end or number % config.checkpoint_every == 0
                if due:
                    self._pour()  # where steps are in the lake decides what the BigAgent learns from
                    loop.take(number, self._arrays(), self._state())
                push = number // config.checkpoint_every % config.push_every == 0
                loop.save(loop.write_taken, push=due and push)
        return metrics or self.kept.last_line()

    def _train(self, updates: int) -> PQNMetrics:
        began = time.perf_counter()
        self.agents, self.pond, sums = self.step_1.train(self.agents, self.pond, updates)
        found: PQNMetrics = jax.tree.map(np.asarray, sums)  # waits until it is done
        self.seconds["train"] += time.perf_counter() - began
        return found

    def _pour(self) -> None:
        if self.pond is None or self.lake is None:
            return
        began = time.perf_counter()
        self.loop.make_room(self.lake)
        pour(self.mixture, self.pond, self.poured, self.lake, {"env_steps": self.env_steps})
        self.poured = int(self.pond.steps)
        self.seconds["pour"] += time.perf_counter() - began

    def _best(self) -> Params:
        """The agent with the best mean score of the training episodes that ended since the last reset.

        An agent without such an episode is only chosen, as the first of them, if none has one. The scores of
        evaluations do not decide anything.
        """
        means = np.where(self.episodes > 0, self._mean_scores(), -np.inf)
        return fleet.pick(self.agents.params, int(means.argmax()))

    def _mean_scores(self) -> Array:
        """Of each agent since the last reset; 0 without an episode."""
        return np.asarray(self.scores / np.maximum(self.episodes, 1))

    def _evaluate(self, sums: PQNMetrics, updates: int) -> dict[str, Any]:
        """The best agent, in environments of its own."""
        self.scores, self.episodes = self.scores + sums.score, self.episodes + sums.episodes
        began = time.perf_counter()
        greedy = self.config.evaluation_greedy
        found = arena.evaluated(self.evaluate, self._best(), self.env_steps, greedy=greedy)
        self.seconds["evaluate"] += time.perf_counter() - began
        metrics = arena.means(sums, updates) | {
            **found,
            "score_agents": self._mean_scores().tolist(),
            **self._learned(),
            "big_samples": self.big_samples,
            **arena.emulator_frames(self.config, self.env_steps),
            **self.step_1.status(),
            **{f"seconds_{name}": round(spent, 3) for name, spent in self.seconds.items()},
        }
        self.loop.log(self.env_steps, metrics, -(-self.updates // self.config.evaluation_updates))
        self.tell(arena.scores_line(self.config, self.env_steps, metrics))
        return metrics

    def _reset(self, ratio: float, before: float) -> None:
        """Steps 4 to 7, each transition `ratio` times; `before`: the last evaluation."""
        mixture, config = self.mixture, self.config
        key_start, key_learn = jax.random.split(jax.random.fold_in(self.key_big, self.resets))
        best = self._best()
        big = start_big_agent(mixture, best, self.big, key_start)
        learned: dict[str, Any] = {}
        if ratio:
            big, learned = self._learn(big, best, key_learn, ratio)
        self.agents, self.big = clone_agents(mixture, self.agents, big), big.params
        self.scores, self.episodes = np.zeros_like(self.scores), np.zeros_like(self.episodes)
        self.resets += 1
        greedy, later = config.evaluation_greedy, self.env_steps + arena.EVALUATION_STEP  # other episodes
        after = arena.evaluated(self.evaluate, self.big, later, greedy=greedy, named="_after")
        line = {
            "reset": self.resets,
            "evaluation_before": before,
            **after,
            **self._learned(),
            **learned,
        }
        self.loop.log(self.env_steps, line)
        score = f"{before:.2f} before, {after['evaluation_after']:.2f} after"
        self.tell(f"{arena.progress(config, self.env_steps)}  reset {self.resets}: {score}")

    def _learn(
        self, big: DQNState, best: Params, key: jax.Array, ratio: float
    ) -> tuple[DQNState, dict[str, Any]]:
        """Steps 4 to 6: fill the BigPond from the Lake, and train the BigAgent on it."""
        mixture, config = self.mixture, self.config
        assert self.lake is not None
        self._pour()
        began = time.perf_counter()
        why = "because a reset reads all steps from the lake"
        commit = self.loop.require(LAKE, self.lake.wait, why)
        assert commit is not None
        poured = time.perf_counter()
        rng = np.random.default_rng([config.seed, self.resets])
        old, self.big_pond = self.big_pond, None  # its memory is reused
        with Lake.open(self.lake.path, commit.number) as lake:
            shape, pond = fill_big_pond(self.big_pond_shape, old, lake, rng)
            held = min(shape.capacity, len(lake))
        self.big_pond_shape, self.big_pond = shape, pond
        filled = time.perf_counter()
        steps = stop_big_agent_after(config, held, ratio)
        big, metrics = train_big_agent(mixture, shape, pond, big, best, key, steps)
        self.big_samples += steps * config.big_batch
        self.seconds["pour"] += poured - began
        self.seconds["fill"] += filled - poured
        self.seconds["learn"] += time.perf_counter() - filled
        counts = {"lake_steps": self.lake.recorded, "big_pond_steps": held, "big_steps": steps}
        return big, {**counts, **metrics}

    def _arrays(self) -> dict[str, Any]:
        """The arrays of a checkpoint; the policy is that of the best agent."""
        return {"agents": self.agents, "big": self.big, "policy": self._best()}

    def _state(self) -> dict[str, Any]:
        """The counters of a checkpoint."""
        return {
            "frames": self.env_steps,
            "score_sums": self.scores.tolist(),
            "score_episodes": self.episodes.tolist(),
            "resets": self.resets,
            "big_samples": self.big_samples,
            "seconds": dict(self.seconds),
        }
