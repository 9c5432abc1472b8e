"""ERL: a population evolves on a market, a DDPG learner learns from what it saw, each helps the other.

One generation, after Khadka and Tumer 2018 (Evolution-Guided Policy Gradient in RL):

    explore    all agents play the same days, with noise; every step is recorded, windows by reference
    commit     new steps are written to the lake, in the background
    learn      gradient steps of the learner on batches from the replay, once it holds `learn_from` steps
    judge      all agents play other common days without noise: their fitness
    validate   the fittest play days that are never trained on; the best ever is the champion
    evolve     elites stay, children blend, mutants mutate; learner and champion take the last two places
    save       checkpoint: population, champion, learner, counters, the lake's commit; state.json last

Every random number follows from the seed and the generation, the replay's content from the commit that a
checkpoint names. So a run that was killed and resumed ends with the same bits as one that was not.

From top to bottom: settings, the parts of a generation, `generation`, `train`, checkpoints, metrics.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from lakepond import lazy, machine, stopping, untrusted
from lakepond.envs.market import FEATURES, Panel, read_market, synthetic
from lakepond.envs.market.observe import spans
from lakepond.envs.market_rules import Rules
from lakepond.errors import ConfigError, RunCorrupt
from lakepond.flow.pond_and_lake import MOST_WAITING
from lakepond.guards import AtFloor, Guard
from lakepond.lake.format.commits import Commit
from lakepond.replay import Replay
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.limits import Limits, check_limits, check_memory, check_order
from lakepond.trainers.loop import LAKE, MAY_CHANGE, Loop
from lakepond.trainers.pushing import Pushing
from lakepond.types import Field, Spec, WindowRef

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from lakepond.agents import ddpg, fleet, market_network, population
    from lakepond.agents.market_network import Array, Params
    from lakepond.envs.market import world
    from lakepond.trainers import market_rollout
    from lakepond.trainers.erl_workers import ErlOnWorkers
else:  # `lakepond train erl --help` reads the settings below and imports none of these
    jax, jnp = lazy.Module("jax"), lazy.Module("jax.numpy")
    ddpg, market_network = lazy.Module("lakepond.agents.ddpg"), lazy.Module("lakepond.agents.market_network")
    population, world = lazy.Module("lakepond.agents.population"), lazy.Module("lakepond.envs.market.world")
    market_rollout, fleet = (
        lazy.Module("lakepond.trainers.market_rollout"),
        lazy.Module("lakepond.agents.fleet"),
    )


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
    """agents that continue unchanged; 0, with 0 children and 1 mutant: no population, the learner alone"""
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
    """standard deviation of the noise on actions while recording, as a share of the range of each"""
    fitness_episodes: int = 8
    """episodes per agent and generation that determine its fitness"""
    validation_slices: int = 4
    """start days of validation episodes, spread over the validation days"""

    capacity: int = 50_000
    """steps that the replay holds"""
    learn_from: int = 10_000
    """steps in the replay at which the learner starts"""
    gradient_steps: int = 256
    """gradient steps of the learner per generation; 0: evolution alone, without a learner"""
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

    keep_checkpoints: int = 3
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
    def sizes(self) -> population.Sizes:
        """Sizes of the population's parts."""
        return population.Sizes(self.elites, self.children, self.mutants)

    @property
    def new_steps(self) -> int:
        """Steps that a generation records."""
        return self.sizes.total * self.episodes * self.rules.trading_days

    @property
    def learner(self) -> ddpg.Settings:
        """Settings of the learner."""
        rates = self.actor_rate, self.critic_rate
        return ddpg.Settings(self.rules, self.critics, self.gamma, self.tau, *rates, dtype=self.dtype)

    def player(self, noise: float = 0.0) -> market_rollout.Player:
        """Settings of the episodes."""
        return market_rollout.Player(self.rules, noise, self.together, self.dtype)

    def spec(self, market: world.Market) -> Spec:
        """A step of the replay; windows refer to the rows of the market."""
        _, instruments, width = market.history.shape
        return Spec(
            obs={
                "window": Field((self.rules.context, instruments, width), "float32", rows=0),
                "position": Field((instruments, market_network.POSITION), "float32", rows=None),
            },
            action=Field((instruments, 2), "float32"),
            extras={"day": Field((), "int32"), "next_day": Field((), "int32")},
        )


