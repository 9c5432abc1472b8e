"""`live`: what four agents see flows to a fifth, larger learner at once, inside one jitted loop.

    for each iteration, on the device:
        four agents      a PQN update each                       their frames and updates are counted
        the big agent    acts a little itself, by its epsilon     its frames and updates are counted apart
        BigPond          takes all their steps; the oldest leave
        the big agent    DQN on large batches, each step used several times
    between some of them:
        Lake             takes the new steps of the BigPond, in the background

There are no resets and nothing is cloned: the big agent is what comes out. It is less passive than in
`mixture`, for a share of what it learns from is its own. Frames are those of all five together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond import stopping
from lakepond.agents.dqn import DQN, DQNMetrics, DQNSettings, DQNState
from lakepond.agents.epsilon import Epsilon, EpsilonState
from lakepond.agents.fleet import over_agents
from lakepond.agents.pqn import PQN, PQNMetrics, PQNState, act
from lakepond.envs.vector import EnvState
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.lake.format.commits import Start
from lakepond.pond.device import Added, DevicePond, PondState
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers import arena, game_settings
from lakepond.trainers.game_settings import LiveConfig
from lakepond.trainers.limits import check_limits
from lakepond.trainers.loop import Loop
from lakepond.trainers.saving import LAKE
from lakepond.types import Field, Spec

PRESETS = game_settings.LIVE


class LiveState(NamedTuple):
    """All five agents and the BigPond."""

    agents: PQNState
    """with a leading axis"""
    big: DQNState
    big_env: EnvState
    big_epsilon: EpsilonState
    pond: PondState
    key: jax.Array
    iterations: jax.Array
    agents_frames: jax.Array
    """of the four together"""
    big_frames: jax.Array
    """of the one"""


class LiveMetrics(NamedTuple):
    """Summed up over iterations."""

    agents: PQNMetrics
    """with a leading axis"""
    big: DQNMetrics
    big_score: jax.Array
    big_episodes: jax.Array


@dataclass(frozen=True)
class Live:
    """What the settings come to; nothing here changes."""

    config: LiveConfig
    pqn: PQN
    dqn: DQN
    pond: DevicePond
    big_epsilon: Epsilon
    iterations: int
    updates: int
    """gradient steps of the big agent in an iteration"""

    @property
    def agents_frames(self) -> int:
        """Frames of the four in an iteration."""
        return self.config.agents * self.config.pqn.frames

    @property
    def big_frames(self) -> int:
        """Frames of the one in an iteration."""
        return self.config.big_envs * self.config.pqn.rollout

    def init(self, key: jax.Array) -> LiveState:
        """Five new agents and an empty BigPond."""
        config = self.config
        key_agents, key_big, key_env, key_run = jax.random.split(key, 4)
        agents = over_agents(self.pqn.init, jax.random.split(key_agents, config.agents))
        big_env = self.pqn.env.reset(key_env, config.big_envs)
        obs = agents.env.obs.reshape(-1, *agents.env.obs.shape[2:])
        return LiveState(
            agents=agents,
            big=self.dqn.init(self.pqn.network.init(key_big)),
            big_env=big_env,
            big_epsilon=self.big_epsilon.init(),
            pond=self.pond.begin(self.pond.init(), jnp.concatenate([obs, big_env.obs])),
            key=key_run,
            iterations=jnp.int32(0),
            agents_frames=jnp.int32(0),
            big_frames=jnp.int32(0),
        )

    def restored(self, fresh: LiveState, saved: Any) -> LiveState:
        """What was saved; emulators cannot be, so they are fresh, and so is the BigPond that they fill."""
        loaded: LiveState = jax.tree.map(jnp.array, saved)
        if self.pqn.env.resumes:
            return loaded
        agents = arena.restored(fresh.agents, loaded.agents, self.pqn.env)
        return loaded._replace(agents=agents, big_env=fresh.big_env, pond=fresh.pond)

    def iterate(self, state: LiveState) -> tuple[LiveState, LiveMetrics]:
        """One iteration of all five."""
        config = self.config
        key_next, key_act, key_learn = jax.random.split(state.key, 3)
        agents, rollouts, seen = over_agents(self.pqn.update, state.agents, jnp.arange(config.agents))
        big_env, own, score, episodes = self._act(state, key_act)
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), arena.as_lanes(rollouts), own)
        pond = self.pond.add(state.pond, both)
        big, pond, learned = self._learn(state.big, pond, key_learn)
        after = LiveState(
            agents=agents,
            big=big,
            big_env=big_env,
            big_epsilon=self.big_epsilon.advance(state.big_epsilon, self.big_frames),
            pond=pond,
            key=key_next,
            iterations=state.iterations + 1,
            agents_frames=state.agents_frames + self.agents_frames,
            big_frames=state.big_frames + self.big_frames,
        )
        return after, LiveMetrics(seen, learned, score, episodes)

    def _act(self, state: LiveState, key: jax.Array) -> tuple[EnvState, Added, jax.Array, jax.Array]:
        """The big agent's own steps, and the sum and number of the scores of episodes that ended."""
        epsilon = self.big_epsilon.value(state.big_epsilon)

        def step(env: EnvState, key: jax.Array) -> tuple[EnvState, tuple[Added, jax.Array, jax.Array]]:
            key_act, key_env = jax.random.split(key)
            action = act(self.pqn.network.apply(state.big.params, env.obs), epsilon, key_act)
            env, seen = self.pqn.env.step(env, action, key_env)
            added = Added(action, seen.reward, seen.next_obs, seen.terminated, seen.truncated, seen.obs)
            return env, (added, (seen.score * seen.over).sum(), seen.over.sum())

        keys = jax.random.split(key, self.config.pqn.rollout)
        env, (added, score, episodes) = jax.lax.scan(step, state.big_env, keys)
        return env, added, score.sum(), episodes.sum()

    def _learn(
        self, big: DQNState, pond: PondState, key: jax.Array
    ) -> tuple[DQNState, PondState, DQNMetrics]:
        config = self.config

        def step(
            number: int, carry: tuple[DQNState, PondState, DQNMetrics]
        ) -> tuple[DQNState, PondState, DQNMetrics]:
            big, pond, sums = carry
            batch = self.pond.sample(
                pond,
                jax.random.fold_in(key, number),
                config.big_batch,
                n_step=config.big_n_step,
                gamma=config.pqn.gamma,
            )
            big, error, metrics = self.dqn.update(big, batch)
            if config.big_alpha is not None:
                pond = self.pond.update_priorities(pond, jnp.asarray(batch.step_id), error)
            return big, pond, jax.tree.map(jnp.add, sums, metrics)

        zero = DQNMetrics(*[jnp.float32(0)] * 3)
        found: tuple[DQNState, PondState, DQNMetrics] = jax.lax.fori_loop(
            0, self.updates, step, (big, pond, zero)
        )
        return found


