"""What `single`, `mixture` and `live` share: the game, the network, and evaluation beside the training.

An evaluation plays whole episodes in environments of its own, with keys that all trainers share, and is
counted neither in frames nor in the learning.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents import networks
from lakepond.agents.epsilon import Epsilon
from lakepond.agents.fleet import over_agents
from lakepond.agents.networks import Network, Params
from lakepond.agents.pqn import PQNMetrics, PQNState, Rollout, act
from lakepond.envs.vector import Environment, EnvState
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.pond.device import Added, DevicePond, PondState
from lakepond.pond.device_memory import check_fits
from lakepond.trainers.game_settings import Suite

EVALUATION_SEED = 20_240_704


class Evaluate(Protocol):
    """Scores of whole episodes; with another epsilon than the usual one if it is given, 0: greedy."""

    def __call__(self, params: Params, key: jax.Array, epsilon: float | None = None) -> jax.Array:
        """Play with these parameters."""


def make_env(suite: Suite, game: str, *, evaluates: bool = False) -> Environment:
    """The game; one that `evaluates` takes the same emulators again at every reset."""
    if suite == "minatar":
        from lakepond.envs.minatar import MinAtar

        return MinAtar(game)
    if suite == "gymnasium":
        from lakepond.envs.gymnasium import Gymnasium

        return Gymnasium(game, reuse=evaluates)
    from lakepond.envs.atari import Atari

    return Atari(game, reuse=evaluates)


def restored(fresh: PQNState, saved: Any, env: Environment) -> PQNState:
    """What was saved of an agent, or of several; emulators cannot be saved, so theirs are the fresh ones."""
    loaded: PQNState = jax.tree.map(jnp.array, saved)
    return loaded if env.resumes else loaded._replace(env=fresh.env)


def make_network(kind: str, env: Environment, hidden: Sequence[int], *, dueling: bool = False) -> Network:
    """The network of that kind for the game."""
    return networks.make(kind, env.obs, env.actions, hidden=tuple(hidden), dueling=dueling)


def make_epsilon(kind: Any, start: float, end: float, frames: int, offsets: Sequence[float] = ()) -> Epsilon:
    """The schedule of an agent whose epsilon reaches its end after `frames` frames."""
    return Epsilon(kind=kind, start=start, end=end, frames=max(1, frames), offsets=tuple(offsets))


def check_budget(frames: int, portion: int, update: int) -> None:
    """Refuse a run that could not finish one portion, or a portion that is no whole update."""
    if portion < update:
        raise ConfigError(
            f"a portion of {portion:,} frames is less than one update of {update:,}; "
            "raise the portion, or lower the environments or the rollout."
        )
    if frames < portion:
        raise ConfigError(
            f"{frames:,} frames are less than one portion of {portion:,}; raise them or lower the portion."
        )


def check_memory(*ponds: DevicePond) -> None:
    """Raise `SpecError` if these ponds do not fit the device together; called before a run starts."""
    check_fits(sum(pond.nbytes for pond in ponds), sum(pond.lanes * pond.capacity for pond in ponds))


def make_evaluate(
    env: Environment,
    network: Network,
    episodes: int,
    *,
    epsilon: float,
    agents: int | None = None,
    most_steps: int = 27_000,
) -> Evaluate:
    """A jitted function that plays one episode in each of some copies and returns their scores.

    With `agents` it takes that many, stacked, and a key for each. An episode that takes longer than
    `most_steps` counts with the score it has by then.
    """
    hashable: Any = env
    usual, play = epsilon, _make_evaluate(hashable, network, episodes, agents, most_steps)

    def evaluate(params: Params, key: jax.Array, epsilon: float | None = None) -> jax.Array:
        return play(params, key, jnp.float32(usual if epsilon is None else epsilon))

    return evaluate


@lru_cache(maxsize=16)  # runs that ask for the same share the compiled program
def _make_evaluate(
    env: Any, network: Network, episodes: int, agents: int | None, most_steps: int
) -> Callable[[Params, jax.Array, jax.Array], jax.Array]:

    def play(params: Params, key: jax.Array, epsilon: jax.Array) -> jax.Array:
        key_reset, key_play = jax.random.split(key)
        state = env.reset(key_reset, episodes)

        def goes_on(carry: tuple[EnvState, jax.Array, jax.Array, jax.Array]) -> jax.Array:
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
        return jax.lax.while_loop(goes_on, step, nothing)[1]

    def play_each(params: Params, keys: jax.Array, epsilon: jax.Array) -> jax.Array:
        scores: jax.Array = over_agents(lambda params, key: play(params, key, epsilon), params, keys)
        return scores

    return jax.jit(play if agents is None else play_each)


def evaluation_key(frames: int) -> jax.Array:
    """The key of the evaluation at `frames`: the same for every run."""
    return jax.random.fold_in(jax.random.PRNGKey(EVALUATION_SEED), frames // 1024)


def evaluated(
    evaluate: Evaluate, params: Params, frames: int, *, greedy: bool, named: str = ""
) -> dict[str, float]:
    """The metrics of the evaluations of one agent at `frames`."""
    key = evaluation_key(frames)
    told = {f"evaluation{named}": float(evaluate(params, key).mean())}
    return told | ({f"evaluation_greedy{named}": float(evaluate(params, key, 0.0).mean())} if greedy else {})


def means(sums: PQNMetrics, updates: int) -> dict[str, Any]:
    """What is logged of a portion: sums over its updates, of one agent or of several."""
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
    new = Added(
        rollouts.action,
        rollouts.reward,
        rollouts.next_obs,
        rollouts.terminated,
        rollouts.truncated,
        rollouts.reset_obs,
    )
    lanes: Added = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1).reshape(x.shape[1], -1, *x.shape[3:]), new)
    return lanes


def pour_new(shape: DevicePond, pond: PondState, poured: int, lake: DeviceLake, note: dict[str, Any]) -> None:
    """Pour the steps of a pond from `poured` on into a lake; copies only these, and they stay in the pond."""
    if int(pond.oldest.max()) > poured:
        raise ConfigError(
            "episodes are so short that steps were evicted from the BigPond before they were poured; "
            "raise `big_pond`."
        )
    count = int(pond.steps) - poured
    place = (poured + np.arange(count)) % shape.capacity
    at, next_at = np.asarray(pond.at)[:, place], np.asarray(pond.next_at)[:, place]
    first = at[:, :1] - (shape.length - 1)
    few = max(64, count // 4)  # widths are rounded up, so that few different ones are compiled
    width = -(-int((next_at[:, -1:] + 1 - first).max()) // few) * few
    held: Any = np.asarray(pond.rows) if jax.default_backend() == "cpu" else pond.rows  # there it is no copy
    rows = held[np.arange(shape.lanes)[:, None], (first + np.arange(width)) % shape.rows]
    names = ("action", "reward", "terminated", "truncated")
    columns = {name: np.asarray(getattr(pond, name))[:, place] for name in names}
    none = np.zeros(shape.lanes, np.int64)
    lake.pour([Lanes(np.asarray(rows), count, none, at - first, next_at - first, columns)], note)


def recovery(frames: Sequence[int], scores: Sequence[float], reset: int, before: float) -> int | None:
    """Frames from a reset until a score of at least that before it; None if it was not reached again."""
    for at, score in zip(frames, scores, strict=True):
        if at > reset and score >= before:
            return at - reset
    return None