ALSO_MAY_CHANGE = ("generations", "keep_checkpoints", "warn_free", "at_floor")
"""settings that may differ when a run is resumed, besides `MAY_CHANGE`"""

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

LIMITS: Limits = {
    name: limits
    for limits, names in {
        (1, inf): "generations mutants tournament patience inject_every episodes fitness_episodes capacity "
        "validation_slices learn_from batch_size width together push_every",
        (0, 1): "signal validation holdout blend_low blend_high mutation_rate gamma tau",
        (0, inf): "seed days instruments market_seed elites children mutation_std mutation_std_max noise "
        "gradient_steps actor_rate critic_rate reward_scale keep_checkpoints keep_every",
        (1, 2): "critics",
    }.items()
    for name in names.split()
}
"""of every number; `Rules` checks its own"""
ALONE = (0, 0, 1)
"""elites, children and mutants of a run without a population: the one agent is the learner"""
LARGE = "capacity, instruments, episodes or batch_size"
"""settings that decide how much memory a run needs"""


def check(config: Config) -> None:
    """Raise `ConfigError` for invalid settings."""
    check_limits(config, LIMITS)
    if config.sizes != ALONE:
        check_limits(config, {"elites": (1, inf), "mutants": (2, inf)})
    elif not config.gradient_steps:
        raise ConfigError("without a population the learner needs gradient_steps of at least 1.")
    if config.new_steps > config.capacity:
        raise ConfigError(
            f"a generation records {config.new_steps:,} steps, but the replay holds {config.capacity:,}; "
            "raise capacity."
        )
    check_order(config, "blend_low", "blend_high")
    check_order(config, "mutation_std", "mutation_std_max")
    if config.gradient_steps:  # or the learner never learns
        check_order(config, "learn_from", "capacity")


def memory_needed(config: Config, shape: tuple[int, int, int]) -> dict[str, int]:
    """Bytes by purpose, from the sizes of the arrays; an estimate from above for float32 on a CPU."""
    days, instruments, width = shape
    inputs = width * (len(spans(config.rules.context)) + 1)
    agents, trading = config.sizes.total, config.rules.trading_days
    of_step = 2 + 2 * market_network.POSITION  # action and both positions
    step = instruments * 4 * of_step + 128  # and their indices
    played = agents * config.episodes * trading * instruments * 4 * (config.width + of_step)
    judged = agents * config.fitness_episodes * trading * instruments * 4 * config.width
    attention = config.batch_size * instruments * (inputs + 8 * config.width + 3 * instruments)
    return {
        "prices, features and their summaries": days * instruments * (64 + 48 * width + 8 * inputs),
        "the replay": config.capacity * step + 3 * days * instruments * width * 4,
        "the episodes of a generation": 2 * (played + judged),
        "gradient steps": 4 * 4 * (2 + config.critics) * attention,
        "JAX and its programs": 700 << 20,
    }


def open_market(config: Config) -> world.Market:
    """Read or make the prices, and put what is needed of them on the device."""
    return market_of(config, *read_prices(config))


def read_prices(config: Config) -> tuple[Panel, Any]:
    """The panel of prices, and the features that came with it, None if there were none."""
    if config.panel is None:
        check_memory(memory_needed(config, (config.days, config.instruments, len(FEATURES))), LARGE)
        return synthetic(config.days, config.instruments, seed=config.market_seed, signal=config.signal), None
    panel, table = read_market(config.panel, days=config.days, instruments=config.instruments)
    width = len(FEATURES) if table is None else table.shape[-1]
    check_memory(memory_needed(config, (*panel.shape, width)), LARGE)
    return panel, table


def market_of(config: Config, panel: Panel, table: Any) -> world.Market:
    """The market of these prices."""
    parts = {"validation": config.validation, "holdout": config.holdout}
    return world.Market.of(panel, config.rules, table=table, **parts)


# --- what a generation hands to the next ---------------------------------------------------------------


class Evolving(NamedTuple):
    """The arrays that a generation passes to the next; with `Counters` and the lake, a checkpoint."""

    population: Params
    best: Params
    learner: ddpg.Learner


