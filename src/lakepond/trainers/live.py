"""`live`: what four agents see flows to a fifth, the big agent, at once, inside one jitted loop.

    for each iteration, on the device:
        four agents      a PQN update each                       their steps and updates are counted
        the big agent    acts itself, by its epsilon              its steps and updates are counted apart
        BigPond          takes all their steps; the oldest leave
        the big agent    learns, each step used several times:
                         dqn: from large batches of the BigPond, with a target network
                         pqn: Q(lambda) from its own rollout and sequences of the BigPond, half and half
        four agents      continue as copies of the big agent, every `clone_every` steps if that is not 0
    between some of them:
        Lake             takes the new steps of the BigPond, in the background

A checkpoint has no observations of the BigPond, because the Lake has them: a run that is resumed reads them
from there. Without a Lake, or one with too low a `max_steps`, they are in the checkpoint.

The big agent is what comes out. It is less passive than in `mixture`, because it acts in `big_envs` of all
environments itself. With `big_learner="pqn"` and `clone_every` this is the mixture whose BigAgent acts and
learns all the time. Environment steps are those of all five together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from lakepond import lazy, stopping
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError, LakeCorrupt
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.lake.read.lake import Lake
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.limits import ABOVE_0, Limits, check_limits
from lakepond.trainers.loop import Loop, create_run
from lakepond.trainers.pushing import Pushing

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from lakepond.agents import dqn, fleet, pqn, replay
    from lakepond.agents.dqn import DQN, DQNMetrics, DQNState
    from lakepond.agents.epsilon import Epsilon, EpsilonState
    from lakepond.agents.pqn import PQN, PQNMetrics, PQNState
    from lakepond.envs.vector import EnvState
    from lakepond.pond import device, device_load
    from lakepond.pond.device import Added, DevicePond, PondState
    from lakepond.trainers import arena
else:  # `lakepond train live --help` reads the settings below and imports none of these
    jax, jnp = lazy.Module("jax"), lazy.Module("jax.numpy")
    dqn, pqn = lazy.Module("lakepond.agents.dqn"), lazy.Module("lakepond.agents.pqn")
    fleet, arena = lazy.Module("lakepond.agents.fleet"), lazy.Module("lakepond.trainers.arena")
    device, replay = lazy.Module("lakepond.pond.device"), lazy.Module("lakepond.agents.replay")
    device_load = lazy.Module("lakepond.pond.device_load")

READ_BYTES = 32 << 20
"""bytes of observations read from the lake at a time when a run is resumed"""


@dataclass(frozen=True)
class LiveConfig:
    """All settings of a run."""

    game: str = "Breakout"
    """game of the suite; for gymnasium and gymnax an id, or MODULE:ID; for module MODULE:FUNCTION"""
    suite: Literal["minatar", "atari", "gymnasium", "gymnax", "module"] = "minatar"
    """minatar, gymnax: on the device; atari: ale-py; gymnasium: on the host; module: your own"""
    frame_stack: int = 4
    """frames per observation, on Atari"""
    env_steps: int = 1_000_000
    """total environment steps of all agents; on Atari each is four frames of the emulator"""
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
    """share of an agent's steps until epsilon_end is reached"""

    big_envs: int = 32
    """environments in which the big agent acts itself"""
    big_epsilon_start: float = 1.0
    """initial probability of a random action of the big agent"""
    big_pond: int = 200_000
    """transitions that the big agent's pond holds"""
    lake: bool = True
    """also pour all steps into a lake, before they leave the pond"""
    big_learner: Literal["dqn", "pqn"] = "dqn"
    """dqn: on batches of the pond; pqn: Q(lambda) on its own rollout and on sequences of the pond"""
    big_replay_share: float = 0.5
    """pqn: share of each epoch that is drawn from the pond; the rest is its newest rollout"""
    big_replay_ratio: float = 4.0
    """average number of times the big agent trains on a transition, above 0"""
    clone_every: int = 0
    """environment steps after which the agents continue as copies of the big agent; 0: never"""
    big_batch: int = 512
    """dqn: transitions per gradient step of the big agent; small batches learn worse"""
    big_learning_rate: float = 3e-4
    """dqn: learning rate of the big agent (Adam); pqn has that of the agents"""
    big_target_every: int = 500
    """gradient steps between two updates of the big agent's target network"""
    big_double: bool = True
    """double Q-learning"""
    big_n_step: int = 3
    """n of the n-step returns"""
    big_alpha: float | None = None
    """sample with probability proportional to priority ** alpha; not given: uniformly"""

    evaluation_episodes: int = 64
    """episodes per evaluation"""
    evaluation_epsilon: float = 0.001
    """probability of a random action in evaluations"""
    evaluation_greedy: bool = True
    """also evaluate without random actions; takes twice the time"""
    evaluation_steps: int = 27_000
    """steps after which an evaluation episode is cut off"""
    checkpoint_every: int = 4
    """evaluations between two checkpoints; the end always writes one"""
    keep_every: int = field(default=0, compare=False)
    """keep every n-th checkpoint besides the last; without a lake each contains the big agent's pond"""
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
    def agents_steps(self) -> int:
        """Environment steps of the four in an iteration."""
        return self.agents * self.pqn.update_steps

    @property
    def big_steps(self) -> int:
        """Environment steps of the one in an iteration."""
        return self.big_envs * self.pqn.rollout

    @property
    def steps(self) -> int:
        """Environment steps of an iteration."""
        return self.agents_steps + self.big_steps

    @property
    def iterations(self) -> int:
        """Iterations in the run."""
        return self.env_steps // self.steps

    @property
    def big_pqn(self) -> PQNSettings:
        """The big agent as one of PQN, with minibatches of the size of the agents'."""
        return replace(
            self.pqn,
            envs=self.big_envs,
            minibatches=max(1, self.big_envs * self.pqn.minibatches // self.pqn.envs),
            epochs=max(1, round(self.big_replay_ratio * self.steps / self.big_steps)),
        )


PRESETS: dict[str, LiveConfig] = {
    "minatar": LiveConfig(),
    "published": LiveConfig(env_steps=10_000_000, evaluate_every=409_600, network="cnn", big_pond=1_000_000),
    "atari": LiveConfig(
        suite="atari",
        env_steps=10_000_000,
        evaluate_every=500_000,
        network="nature",
        pqn=PQNSettings(envs=32, minibatches=8, learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": LiveConfig(
        env_steps=12_288,
        evaluate_every=2_560,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        big_envs=8,
        big_pond=4_000,
        big_replay_ratio=0.5,
        big_batch=64,
        evaluation_episodes=4,
    ),
}
"""minatar: minutes; published: the settings of PQN's authors; tiny: seconds, to test an installation"""

LIMITS: Limits = {
    name: limits
    for limits, names in {
        (1, inf): "env_steps evaluate_every frame_stack hidden agents big_envs big_pond big_batch "
        "big_target_every big_n_step evaluation_episodes evaluation_steps checkpoint_every max_steps "
        "keep_last push_every envs rollout epochs minibatches",
        (0, 1): "epsilon_start epsilon_end epsilon_share evaluation_epsilon big_epsilon_start "
        "big_replay_share gamma lam",
        (0, inf): "seed keep_every clone_every big_learning_rate big_alpha learning_rate",
        (ABOVE_0, inf): "big_replay_ratio max_gradient",
    }.items()
    for name in names.split()
}
"""of every number, those of PQN included"""


# --- an iteration --------------------------------------------------------------------------------------


class LiveState(NamedTuple):
    """All five agents and the BigPond."""

    agents: PQNState
    """with a leading axis"""
    big: DQNState | PQNState
    big_env: EnvState | None
    """of DQN; PQN has its own, as its epsilon"""
    big_epsilon: EpsilonState | None
    pond: PondState
    key: jax.Array
    iterations: jax.Array
    agents_frames: jax.Array
    """environment steps of the four together, under the name that checkpoints have for them"""
    big_frames: jax.Array
    """environment steps of the one"""


class LiveMetrics(NamedTuple):
    """Metrics, summed over iterations."""

    agents: PQNMetrics
    """with a leading axis"""
    big: DQNMetrics
    big_score: jax.Array
    big_episodes: jax.Array


@dataclass(frozen=True)
class LiveAlgorithm:
    """The algorithm for some settings; nothing here changes."""

    config: LiveConfig
    pqn: PQN
    dqn: DQN
    pond: DevicePond
    big_epsilon: Epsilon
    big_pqn: PQN
    """only for `big_learner` pqn"""
    updates: int
    """gradient steps of the big agent in an iteration"""
    batch: int
    """transitions of each of them"""

    def init(self, key: jax.Array) -> LiveState:
        """Five new agents and an empty BigPond."""
        config = self.config
        key_agents, key_big, key_env, key_run = jax.random.split(key, 4)
        keys = jax.random.split(key_agents, config.agents)
        agents = fleet.over_agents(self.pqn.init, keys, divide=self.pqn.env.resumes)
        big: DQNState | PQNState
        big_env, big_epsilon = None, None
        if config.big_learner == "pqn":
            big = self.big_pqn.init(key_big)
        else:
            big = self.dqn.init(self.pqn.network.init(key_big))
            big_env, big_epsilon = self.pqn.env.reset(key_env, config.big_envs), self.big_epsilon.init()
        return LiveState(
            agents=agents,
            big=big,
            big_env=big_env,
            big_epsilon=big_epsilon,
            pond=begin(self.pond, self.pond.init(), self.lane_obs(agents, big, big_env)),
            key=key_run,
            iterations=jnp.int32(0),
            agents_frames=jnp.int32(0),
            big_frames=jnp.int32(0),
        )

    def lane_obs(self, agents: PQNState, big: DQNState | PQNState, big_env: EnvState | None) -> jax.Array:
        """What all five see now, in the order of the BigPond's lanes."""
        own = cast("PQNState", big).env if big_env is None else big_env
        return jnp.concatenate([agents.env.obs.reshape(-1, *self.pond.obs.shape), own.obs])

    @property
    def rows_in_lake(self) -> bool:
        """Whether the lake has all steps of the BigPond at any time, so that checkpoints need no rows of it.

        A pour adds at most `capacity` steps per lane, one lane after another, and the oldest leave first.
        """
        kept = inf if self.config.max_steps is None else self.config.max_steps
        return self.config.lake and kept >= 2 * self.pond.lanes * self.pond.capacity

    def saved(self, state: LiveState) -> dict[str, Any]:
        """The arrays of a checkpoint."""
        policy = state.big.params
        if self.rows_in_lake:
            state = state._replace(pond=state.pond._replace(rows=None))  # type: ignore[arg-type]
        return {"all": state, "policy": policy}

    def restored(self, fresh: LiveState, saved: Any, lake: Lake | None) -> LiveState:
        """The state of a checkpoint, with rows of the BigPond that are not in it read from the lake.

        lake: at the commit of the checkpoint; None: without any steps. Emulators cannot be saved, so they are
        fresh and new episodes begin. The memory of the fresh BigPond is reused, so `fresh` is invalid then.
        """
        rows = fresh.pond.rows
        if saved.pond.rows is not None:
            rows.delete()  # or there would be three copies
        state: LiveState = jax.tree.map(jnp.array, saved)
        if saved.pond.rows is None:
            pond = state.pond._replace(rows=rows)
            pond = pond if lake is None else read_rows(self.pond, pond, lake)
            obs = self.lane_obs(
                state.agents, state.big, state.big_env
            )  # no step has the first of an episode yet
            lanes = np.arange(self.pond.lanes)
            rows = device_load.write_observations(self.pond, pond.rows, lanes, pond.cursor - 1, obs)
            state = state._replace(pond=pond._replace(rows=rows))
        if self.pqn.env.resumes:
            return state
        agents, big = arena.restored(fresh.agents, state.agents, self.pqn.env), state.big
        if self.config.big_learner == "pqn":
            big = arena.restored(cast("PQNState", fresh.big), big, self.pqn.env)
        pond = begin(self.pond, state.pond, self.lane_obs(agents, big, fresh.big_env))
        return state._replace(agents=agents, big=big, big_env=fresh.big_env, pond=pond)

    def iterate(self, state: LiveState) -> tuple[LiveState, LiveMetrics]:
        """One iteration of all five."""
        config = self.config
        numbers = jnp.arange(config.agents)
        agents, rollouts, seen = fleet.over_agents(
            self.pqn.update, state.agents, numbers, divide=self.pqn.env.resumes
        )
        big_turn = self._pqn if config.big_learner == "pqn" else self._dqn
        state, learned, score, episodes = big_turn(state, arena.as_lanes(rollouts))
        iterations = state.iterations + 1
        if config.clone_every:
            due = iterations % max(1, config.clone_every // config.steps) == 0
            big = fleet.repeat(state.big.params, config.agents)
            params = jax.tree.map(lambda own, new: jnp.where(due, new, own), agents.params, big)
            agents = agents._replace(params=params)
        after = state._replace(
            agents=agents,
            iterations=iterations,
            agents_frames=state.agents_frames + config.agents_steps,
            big_frames=state.big_frames + config.big_steps,
        )
        return after, LiveMetrics(seen, learned, score, episodes)

    def _add(self, pond: PondState, lanes: Added, own: Added) -> PondState:
        """The BigPond with the steps of the four and of the one."""
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b], axis=1), lanes, own)
        return self.pond.add(pond, both)

    def _pqn(self, state: LiveState, lanes: Added) -> tuple[LiveState, DQNMetrics, jax.Array, jax.Array]:
        """The big agent acts and learns with PQN that replays; also its metrics and those of its episodes."""
        own = cast("PQNState", state.big)
        seen = self.big_pqn.collect(own)
        pond = self._add(state.pond, lanes, replay.as_added(seen.rollout))
        draw, share = partial(self.pond.sample_windows, pond), self.config.big_replay_share
        big, metrics = replay.learn(self.big_pqn, own, seen, draw, share=share)
        means = (metrics.loss, metrics.value, metrics.gradient)
        learned = dqn.DQNMetrics(*(self.updates * mean for mean in means))
        return state._replace(big=big, pond=pond), learned, metrics.score, metrics.episodes

    def _dqn(self, state: LiveState, lanes: Added) -> tuple[LiveState, DQNMetrics, jax.Array, jax.Array]:
        """The big agent acts, and learns with DQN; also its metrics and those of its episodes."""
        key_next, key_act, key_learn = jax.random.split(state.key, 3)
        big_env, own, score, episodes = self._act(state, key_act)
        pond = self._add(state.pond, lanes, own)
        big, pond, learned = self._learn(cast("DQNState", state.big), pond, key_learn)
        epsilon = self.big_epsilon.advance(cast("EpsilonState", state.big_epsilon), self.config.big_steps)
        after = state._replace(big=big, big_env=big_env, big_epsilon=epsilon, pond=pond, key=key_next)
        return after, learned, score, episodes

    def _act(self, state: LiveState, key: jax.Array) -> tuple[EnvState, Added, jax.Array, jax.Array]:
        """The big agent's own steps, and the sum and number of the scores of episodes that ended."""
        epsilon = self.big_epsilon.value(cast("EpsilonState", state.big_epsilon))

        def step(env: EnvState, key: jax.Array) -> tuple[EnvState, tuple[Added, jax.Array, jax.Array]]:
            key_act, key_env = jax.random.split(key)
            action = pqn.act(self.pqn.network.apply(state.big.params, env.obs), epsilon, key_act)
            env, seen = self.pqn.env.step(env, action, key_env)
            added = device.Added(
                action, seen.reward, seen.next_obs, seen.terminated, seen.truncated, seen.obs
            )
            return env, (added, (seen.score * seen.over).sum(), seen.over.sum())

        keys = jax.random.split(key, self.config.pqn.rollout)
        env = cast("EnvState", state.big_env)
        env = fleet.spread(env) if self.pqn.env.resumes else env
        env, (added, score, episodes) = jax.lax.scan(step, env, keys)
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

        zero = dqn.DQNMetrics(*[jnp.float32(0)] * 3)
        found: tuple[DQNState, PondState, DQNMetrics] = jax.lax.fori_loop(
            0, self.updates, step, (big, pond, zero)
        )
        return found


