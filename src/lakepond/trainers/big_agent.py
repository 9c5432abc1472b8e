"""The BigAgent of a `mixture`: steps 4 to 7, as functions.

4  fill    one BigPond from the Lake, uniformly
5  learn   from it with DQN, starting where the settings say
7  clone   the agents from it, or those that it beats
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lakepond.agents.dqn import DQNMetrics, DQNState
from lakepond.agents.fleet import repeat
from lakepond.agents.networks import Params
from lakepond.agents.pqn import PQNState
from lakepond.flow.lake_to_device import pieces
from lakepond.lake.lake import Lake
from lakepond.pond.device import DevicePond, Loaded, PondState

if TYPE_CHECKING:
    from lakepond.trainers.mixture import Mixture

PIECE_BYTES = 16 << 20
"""rows that are brought to the BigPond at a time, at most"""


def fill(mixture: Mixture, pond: PondState, lake: Lake, rng: np.random.Generator) -> PondState:
    """The BigPond with transitions of the Lake, every choice of them as likely as any other."""
    config, big = mixture.config, mixture.big_pond
    pond = big.cleared(pond)
    chosen = pieces(
        lake,
        min(big.capacity, len(lake)),
        rng=rng,
        n_step=config.big_n_step,
        gamma=config.pqn.gamma,
        size=max(64, PIECE_BYTES // (2 * big.length * big.row_bytes)),
    )
    for piece in chosen:
        pond = _load(big, pond, Loaded(*piece))
    return pond


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _load(big: DevicePond, pond: PondState, piece: Loaded) -> PondState:
    return big.load(pond, piece)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def learn(
    mixture: Mixture, state: DQNState, pond: PondState, key: jax.Array, steps: jax.Array
) -> tuple[DQNState, DQNMetrics]:
    """So many gradient steps on the BigPond; metrics are those of all steps, summed up."""
    config = mixture.config

    def step(number: int, carry: tuple[DQNState, DQNMetrics]) -> tuple[DQNState, DQNMetrics]:
        state, sums = carry
        batch = mixture.big_pond.sample(
            pond, jax.random.fold_in(key, number), config.big_batch, gamma=config.pqn.gamma
        )
        state, _, metrics = mixture.dqn.update(state, batch)
        return state, jax.tree.map(jnp.add, sums, metrics)

    zero = DQNMetrics(*[jnp.float32(0)] * 3)
    found: tuple[DQNState, DQNMetrics] = jax.lax.fori_loop(0, steps, step, (state, zero))
    return found


def start(mixture: Mixture, best: Params, last: Params, key: jax.Array) -> DQNState:
    """The BigAgent at the start of its training."""
    config = mixture.config
    fresh = mixture.pqn.network.init(key)
    params = {"best": best, "fresh": fresh, "last": last}[config.big_start]
    kept = config.big_shrink
    if kept < 1.0:
        params = jax.tree.map(lambda old, new: kept * old + (1.0 - kept) * new, params, fresh)
    return mixture.dqn.init(jax.tree.map(jnp.copy, params))


def clone(mixture: Mixture, agents: PQNState, big: DQNState, who: np.ndarray[Any, Any]) -> PQNState:
    """The agents after the reset; `who` says which of them begin again from the BigAgent."""
    config, pqn = mixture.config, mixture.pqn
    chosen = jnp.asarray(who)

    def replaced(old: Any, new: Any) -> Any:
        return jax.tree.map(
            lambda a, b: jnp.where(chosen.reshape(-1, *[1] * (a.ndim - 1)), b, a), old, repeat(new, len(who))
        )

    optimiser = agents.optimiser
    if config.clone_optimiser != "kept":
        fresh = pqn.optimiser.init(big.params)
        if config.clone_optimiser == "cloned":
            fresh = _with_moments(fresh, big.optimiser)
        optimiser = replaced(optimiser, fresh)
    to = None if config.epsilon_reset == "keep" else config.epsilon_reset
    reset = pqn.epsilon.reset(agents.epsilon, to)
    epsilon = jax.tree.map(lambda old, new: jnp.where(chosen, new, old), agents.epsilon, reset)
    return agents._replace(params=replaced(agents.params, big.params), optimiser=optimiser, epsilon=epsilon)


def _with_moments(fresh: optax.OptState, other: optax.OptState) -> optax.OptState:
    """An optimiser's state with the moments, and the count, of another's."""
    moments = [s for s in jax.tree.leaves(other, is_leaf=_is_adam) if _is_adam(s)]
    return jax.tree.map(lambda s: moments[0] if _is_adam(s) else s, fresh, is_leaf=_is_adam)


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)