class Counters(NamedTuple):
    """The numbers that a generation passes to the next one; stored as JSON."""

    generation: int = 0
    best_score: float = float("-inf")
    best_generation: int = 0
    stalled: int = 0
    std: float = 0.0
    gradient_steps: int = 0
    held_seconds: float = 0.0
    """for which saving has held the training thread"""
    train_seconds: float = 0.0


class Chance(NamedTuple):
    """The random keys and generator of a generation."""

    explored_days: Array
    """first days of the recorded episodes"""
    key_explore: Array
    key_evolve: Array
    rng: np.random.Generator
    """draws the batches of the learner, then the days that determine fitness"""

    @classmethod
    def of(cls, config: Config, market: world.Market, number: int) -> Chance:
        """Derive them from the seed and the number of the generation."""
        key = jax.random.fold_in(jax.random.key(config.seed), number)
        key_explore, key_evolve = jax.random.split(key)
        rng = np.random.default_rng([config.seed, number])
        starts = market.history.splits.starts("train", config.rules)
        days = rng.choice(starts, config.episodes, replace=False)
        return cls(jnp.asarray(days), key_explore, key_evolve, rng)


def first_generation(config: Config, inputs: int) -> Evolving:
    """Random agents, a new learner."""
    key_agents, key_learner = jax.random.split(jax.random.fold_in(jax.random.key(config.seed), 0))
    keys = jax.random.split(key_agents, config.sizes.total)
    actor = partial(market_network.init_actor, inputs=inputs, width=config.width)
    learner = partial(ddpg.init, inputs=inputs, width=config.width, settings=config.learner)
    agents, first = jax.jit(jax.vmap(actor))(keys), jax.jit(learner)(key_learner)
    if config.sizes == ALONE:
        agents = population.put(agents, 0, first.actor)
    return Evolving(agents, fleet.pick(agents, 0), first)


# --- the parts of a generation -------------------------------------------------------------------------

WINDOWS = ("obs['window']", "next_obs['window']")
"""what the learner leaves in the replay: it reads the summaries of those days instead"""
MUTATION_GROWTH = 1.5
"""of the std of mutations while validation does not improve"""
CHUNK = 32
"""gradient steps of one program; their batches are sampled together"""


class Explored(NamedTuple):
    """Recorded episodes of some agents; leading axes (agents, episodes, trading days), on the host."""

    day: Any
    next_day: Any
    position: Any
    """before each step, and after the last: one more than trading days"""
    action: Any
    reward: Any


def explore(config: Config, market: world.Market, agents: Params, chance: Chance, first: int = 0) -> Explored:
    """Some agents of the population, from number `first` on, play the same days, with noise."""
    shape = (config.sizes.total, config.episodes, config.rules.trading_days, market.history.shape[1], 2)
    noise = None
    if config.noise:
        count = len(jax.tree.leaves(agents)[0])
        noise = market_rollout.noise(chance.key_explore, shape)[first : first + count]
    player = config.player(config.noise)
    seen = jax.device_get(market_rollout.play(agents, chance.explored_days, noise, market.world, player))
    return Explored(seen.day, seen.next_day, seen.position, seen.action, seen.result.reward)


def record(market: world.Market, replay: Replay, seen: Explored, first: int = 0) -> None:
    """Record every step of some episodes, of agents from number `first` on; windows by reference."""
    source = market.source
    for agent, episode in np.ndindex(*seen.day.shape[:2]):
        day, next_day, position, action, reward = (x[agent, episode] for x in seen)
        replay.record(
            obs={"window": WindowRef(source, np.asarray(day + 1)), "position": position[:-1]},
            action=action,
            reward=reward,
            next_obs={"window": WindowRef(source, np.asarray(next_day + 1)), "position": position[1:]},
            terminated=np.zeros(len(day), np.bool_),
            truncated=np.arange(len(day)) == len(day) - 1,
            stream=first + agent,
            day=day,
            next_day=next_day,
        )