def build(config: LiveConfig) -> LiveAlgorithm:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, LIMITS)
    arena.check_budget(config.env_steps, "evaluate_every", config.evaluate_every, config.steps)
    lanes = config.agents * config.pqn.envs + config.big_envs
    capacity = config.big_pond // lanes
    if capacity < config.pqn.rollout:
        raise ConfigError(
            f"a BigPond of {config.big_pond:,} steps is {capacity} a lane, less than a rollout of "
            f"{config.pqn.rollout}; take at least {lanes * config.pqn.rollout:,}."
        )
    if config.big_learner == "pqn" and config.big_alpha is not None:
        raise ConfigError("big_alpha needs big_learner dqn; pqn draws its sequences uniformly.")
    env = arena.make_env(config)
    network = arena.network_of(config, env)

    def epsilon(start: float, env_steps: int) -> Epsilon:
        kind, end = config.epsilon_kind, config.epsilon_end
        count = int(env_steps * config.iterations * config.epsilon_share)
        return arena.make_epsilon(kind, start, end, count)

    of_agents = epsilon(config.epsilon_start, config.pqn.update_steps)
    big_epsilon, own = epsilon(config.big_epsilon_start, config.big_steps), config.pqn
    batch = config.big_batch
    updates = max(1, round(config.big_replay_ratio * config.steps / batch))
    if config.big_learner == "pqn":
        own = config.big_pqn
        batch, updates = own.update_steps // own.minibatches, own.epochs * own.minibatches
    settings = dqn.DQNSettings(
        batch=config.big_batch,
        learning_rate=config.big_learning_rate,
        target_every=config.big_target_every,
        double=config.big_double,
    )
    # boards: a quarter more rows than steps, because episodes may be short; stacks: the default
    rows = 0 if env.obs.rows == 0 else capacity + capacity // 4 + 4
    return LiveAlgorithm(
        config=config,
        pqn=pqn.PQN(env, network, of_agents, config.pqn, config.iterations),
        dqn=dqn.DQN(network, settings, spread=env.resumes),
        pond=device.DevicePond(env.obs, lanes, capacity, rows=rows, alpha=config.big_alpha),
        big_epsilon=big_epsilon,
        big_pqn=pqn.PQN(env, network, big_epsilon, own, config.iterations, spread=env.resumes),
        updates=updates,
        batch=batch,
    )