def build(config: LiveConfig) -> Live:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, game_settings.LIMITS)
    each = config.agents * config.pqn.frames + config.big_envs * config.pqn.rollout
    arena.check_budget(config.frames, config.portion, each)
    lanes = config.agents * config.pqn.envs + config.big_envs
    capacity = config.big_pond // lanes
    if capacity < config.pqn.rollout:
        raise ConfigError(
            f"a BigPond of {config.big_pond:,} steps is {capacity} a lane, less than a rollout of "
            f"{config.pqn.rollout}; take at least {lanes * config.pqn.rollout:,}."
        )
    env = arena.make_env(config.suite, config.game)
    network = arena.make_network(config.network, env, config.hidden, dueling=config.dueling)
    iterations = config.frames // each

    def epsilon(start: float, frames: int) -> Epsilon:
        kind, end = config.epsilon_kind, config.epsilon_end
        return arena.make_epsilon(kind, start, end, int(frames * iterations * config.epsilon_share))

    pqn = PQN(env, network, epsilon(config.epsilon_start, config.pqn.frames), config.pqn, iterations)
    settings = DQNSettings(
        batch=config.big_batch,
        learning_rate=config.big_learning_rate,
        target_every=config.big_target_every,
        double=config.big_double,
    )
    return Live(
        config=config,
        pqn=pqn,
        dqn=DQN(network, settings),
        pond=DevicePond(
            env.obs, lanes, capacity, rows=_rows(env.obs.rows == 0, capacity), alpha=config.big_alpha
        ),
        big_epsilon=epsilon(config.big_epsilon_start, config.big_envs * config.pqn.rollout),
        iterations=iterations,
        updates=max(1, round(config.big_samples * each / config.big_batch)),
    )


def _rows(stacked: bool, capacity: int) -> int:
    """Rows a lane: for boards a quarter more than steps, for episodes may be short; else the default."""
    return 0 if stacked else capacity + capacity // 4 + 4


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def train(live: Live, state: LiveState, iterations: jax.Array) -> tuple[LiveState, LiveMetrics]:
    """A portion of `iterations` iterations."""

    def iterate(_: int, carry: tuple[LiveState, LiveMetrics]) -> tuple[LiveState, LiveMetrics]:
        state, seen = live.iterate(carry[0])
        return state, jax.tree.map(jnp.add, carry[1], seen)

    four = jax.tree.map(lambda x: jnp.zeros(live.config.agents, x.dtype), PQNMetrics.zero())
    zero = LiveMetrics(four, DQNMetrics(*[jnp.float32(0)] * 3), jnp.float32(0), jnp.int32(0))
    found: tuple[LiveState, LiveMetrics] = jax.lax.fori_loop(0, iterations, iterate, (state, zero))
    return found