def learn(
    config: Config, market: world.Market, replay: Replay, learner: ddpg.Learner, rng: np.random.Generator
) -> tuple[ddpg.Learner, dict[str, Any]]:
    """Gradient steps on uniform batches of the replay; none before it holds `learn_from` steps."""
    if len(replay) < config.learn_from or config.gradient_steps == 0:
        return learner, {"gradient_steps": 0}
    metrics: dict[str, Any] = {}
    for done in range(0, config.gradient_steps, CHUNK):
        count = min(CHUNK, config.gradient_steps - done)
        batch = replay.sample(count * config.batch_size, rng=rng, exclude=WINDOWS)
        steps = ddpg.Transitions(
            day=batch.extras["day"],
            position=batch.obs["position"],
            action=batch.action,
            reward=batch.reward * np.float32(config.reward_scale),
            next_day=batch.extras["next_day"],
            next_position=batch.next_obs["position"],
            terminated=batch.terminated,
        )
        folded = jax.tree.map(lambda x: x.reshape(-1, config.batch_size, *x.shape[1:]), steps)
        learner, metrics = ddpg.learn(learner, folded, market.world.summaries, settings=config.learner)
    return learner, {"gradient_steps": config.gradient_steps, **metrics}


class ErlInProcess:
    """Plays the population in this process; `erl_workers.ErlOnWorkers` does the same on many machines."""

    def __init__(self, config: Config, market: world.Market) -> None:
        self._config, self._market = config, market

    def explore(self, agents: Params, number: int) -> Iterator[tuple[int, Explored]]:
        """The episodes of a generation that are recorded, and the number of their first agent."""
        chance = Chance.of(self._config, self._market, number)
        yield 0, explore(self._config, self._market, agents, chance)

    def judge(self, agents: Params, days: Array) -> Array:
        """The rewards of agents on these days, without noise: (trading days, agents, first days)."""
        rewards: Array = market_rollout.rewards(agents, days, self._market.world, self._config.player())
        return rewards

    def status(self) -> dict[str, Any]:
        """The metrics of workers; there are none."""
        return {}


def validate(
    config: Config, market: world.Market, now: Evolving, actor: Params, fitness: Array, counters: Counters
) -> tuple[Params, Counters, Array]:
    """Elites and, last, learner, if it learns, on validation days; the best score ever makes the champion."""
    judged = fleet.pick(now.population, population.ranking(fitness)[: config.elites])
    if config.gradient_steps:
        judged = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), judged, actor)
    days = market.history.splits.slices("validation", config.rules, config.validation_slices)
    rewards = ErlInProcess(config, market).judge(judged, jnp.asarray(days))
    scores = market_rollout.totals(rewards).mean(axis=1)
    winner = int(jnp.argmax(scores))
    counters = counters._replace(stalled=counters.stalled + 1)
    best = now.best
    if float(scores[winner]) > counters.best_score:
        best = fleet.pick(judged, winner)
        counters = counters._replace(
            best_score=float(scores[winner]), best_generation=counters.generation + 1, stalled=0
        )
    return best, counters._replace(std=mutation_std(config, counters)), scores


def mutation_std(config: Config, counters: Counters) -> float:
    """The next std of mutations: the first one after a new champion, larger every `patience` generations."""
    if counters.stalled == 0:
        return config.mutation_std
    if counters.stalled % config.patience == 0:
        return min(MUTATION_GROWTH * counters.std, config.mutation_std_max)
    return counters.std