@lazy.jit(static_argnums=0, donate_argnums=1)
def begin(shape: DevicePond, pond: PondState, obs: jax.Array) -> PondState:
    """`DevicePond.begin` without a copy of the rows."""
    return shape.begin(pond, obs)


def read_rows(shape: DevicePond, pond: PondState, lake: Lake) -> PondState:
    """Read the rows of all steps of a pond from a lake whose newest steps of stream i are those of lane i.

    All else is in the pond. The memory of its rows is reused, so `pond` is invalid afterwards.
    """
    rows, oldest = pond.rows, np.asarray(pond.oldest)
    at, next_at, action = (np.asarray(column) for column in (pond.at, pond.next_at, pond.action))
    missing = np.full(shape.lanes, int(pond.steps))  # of each lane: all steps before this one
    stop, same = lake.commit.recorded, True
    first, count = stop - len(lake), max(1, READ_BYTES // (2 * shape.obs.nbytes))
    while (missing > oldest).any() and stop > first:
        start = max(first, stop - count)
        seen = lake.steps(start, stop)
        lane = np.asarray(seen.stream)
        counts = np.bincount(lane, minlength=shape.lanes)
        missing -= counts
        step = np.empty(len(lane), int)
        step[np.argsort(lane, kind="stable")] = np.concatenate(
            [np.arange(number, number + some) for number, some in zip(missing, counts, strict=True)]
        )
        place, live = (lane, step % shape.capacity), step >= oldest[lane]
        same &= bool((action[place] == seen.action)[live].all())
        lane = np.where(live, lane, shape.lanes)
        rows = device_load.write_observations(shape, rows, lane, at[place], np.asarray(seen.obs))
        rows = device_load.write_observations(shape, rows, lane, next_at[place], np.asarray(seen.next_obs))
        stop = start
    if not same or (missing > oldest).any():
        raise LakeCorrupt(f"{lake.path} does not have the steps of the checkpoint; resume from another one.")
    return pond._replace(rows=rows)


@lazy.jit(static_argnums=0, donate_argnums=1)
def train(live: LiveAlgorithm, state: LiveState, iterations: int) -> tuple[LiveState, LiveMetrics]:
    """A portion of `iterations` iterations."""

    def iterate(_: int, carry: tuple[LiveState, LiveMetrics]) -> tuple[LiveState, LiveMetrics]:
        state, seen = live.iterate(carry[0])
        return state, jax.tree.map(jnp.add, carry[1], seen)

    four = jax.tree.map(lambda x: jnp.zeros(live.config.agents, x.dtype), pqn.PQNMetrics.zero())
    zero = LiveMetrics(four, dqn.DQNMetrics(*[jnp.float32(0)] * 3), jnp.float32(0), jnp.int32(0))
    found: tuple[LiveState, LiveMetrics] = jax.lax.fori_loop(0, iterations, iterate, (state, zero))
    return found


@stopping.deferring("portion")
def run(
    config: LiveConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    resume_from: int | None = None,
    start_over: bool = False,
    loggers: Sequence[Logger] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train to the end in `folder`, from the newest usable checkpoint there if it has a run; returns metrics.

    `resume`: there must be a run; `resume_from`: continue from that checkpoint; `start_over`: move what the
    folder holds to a dated folder first.
    """
    how = Resume(required=resume or resume_from is not None, number=resume_from, start_over=start_over)
    how.find(folder)
    live = build(config)
    evaluate = arena.evaluator_of(config, live.pqn.network)
    state = live.init(jax.random.PRNGKey(config.seed))
    metrics: dict[str, Any] = {}
    step = max(1, config.evaluate_every // config.steps)
    with create_run(folder, "live", config, how, loggers, keep_last=1) as kept:
        state, lake = _take_up(live, state, kept, how, tell)
        guard, pushing = Guard(kept.folder, unit="evaluation"), Pushing(kept.folder, config.push_to)
        with Loop(kept, lake, guard, pushing=pushing) as loop:
            while (done := int(state.iterations)) < config.iterations and loop.continues():
                count = min(step, config.iterations - done)
                began = time.perf_counter()
                state, sums = _portion(live, state, count, lake, loop)
                metrics = _metrics(live, state, sums, count)
                metrics["env_steps_per_second"] = count * config.steps / (time.perf_counter() - began)
                env_steps = metrics["agents_env_steps"] + metrics["big_env_steps"]
                greedy = config.evaluation_greedy
                metrics |= arena.evaluated(evaluate, state.big.params, env_steps, greedy=greedy)
                number = -(-int(state.iterations) // step)
                loop.log(env_steps, metrics, number)
                tell(arena.scores_line(config, env_steps, metrics))
                due = number % config.checkpoint_every == 0 or int(state.iterations) == config.iterations
                if due:
                    loop.take(number, live.saved(state), {"frames": env_steps})
                push = number // config.checkpoint_every % config.push_every == 0
                loop.save(loop.write_taken, push=due and push)
        return metrics or kept.last_line()


def _take_up(
    live: LiveAlgorithm, fresh: LiveState, kept: Run, how: Resume, tell: Callable[[str], None]
) -> tuple[LiveState, DeviceLake | None]:
    """The state and the lake that training starts with; no array of the checkpoint is held any longer."""
    config = live.config
    open_lake = partial(arena.open_lake, config, kept.lake_folder, live.pqn.env.obs)
    noted = {"frames": 0, "lake_commit": None}
    checkpoint, lake = how.take_up(
        kept, live.saved(fresh), noted, open_lake if config.lake else lambda _: None
    )
    if checkpoint is None:
        return fresh, lake
    tell(f"resuming from checkpoint {checkpoint.number}, {checkpoint.state['frames']:,} steps")
    saved, commit = checkpoint.arrays["all"], checkpoint.state["lake_commit"]
    if commit is None:
        return live.restored(fresh, saved, None), lake
    with Lake.open(kept.lake_folder, commit) as steps:
        return live.restored(fresh, saved, steps), lake


def _portion(
    live: LiveAlgorithm, state: LiveState, iterations: int, lake: DeviceLake | None, loop: Loop
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
            note = {"env_steps": int(state.agents_frames) + int(state.big_frames)}
            loop.make_room(lake)
            arena.pour_new(live.pond, state.pond, poured, lake, note, "raise `big_pond`")
    return state, jax.tree.map(np.asarray, sums)


def _metrics(live: LiveAlgorithm, state: LiveState, sums: LiveMetrics, iterations: int) -> dict[str, Any]:
    """The metrics of a portion; the counters of the four agents and of the big agent are separate."""
    updates = iterations * live.updates
    env_steps = int(state.agents_frames)
    agents_updates, big_updates = int(state.agents.updates[0]), int(state.iterations) * live.updates
    own = state.big.epsilon if live.config.big_learner == "pqn" else state.big_epsilon  # type: ignore[union-attr]
    epsilon = cast("EpsilonState", own)
    return arena.means(sums.agents, iterations) | {
        "agents_env_steps": env_steps,
        "agents_updates": agents_updates,
        "big_env_steps": int(state.big_frames),
        "big_updates": big_updates,
        "big_score": float(sums.big_score) / max(int(sums.big_episodes), 1),
        "big_loss": float(sums.big.loss / updates),
        "big_value": float(sums.big.value / updates),
        "big_epsilon": float(live.big_epsilon.value(epsilon)),
        "big_pond_steps": int(live.pond.held(state.pond)),
        **arena.emulator_frames(live.config, env_steps + int(state.big_frames)),
        "samples": env_steps * live.config.pqn.epochs + big_updates * live.batch,
        "gradient_steps": agents_updates * live.config.pqn.gradient_steps + big_updates,
    }