@stopping.deferring("portion")
def run(
    config: LiveConfig,
    folder: str | Path,
    *,
    loggers: Sequence[Logger] = (),
    start_over: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train to the end in a run's folder, from its last checkpoint if there is one; returns the metrics.

    `start_over`: move what the folder holds to a dated folder first.
    """
    how = Resume(start_over=start_over)
    live = build(config)
    evaluate = arena.make_evaluate(
        arena.make_env(config.suite, config.game, evaluates=True),
        live.pqn.network,
        config.evaluation_episodes,
        epsilon=config.evaluation_epsilon,
        most_steps=config.evaluation_steps,
    )
    state = live.init(jax.random.PRNGKey(config.seed))
    told: dict[str, Any] = {}
    step = max(1, config.portion // (live.agents_frames + live.big_frames))
    with Run.create(
        folder,
        "live",
        config,
        loggers=loggers,
        keep_last=1,
        keep_every=config.keep_every,
        prepare=how.prepare,
    ) as kept:
        arrays = {"all": state, "policy": state.big.params}
        noted = {"frames": 0, "lake_commit": None}
        checkpoint, lake = how.take_up(kept, arrays, noted, partial(_open_lake, live, kept))
        del arrays
        if checkpoint is not None:
            state = live.restored(state, checkpoint.arrays["all"])
            tell(f"resuming from checkpoint {checkpoint.number}, {checkpoint.state['frames']:,} frames")
        with Loop(kept, lake, Guard(kept.folder, unit="evaluation")) as loop:
            while (done := int(state.iterations)) < live.iterations and loop.goes_on():
                count = min(step, live.iterations - done)
                began = time.perf_counter()
                state, sums = _portion(live, state, count, lake, loop)
                told = _told(live, state, sums, count)
                frames = told["agents_frames"] + told["big_frames"]
                told["frames_per_second"] = (
                    count * (live.agents_frames + live.big_frames) / (time.perf_counter() - began)
                )
                told |= arena.evaluated(evaluate, state.big.params, frames, greedy=config.evaluation_greedy)
                number = -(-int(state.iterations) // step)
                loop.log(frames, told, number)
                tell(
                    f"{frames:>10,} frames  score {told['score']:6.2f}  evaluation {told['evaluation']:6.2f}"
                )
                at_end = int(state.iterations) == live.iterations
                loop.save(
                    partial(_save, kept, loop, number, state, frames, lake),
                    due=number % config.checkpoint_every == 0 or at_end,
                )
    return told


def _save(kept: Run, loop: Loop, number: int, state: LiveState, frames: int, lake: DeviceLake | None) -> None:
    """A checkpoint, once the lake has all steps, which it names a commit of."""
    commit = None if lake is None else loop.attempt(LAKE, lake.wait)
    if LAKE not in loop.failing:
        noted = {"frames": frames, "lake_commit": None if commit is None else commit.number}
        loop.checkpoint(partial(kept.save, number, {"all": state, "policy": state.big.params}, noted))


def _open_lake(live: Live, kept: Run, commit: int | Start) -> DeviceLake | None:
    """The lake as it was at a commit, or empty; none if the settings say so."""
    if not live.config.lake:
        return None
    spec = Spec(obs=live.pqn.env.obs, action=Field((), "int32"))
    return DeviceLake(kept.lake_folder, spec, commit=commit)


def _portion(
    live: Live, state: LiveState, iterations: int, lake: DeviceLake | None, loop: Loop
) -> tuple[LiveState, LiveMetrics]:
    """Run the iterations in parts that the BigPond still holds when they are poured; waits for them."""
    rollout = live.config.pqn.rollout
    most = iterations if lake is None else max(1, live.pond.capacity // 2 // rollout)
    sums: Any = None
    for at in range(0, iterations, most):
        stopping.check()
        poured = int(state.pond.steps)
        state, new = train(live, state, min(most, iterations - at))
        sums = new if sums is None else jax.tree.map(jnp.add, sums, new)
        if lake is not None:
            frames = int(state.agents_frames) + int(state.big_frames)
            loop.make_room(lake)
            arena.pour_new(live.pond, state.pond, poured, lake, {"frames": frames})
    return state, jax.tree.map(np.asarray, sums)


def _told(live: Live, state: LiveState, sums: LiveMetrics, iterations: int) -> dict[str, Any]:
    """What is logged of a portion; the counters of the four and of the one apart."""
    updates = iterations * live.updates
    frames = int(state.agents_frames)
    return arena.means(sums.agents, iterations) | {
        "agents_frames": frames,
        "agents_updates": int(state.agents.updates[0]),
        "big_frames": int(state.big_frames),
        "big_updates": int(state.big.updates),
        "big_score": float(sums.big_score) / max(int(sums.big_episodes), 1),
        "big_loss": float(sums.big.loss / updates),
        "big_value": float(sums.big.value / updates),
        "big_epsilon": float(live.big_epsilon.value(state.big_epsilon)),
        "big_pond_steps": int(live.pond.held(state.pond)),
        "samples": frames * live.config.pqn.epochs + int(state.big.updates) * live.config.big_batch,
    }