def generation(
    config: Config,
    market: world.Market,
    now: Evolving,
    counters: Counters,
    replay: Replay,
    evaluation: ErlInProcess | ErlOnWorkers,
) -> tuple[Evolving, Counters, dict[str, Any]]:
    """One generation whose steps have been recorded: learn, judge, validate, evolve. Writes nothing.

    evaluation: plays the population.
    """
    number = counters.generation + 1
    chance = Chance.of(config, market, number)
    learner, metrics = learn(config, market, replay, now.learner, chance.rng)
    starts = market.history.splits.starts("train", config.rules)
    days = jnp.asarray(chance.rng.choice(starts, config.fitness_episodes))
    fitness = market_rollout.totals(evaluation.judge(now.population, days)).mean(axis=1)
    best, after, scores = validate(config, market, now, learner.actor, fitness, counters)
    parents = population.Parents(config.tournament, (config.blend_low, config.blend_high))
    mutation = config.mutation_rate, after.std
    agents = population.evolve(chance.key_evolve, now.population, fitness, config.sizes, *mutation, parents)
    if config.sizes == ALONE:
        agents = population.put(agents, 0, learner.actor)
    elif number % config.inject_every == 0:
        agents = population.put(agents, config.sizes.total - 2, best)
        if config.gradient_steps:
            agents = population.put(agents, config.sizes.total - 1, learner.actor)
    known = np.asarray(fitness)
    metrics = {name: np.asarray(value).item() for name, value in metrics.items()} | {
        "generation": number,
        "validation": float(scores.max()),
        "validation_learner": float(scores[-1]) if config.gradient_steps else None,
        "fitness_best": float(known.max()),
        "fitness_mean": float(known.mean()),
        "fitness_std": float(known.std()),
        "validation_best": after.best_score,
        "best_generation": after.best_generation,
        "mutation_std": after.std,
        "learner_rank": learner_rank(config, number, fitness),
    }
    steps = counters.gradient_steps + metrics["gradient_steps"]
    after = after._replace(generation=number, gradient_steps=steps)
    now = Evolving(agents, best, learner)
    jax.block_until_ready(now)  # type: ignore[no-untyped-call]
    return now, after, metrics


def learner_rank(config: Config, number: int, fitness: Array) -> int | None:
    """The rank that the injected learner had among its population, 1 the best; None where there was none."""
    if number == 1 or (number - 1) % config.inject_every or not config.gradient_steps:
        return None
    return 1 + list(np.asarray(population.ranking(fitness))).index(config.sizes.total - 1)


# --- the run -------------------------------------------------------------------------------------------


