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
checkpoint names.
So a run that was killed and resumed ends with the same bits as one that was not.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lakepond import stopping
from lakepond.agents import ddpg, population
from lakepond.agents.market_network import Array, Params
from lakepond.flow.pond_and_lake import MOST_WAITING
from lakepond.guards import Guard
from lakepond.lake.format.commits import Commit
from lakepond.replay import Replay
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.erl_metrics import clock, describe, learner_place
from lakepond.trainers.erl_settings import MAY_CHANGE
from lakepond.trainers.erl_settings import PRESETS as PRESETS
from lakepond.trainers.erl_settings import Config as Config
from lakepond.trainers.erl_state import Counters, Evolving, begin, hand_over, learner_settings, save
from lakepond.trainers.market_rollout import Episodes, Player, play, score
from lakepond.trainers.market_stage import NAMES, Market, check, open_market, write_names
from lakepond.trainers.pushing import Pushing
from lakepond.trainers.saving import CHECKPOINTS, LAKE, LOG, Saver
from lakepond.types import WindowRef

WINDOWS = ("obs['window']", "next_obs['window']")
"""what the learner leaves in the replay: it reads the summaries of those days instead"""


@stopping.deferring("generation")
def train(
    config: Config,
    folder: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    start_over: bool = False,
    loggers: Sequence[Logger] = (),
    on_generation: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Train into `folder`; returns the metrics of the last generation.

    `resume`: continue the run in `folder` from its newest checkpoint that can be used; `resume_from`: from
    that one. Without either a folder that holds a run, or other experience, is refused; `start_over` moves
    those files to a dated folder first. `on_generation` is called with the metrics of each generation.
    """
    how = Resume(
        required=resume or resume_from is not None,
        allowed=resume or resume_from is not None,
        number=resume_from,
        start_over=start_over,
    )
    how.find(folder)
    check(config)
    market = open_market(config)
    settings = learner_settings(config)
    key = jax.random.key(config.seed)
    with ExitStack() as stack:
        run = stack.enter_context(
            Run.create(
                folder,
                "erl",
                config,
                may_change=MAY_CHANGE,
                loggers=loggers,
                keep_last=config.keep_last,
                keep_every=config.keep_every,
                prepare=how.prepare,
            )
        )
        now, counters, replay = begin(config, run, market, settings, key, how)
        committed = replay.flush()
        saver = Saver(run, lambda: replay.stats().recorded - (0 if committed is None else committed.recorded))
        stack.callback(saver.close, replay)
        saver.attempt(NAMES, partial(write_names, market, run.folder))
        saving_thread = stack.enter_context(ThreadPoolExecutor(1, "lakepond-save"))
        pushing = Pushing(run.folder, config.push_to)
        guard = Guard(
            run.folder, min_free=config.warn_free, at_floor=config.at_floor, last=config.generations
        )
        new_steps = config.sizes.total * config.episodes * config.rules.trading_days
        committing: Future[Commit] | None = None
        saving: Future[Path] | None = None
        last: dict[str, Any] = {}

        def save_again() -> None:
            """What the last generation could not save, or did not because of the guard."""
            nonlocal committed, committing
            committing = committing or hand_over(replay, counters.generation)
            committed = saver.attempt(LAKE, replay.flush) or committed
            saver.attempt(NAMES, partial(write_names, market, run.folder))
            if LAKE not in saver.failing and committed is not None:
                saver.checkpoint(partial(save, run, now, counters, committed, key))

        while counters.generation < config.generations:
            stopping.check()
            began, number = time.perf_counter(), counters.generation + 1
            if saver.uncommitted() + new_steps > (1 + MOST_WAITING) * config.capacity:
                why = f"because {saver.uncommitted():,} steps are held in memory"
                committed = saver.require(LAKE, replay.flush, why)
            last, held = {"generation": number}, 0.0
            key_explore, key_evolve = jax.random.split(jax.random.fold_in(key, number))
            rng = np.random.default_rng([config.seed, number])

            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "a commit failed")  # the saver reports it
                record(config, market, replay, now.population, rng, key_explore)
            waited = time.perf_counter()
            committing = None
            if guard.saving or saver.uncommitted() + new_steps > config.capacity:
                committing = hand_over(replay, number)
            held += time.perf_counter() - waited

            learner, told = learn(config, market, replay, now.learner, settings, rng)
            last |= told
            starts = market.history.splits.starts("train", config.rules)
            days = jnp.asarray(rng.choice(starts, config.fitness_episodes))
            fitness = score(now.population, days, market.world, player(config)).mean(axis=1)
            best, counters, scores = validate(config, market, now, learner, fitness, counters)
            last |= {"validation": float(scores.max()), "validation_learner": float(scores[-1])}
            now = Evolving(
                next_population(config, key_evolve, now.population, fitness, learner, best, number, counters),
                best,
                learner,
            )
            jax.block_until_ready(now)  # type: ignore[no-untyped-call]
            worked = time.perf_counter() - began

            waited = time.perf_counter()
            if saving is not None:  # of the last generation; it marks the metrics before ours are logged
                saver.attempt(CHECKPOINTS, saving.result)
                saving = None
            if committing is not None:
                committed = saver.attempt(LAKE, committing.result) or committed
            held += time.perf_counter() - waited
            counters = counters._replace(
                generation=number,
                gradient_steps=counters.gradient_steps + int(told["gradient_steps"]),
                held_seconds=counters.held_seconds + held,
                train_seconds=counters.train_seconds + worked + held,
            )
            last |= describe(fitness, counters, replay, learner_place(config, number, fitness))
            last |= clock(config, counters, worked + held, held, replay, committed)
            last |= guard.check(number)
            saver.attempt(LOG, partial(run.log, number, last))
            if NAMES in saver.failing:
                saver.attempt(NAMES, partial(write_names, market, run.folder))
            # without a commit of this generation there is no checkpoint of it
            if committing is not None and LAKE not in saver.failing and committed is not None:
                saving = saving_thread.submit(save, run, now, counters, committed, key)
                if number % config.push_every == 0:
                    pushing.begin(saving.result)
            saver.report()
            on_generation(last)
            if guard.stopping:
                break
        if last:
            if saving is not None:
                saver.attempt(CHECKPOINTS, saving.result)
            if saving is None or saver.failing:
                save_again()
            saver.finish(save_again)
            pushing.finish()
        return last or run.last_line()  # all generations were there already


# --- a generation ----------------------------------------------------------------------------------


def player(config: Config, noise: float = 0.0) -> Player:
    """How agents play."""
    return Player(config.rules, noise, config.together, config.dtype)


def record(
    config: Config, market: Market, replay: Replay, agents: Params, rng: np.random.Generator, key: Array
) -> None:
    """Let all agents play the same days, with noise, and record every step: windows by reference."""
    starts = jnp.asarray(
        rng.choice(market.history.splits.starts("train", config.rules), config.episodes, replace=False)
    )
    seen: Episodes = jax.device_get(play(agents, starts, key, market.world, player(config, config.noise)))
    source = market.source
    for agent in range(config.sizes.total):
        for episode in range(config.episodes):
            day, next_day = seen.day[agent, episode], seen.next_day[agent, episode]
            position = seen.position[agent, episode]
            replay.record(
                obs={"window": WindowRef(source, np.asarray(day + 1)), "position": position[:-1]},
                action=seen.action[agent, episode],
                reward=seen.result.reward[agent, episode],
                next_obs={"window": WindowRef(source, np.asarray(next_day + 1)), "position": position[1:]},
                terminated=seen.result.terminated[agent, episode],
                truncated=np.zeros(len(day), np.bool_),
                stream=agent,
                day=day,
                next_day=next_day,
            )


_learn = jax.jit(ddpg.learn, static_argnames="settings")
CHUNK = 32
"""gradient steps of one program; their batches are sampled together"""


def learn(
    config: Config,
    market: Market,
    replay: Replay,
    learner: ddpg.Learner,
    settings: ddpg.Settings,
    rng: np.random.Generator,
) -> tuple[ddpg.Learner, dict[str, Any]]:
    """Gradient steps on uniform batches of the replay; none before it holds `learn_from` steps."""
    if len(replay) < config.learn_from or config.gradient_steps == 0:
        return learner, {"gradient_steps": 0}
    told: dict[str, Any] = {}
    chunks = -(-config.gradient_steps // CHUNK)
    for _ in range(chunks):
        batch = replay.sample(CHUNK * config.batch_size, rng=rng, exclude=WINDOWS)
        steps = ddpg.Steps(
            day=batch.extras["day"],
            position=batch.obs["position"],
            action=batch.action,
            reward=batch.reward * np.float32(config.reward_scale),
            next_day=batch.extras["next_day"],
            next_position=batch.next_obs["position"],
            terminated=batch.terminated,
        )
        folded = jax.tree.map(lambda x: x.reshape(CHUNK, config.batch_size, *x.shape[1:]), steps)
        learner, told = _learn(learner, folded, market.world.summaries, settings=settings)
    return learner, {"gradient_steps": chunks * CHUNK} | {name: float(value) for name, value in told.items()}


def validate(
    config: Config,
    market: Market,
    now: Evolving,
    learner: ddpg.Learner,
    fitness: Array,
    counters: Counters,
) -> tuple[Params, Counters, Array]:
    """Elites and, last, learner on validation days; the best score ever makes the champion."""
    elites = population.take(now.population, population.ranking(fitness)[: config.elites])
    judged = jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), elites, learner.actor)
    days = jnp.asarray(market.history.splits.slices("validation", config.rules, config.validation_slices))
    scores = score(judged, days, market.world, player(config)).mean(axis=1)
    winner = int(jnp.argmax(scores))
    counters = counters._replace(stalled=counters.stalled + 1)
    best = now.best
    if float(scores[winner]) > counters.best_score:
        best = population.take(judged, winner)
        counters = counters._replace(
            best_score=float(scores[winner]), best_generation=counters.generation + 1, stalled=0
        )
    mutation = population.Mutation(
        config.mutation_rate, config.mutation_std, config.mutation_std_max, patience=config.patience
    )
    std = population.adapt(counters.std, counters.stalled, mutation)
    return best, counters._replace(std=std), scores


_evolve = jax.jit(population.evolve, static_argnames=("sizes", "k", "alpha"))


def next_population(
    config: Config,
    key: Array,
    agents: Params,
    fitness: Array,
    learner: ddpg.Learner,
    best: Params,
    number: int,
    counters: Counters,
) -> Params:
    """Evolve; learner and champion take the places of the last two mutants."""
    agents = _evolve(
        key,
        agents,
        fitness,
        config.sizes,
        config.mutation_rate,
        counters.std,
        k=config.tournament,
        alpha=(config.blend_low, config.blend_high),
    )
    if number % config.inject_every == 0:
        agents = population.put(agents, config.sizes.total - 2, best)
        agents = population.put(agents, config.sizes.total - 1, learner.actor)
    return agents
