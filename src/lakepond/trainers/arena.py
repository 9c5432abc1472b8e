"""What `single`, `mixture` and `live` share: the game, the network, and evaluation beside the training.

An evaluation plays whole episodes in environments of its own, with keys that all trainers share, and is
counted neither in environment steps nor in the learning.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents import fleet, networks
from lakepond.agents.epsilon import Epsilon
from lakepond.agents.networks import Network, Params
from lakepond.agents.pqn import PQNMetrics, PQNState, Rollout, act
from lakepond.agents.replay import as_added
from lakepond.envs.vector import Environment, EnvState
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake.format.commits import Start
from lakepond.pond.device import Added, DevicePond, PondState
from lakepond.types import Field, Spec

EVALUATION_SEED, EVALUATION_STEP = 20_240_704, 1024
"""evaluations that are this many steps apart have other episodes"""
EMULATOR_FRAMES = 4
"""frames of an Atari emulator per environment step: each action is repeated"""


class Evaluator(Protocol):
    """Plays one episode in each environment and returns the scores; `epsilon=0` is greedy."""

    def __call__(self, params: Params, key: jax.Array, epsilon: float | None = None) -> jax.Array:
        """Play with these parameters."""


def make_env(config: Any, *, evaluates: bool = False) -> Environment:
    """The game of these settings; one that `evaluates` takes the same emulators again at every reset."""
    if config.suite == "minatar":
        from lakepond.envs.minatar import MinAtar

        return MinAtar(config.game)
    if config.suite == "gymnax":
        from lakepond.envs.gymnax import Gymnax

        return Gymnax(config.game)
    if config.suite == "module":
        from lakepond.envs.games import from_module

        made: Environment = from_module(config.game)
        return made
    if config.suite == "gymnasium":
        from lakepond.envs.gymnasium import Gymnasium

        return Gymnasium(config.game, reuse=evaluates)
    from lakepond.envs.atari import Atari

    return Atari(config.game, stack=config.frame_stack, reuse=evaluates)


def restored(fresh: PQNState, saved: Any, env: Environment) -> PQNState:
    """The saved state of an agent, or of several; emulators cannot be saved, so theirs are the fresh ones."""
    loaded: PQNState = jax.tree.map(jnp.array, saved)
    return loaded if env.resumes else loaded._replace(env=fresh.env)


def emulator_frames(config: Any, env_steps: int) -> dict[str, int]:
    """The frames that the emulators have run, for the log; nothing for games that have no emulator."""
    return {"emulator_frames": EMULATOR_FRAMES * env_steps} if config.suite == "atari" else {}


def progress(config: Any, env_steps: int) -> str:
    """How far a run is, for people: "40,960 steps", and on Atari the frames of the emulator."""
    frames = "".join(f" ({count:,} frames)" for count in emulator_frames(config, env_steps).values())
    return f"{env_steps:>10,} steps{frames}"


def scores_line(config: Any, env_steps: int, metrics: Mapping[str, Any]) -> str:
    """How far a run is and what it scores, for people."""
    score = f"score {metrics['score']:6.2f}  evaluation {metrics['evaluation']:6.2f}"
    return f"{progress(config, env_steps)}  {score}"


def network_of(config: Any, env: Environment) -> Network:
    """The network of these settings for the game."""
    return networks.make(
        config.network,
        env.obs,
        env.actions,
        hidden=tuple(config.hidden),
        dueling=getattr(config, "dueling", False),
        dtype=config.dtype,
    )


def make_epsilon(
    kind: Any, start: float, end: float, env_steps: int, offsets: Sequence[float] = ()
) -> Epsilon:
    """The schedule of an agent whose epsilon reaches its end after `env_steps` steps."""
    return Epsilon(kind=kind, start=start, end=end, env_steps=max(1, env_steps), offsets=tuple(offsets))


def check_budget(env_steps: int, name: str, every: int, update: int) -> None:
    """Refuse a run that would never evaluate or reset: `every` is the setting `name`, `update` an update."""
    if every < update:
        raise ConfigError(
            f"{name} is {every:,} steps, less than one update of {update:,}; raise it, or lower the "
            "environments or the rollout."
        )
    if env_steps < every:
        raise ConfigError(f"env_steps is {env_steps:,}, less than {name}, which is {every:,}; raise it.")


def make_evaluate(
    env: Environment,
    network: Network,
    episodes: int,
    *,
    epsilon: float,
    most_steps: int = 27_000,
) -> Evaluator:
    """A jitted function that plays one episode in each of some copies and returns their scores.

    An episode that takes longer than `most_steps` counts with the score it has by then.
    """
    hashable: Any = env
    usual, play = epsilon, _make_evaluate(hashable, network, episodes, most_steps)

    def evaluate(params: Params, key: jax.Array, epsilon: float | None = None) -> jax.Array:
        return play(params, key, jnp.float32(usual if epsilon is None else epsilon))

    return evaluate


def evaluator_of(config: Any, network: Network, *, episodes: int | None = None) -> Evaluator:
    """Evaluations with the settings of a run, in environments of their own; `episodes`: instead of its."""
    return make_evaluate(
        make_env(config, evaluates=True),
        network,
        episodes or config.evaluation_episodes,
        epsilon=config.evaluation_epsilon,
        most_steps=config.evaluation_steps,
    )


@lru_cache(maxsize=16)  # runs that ask for the same share the compiled program
def _make_evaluate(
    env: Any, network: Network, episodes: int, most_steps: int
) -> Callable[[Params, jax.Array, jax.Array], jax.Array]:

    def play(params: Params, key: jax.Array, epsilon: jax.Array) -> jax.Array:
        key_reset, key_play = jax.random.split(key)
        state = env.reset(key_reset, episodes)

        def unfinished(carry: tuple[EnvState, jax.Array, jax.Array, jax.Array]) -> jax.Array:
            _, _, done, step = carry
            return ~done.all() & (step < most_steps)

        def step(
            carry: tuple[EnvState, jax.Array, jax.Array, jax.Array],
        ) -> tuple[EnvState, jax.Array, jax.Array, jax.Array]:
            state, score, done, number = carry
            key_act, key_env = jax.random.split(jax.random.fold_in(key_play, number))
            action = act(network.apply(params, state.obs), epsilon, key_act)
            state, seen = env.step(state, action, key_env)
            score = jnp.where(done, score, seen.score)
            return state, score, done | seen.over, number + 1

        nothing = (state, jnp.zeros(episodes), jnp.zeros(episodes, bool), jnp.int32(0))
        return jax.lax.while_loop(unfinished, step, nothing)[1]

    return jax.jit(play)


def evaluation_key(env_steps: int) -> jax.Array:
    """The key of the evaluation after `env_steps`: the same for every run."""
    return jax.random.fold_in(jax.random.PRNGKey(EVALUATION_SEED), env_steps // EVALUATION_STEP)


def evaluated(
    evaluate: Evaluator, params: Params, env_steps: int, *, greedy: bool, named: str = ""
) -> dict[str, float]:
    """The metrics of the evaluations of one agent after `env_steps`."""
    key = evaluation_key(env_steps)
    scores = {f"evaluation{named}": float(evaluate(params, key).mean())}
    if greedy:
        scores[f"evaluation_greedy{named}"] = float(evaluate(params, key, 0.0).mean())
    return scores


def means(sums: PQNMetrics, updates: int) -> dict[str, Any]:
    """The metrics of a portion of training, from sums over its updates, of one agent or of several."""
    episodes = np.sum(sums.episodes)
    parts = updates * np.size(sums.loss)
    return {
        "score": float(np.sum(sums.score) / max(episodes, 1)),
        "episodes": int(episodes),
        **{
            name: float(np.sum(getattr(sums, name)) / parts)
            for name in ("loss", "value", "gradient", "epsilon")
        },
    }


def as_lanes(rollouts: Rollout) -> Added:
    """Rollouts (agents, steps, envs, ...) as steps (steps, agents * envs, ...): one lane per environment."""
    new = as_added(rollouts)
    lanes: Added = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), new)
    return lanes


def make_pond(obs: Field, lanes: int, steps: int) -> DevicePond:
    """A pond to be poured when it is full, with one lane per environment and room for `steps` steps.

    It has rows for episodes of one step; for stacks, for episodes of eight steps on average.
    """
    capacity = steps // lanes
    rows = 2 * capacity + 2 if obs.stack == 1 else capacity + capacity // 2 + 2 * obs.stack
    return DevicePond(obs, lanes, capacity, rows=rows)


def spec_of(obs: Field) -> Spec:
    """A step of the lake of a game."""
    return Spec(obs=obs, action=Field((), "int32"))


def open_lake(config: Any, path: Path, obs: Field, commit: int | Start) -> DeviceLake:
    """The lake of a run at a commit, or empty, with the limits of its settings."""
    return DeviceLake(
        path,
        spec_of(obs),
        commit=commit,
        max_steps=config.max_steps,
        keep_last=config.keep_last,
        min_free=config.min_free,
    )


def pour_new(
    shape: DevicePond,
    pond: PondState,
    poured: int,
    lake: DeviceLake,
    note: dict[str, Any],
    advice: str = "make it larger",
) -> None:
    """Pour the steps of a pond from number `poured` on into a lake; copies only these, and they stay there.

    advice: how to prevent that steps are evicted before they are poured, for the message of `ConfigError`.
    """
    count = int(pond.steps) - poured
    if count == 0:
        return
    if int(pond.oldest.max()) > poured:
        raise ConfigError(
            f"episodes are so short that steps were evicted from the pond before they were poured; {advice}."
        )
    place = (poured + np.arange(count)) % shape.capacity
    at, next_at = np.asarray(pond.at)[:, place], np.asarray(pond.next_at)[:, place]
    first = at[:, :1] - (shape.length - 1)
    few = max(64, count // 4)  # widths are rounded up, so that few different ones are compiled
    width = -(-int((next_at[:, -1:] + 1 - first).max()) // few) * few
    numbers = first + (np.arange(width) - first) % width  # a ring again: row n is at n % width
    held: Any = pond.rows if fleet.accelerated() else np.asarray(pond.rows)  # on a CPU it is no copy
    rows = np.asarray(held[np.arange(shape.lanes)[:, None], numbers % shape.rows])
    names = ("action", "reward", "terminated", "truncated")
    columns = {name: np.asarray(getattr(pond, name))[:, place] for name in names}
    none = np.zeros(shape.lanes, np.int64)
    lake.pour([Lanes(rows, count, none, at, next_at, columns)], note)