@stopping.deferring("generation")
def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    start_over: bool = False,
    ray: str | None = None,
    workers: int = 2,
    gpus_per_worker: float = 0.0,
    loggers: Sequence[Logger] = (),
    on_generation: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Train into `folder`; returns the metrics of the last generation.

    A run that `folder` holds is continued from its newest usable checkpoint. `resume`: there must be one;
    `resume_from`: continue from that checkpoint; `start_over`: move what the folder holds to a dated folder
    first. `ray`: play the population on that many `workers` of a Ray cluster, "local", "auto" or host:port,
    each with a share of a GPU if it is to have one. `on_generation` is called with the metrics of each
    generation.
    """
    how = Resume(required=resume or resume_from is not None, number=resume_from, start_over=start_over)
    how.find(folder)
    check(config)
    prices = read_prices(config)
    with ExitStack() as stack:
        cluster = None
        if ray is not None:  # before JAX has threads: starting Ray forks
            from lakepond.trainers import erl_workers

            cluster = stack.enter_context(erl_workers.connect(config, ray, workers, gpus_per_worker))
        market = market_of(config, *prices)
        run = stack.enter_context(
            Run.create(
                folder,
                "erl",
                config,
                may_change=(*MAY_CHANGE, *ALSO_MAY_CHANGE),
                loggers=loggers,
                keep_last=config.keep_checkpoints,
                keep_every=config.keep_every,
                prepare=how.prepare,
            )
        )
        evaluation: ErlInProcess | ErlOnWorkers = ErlInProcess(config, market)
        if cluster is not None:
            started = erl_workers.ErlOnWorkers(cluster, config, prices, run.folder)
            evaluation = stack.enter_context(started)
        guard = Guard(
            run.folder, min_free=config.warn_free, at_floor=config.at_floor, last=config.generations
        )
        pushing = Pushing(run.folder, config.push_to)
        now, counters, replay = begin(config, run, market, how)
        committed, committing = replay.flush(), None
        write_names = partial(market.write_names, run.folder)
        last: dict[str, Any] = {}

        def uncommitted() -> int:
            return replay.stats().recorded - (0 if committed is None else committed.recorded)

        def save_again() -> None:
            """What the last generation could not save, or did not because of the guard."""
            nonlocal committed, committing
            committing = committing or hand_over(replay, counters.generation)
            committed = loop.attempt(LAKE, replay.flush) or committed
            loop.attempt(world.NAMES, write_names)
            if LAKE not in loop.failing and committed is not None:
                loop.checkpoint(partial(save, run, config, now, counters, committed))

        with Loop(run, replay, guard, uncommitted, pushing) as loop:
            loop.attempt(world.NAMES, write_names)
            while counters.generation < config.generations and loop.continues():
                began, number = time.perf_counter(), counters.generation + 1
                if uncommitted() + config.new_steps > (1 + MOST_WAITING) * config.capacity:
                    why = f"because {uncommitted():,} steps are held in memory"
                    committed = loop.require(LAKE, replay.flush, why)

                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "a commit failed")  # the loop reports it
                    for first, seen in evaluation.explore(now.population, number):
                        record(market, replay, seen, first)
                waited = time.perf_counter()
                committing = None
                if guard.saving or uncommitted() + config.new_steps > config.capacity:
                    committing = hand_over(replay, number)
                held = time.perf_counter() - waited
                now, counters, last = generation(config, market, now, counters, replay, evaluation)
                worked = time.perf_counter() - began

                waited = time.perf_counter()
                loop.wait()
                if committing is not None:
                    committed = loop.attempt(LAKE, committing.result) or committed
                held += time.perf_counter() - waited
                counters = counters._replace(
                    held_seconds=counters.held_seconds + held,
                    train_seconds=counters.train_seconds + worked + held,
                )
                last |= of_the_run(config, counters, worked + held, held, replay, committed)
                last |= evaluation.status()
                loop.log(number, last, number)
                if world.NAMES in loop.failing:
                    loop.attempt(world.NAMES, write_names)
                write = None
                # without a commit of this generation there is no checkpoint of it
                if committing is not None and LAKE not in loop.failing and committed is not None:
                    write = partial(save, run, config, now, counters, committed)
                push = number % config.push_every == 0
                loop.save(save_again, due=False, background=write, push=push)
                on_generation(last)
        return last or run.last_line()  # all generations were there already


def of_the_run(
    config: Config, counters: Counters, seconds: float, held: float, replay: Replay, commit: Commit | None
) -> dict[str, Any]:
    """The metrics of the replay and of the machine; those of the machine differ in a resumed run."""
    mean = counters.train_seconds / counters.generation
    stats = replay.stats()
    return {
        "steps": stats.steps,
        "recorded": stats.recorded,
        "samples_per_insert": counters.gradient_steps * config.batch_size / stats.recorded,
        "bytes_plain": stats.bytes_plain,
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


# --- checkpoints ---------------------------------------------------------------------------------------


def begin(config: Config, run: Run, market: world.Market, how: Resume) -> tuple[Evolving, Counters, Replay]:
    """What training continues with: the first generation, or a checkpoint; and the replay as it was then."""
    now = first_generation(config, market.inputs)
    counters = Counters(std=config.mutation_std)
    checkpoint, replay = how.take_up(
        run,
        jax.device_get(now)._asdict(),
        state_of(config, counters, None),
        lambda commit: Replay.open(
            run.lake_folder, config.spec(market), config.capacity, commit=commit, min_free=config.min_free
        ),
    )
    if checkpoint is None:
        return now, counters, replay
    now = Evolving(**jax.tree.map(jnp.asarray, checkpoint.arrays))
    with untrusted.blaming(checkpoint.folder / "state.json", RunCorrupt, "resume from another checkpoint"):
        saved = checkpoint.state["counters"]
        counters = Counters(**{name: saved[name] for name in Counters._fields})
    best = -math.inf if counters.best_score is None else counters.best_score
    return now, counters._replace(best_score=best), replay


def hand_over(replay: Replay, generation: int) -> Future[Commit]:
    """Commit all steps, in the background."""
    return cast("Future[Commit]", replay.commit({"generation": generation}, wait=False))


def save(run: Run, config: Config, now: Evolving, counters: Counters, commit: Commit) -> Path:
    """One checkpoint; the lake's commit that it names is durable already."""
    state = state_of(config, counters, commit.number)
    return run.save(counters.generation, jax.device_get(now)._asdict(), state)


def state_of(config: Config, counters: Counters, commit: int | None) -> dict[str, Any]:
    """The state of a checkpoint, as JSON, which has no infinity."""
    numbers: dict[str, Any] = counters._asdict()
    if not math.isfinite(counters.best_score):
        numbers["best_score"] = None
    key = np.asarray(jax.random.key_data(jax.random.key(config.seed))).tolist()
    return {"counters": numbers, "key": key, "lake_commit": commit}
