"""The BigAgent of a `mixture`: steps 4 to 7, as functions.

4  fill    one BigPond from the Lake, uniformly
5  learn   from it with DQN, starting where the settings say
7  clone   the agents from it, or those that it beats

Steps 4 and 5 may go in stages, each with its own n-step and gamma and a BigPond filled for these: BBF's
annealing after a reset (Schwarzer et al. 2023) without a pond that could follow episodes.
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from lakepond.agents.dqn import DQN, DQNMetrics, DQNSettings, DQNState
from lakepond.agents.fleet import repeat
from lakepond.agents.networks import Network, Params
from lakepond.agents.pqn import PQNState
from lakepond.errors import ConfigError
from lakepond.flow.lake_to_device import pieces
from lakepond.lake.lake import Lake
from lakepond.pond.device import DevicePond, Loaded, PondState
from lakepond.types import Field

if TYPE_CHECKING:
    from lakepond.trainers.mixture import Mixture, MixtureConfig

PIECE_BYTES = 4 << 20
"""rows that are brought to the BigPond at a time, at most; memory of that size is used again and again"""


def make_dqn(config: MixtureConfig, network: Network) -> DQN:
    """How it learns; refuses stages that do not go together."""
    stages(config)
    settings = DQNSettings(
        batch=config.big_batch,
        learning_rate=config.big_learning_rate,
        target_every=config.big_target_every,
        double=config.big_double,
        distill=config.big_distill,
    )
    return DQN(network, settings)


def make_pond(config: MixtureConfig, obs: Field) -> DevicePond:
    """The BigPond."""
    most = min(config.big_pond, config.frames)
    length = obs.shape[0] if obs.rows == 0 else 1
    return DevicePond(obs, 1, most, rows=2 * most + 2 * length)


class Trained(NamedTuple):
    """A BigAgent after steps 4 to 6, and what is logged of them."""

    agent: DQNState
    held: int
    """transitions in the BigPond"""
    steps: int
    """gradient steps"""
    loss: float
    value: float

    @property
    def told(self) -> dict[str, float]:
        """For the log."""
        return {
            "big_pond_steps": self.held,
            "big_steps": self.steps,
            "big_loss": self.loss,
            "big_value": self.value,
        }


class BigAgent:
    """It in the course of a run, with its BigPond, which is made at the first reset."""

    def __init__(self, mixture: Mixture, key: jax.Array) -> None:
        self.mixture, self.key = mixture, key
        self.params: Params = mixture.pqn.network.init(key)
        self.pond: PondState | None = None
        self.resets = 0
        self.samples = 0
        """transitions that gradients were taken of, so far"""

    def restore(self, params: Params, resets: int, samples: int) -> None:
        """As it was at a checkpoint."""
        self.params = jax.tree.map(jnp.array, params)
        self.resets, self.samples = resets, samples

    def train(self, best: Params, lake: Lake, samples: float, seconds: dict[str, float]) -> Trained:
        """Steps 4 to 6, learning from each transition `samples` times; what it took is added to `seconds`."""
        mixture, config = self.mixture, self.mixture.config
        key_start, key_learn = jax.random.split(jax.random.fold_in(self.key, self.resets))
        rng = np.random.default_rng([config.seed, self.resets])
        agent = start(mixture, best, self.params, key_start)
        pond = mixture.big_pond.init() if self.pond is None else self.pond
        parts = stages(config)
        held = min(mixture.big_pond.capacity, len(lake))
        steps = max(len(parts), round(samples * held / config.big_batch))
        sums = []
        for number, (n_step, gamma) in enumerate(parts):
            began = time.perf_counter()
            pond = fill(mixture, pond, lake, rng, n_step, gamma)
            filled = time.perf_counter()
            count = steps * (number + 1) // len(parts) - steps * number // len(parts)
            key = jax.random.fold_in(key_learn, number)
            agent, new = learn(mixture, agent, pond, best, key, count, steps, gamma)
            sums.append(jax.tree.map(np.asarray, new))  # waits until it is done
            seconds["fill"] += filled - began
            seconds["learn"] += time.perf_counter() - filled
        self.params, self.pond = agent.params, pond
        self.resets += 1
        self.samples += steps * config.big_batch
        loss, value = (float(sum(getattr(each, name) for each in sums)) for name in ("loss", "value"))
        return Trained(agent, held, steps, loss / steps, value / steps)


def stages(config: MixtureConfig) -> list[tuple[int, float]]:
    """n-step and gamma of each part of the training at a reset."""
    n_steps, gammas = config.big_n_step, config.big_gamma or (config.pqn.gamma,)
    count = max(len(n_steps), len(gammas))
    if {len(n_steps), len(gammas)} - {1, count}:
        raise ConfigError(
            f"{len(n_steps)} values of big_n_step and {len(gammas)} of big_gamma do not go together; "
            "give as many of both, or one of one of them."
        )
    return [(n_steps[i % len(n_steps)], gammas[i % len(gammas)]) for i in range(count)]


def fill(
    mixture: Mixture, pond: PondState, lake: Lake, rng: np.random.Generator, n_step: int, gamma: float
) -> PondState:
    """The BigPond with transitions of the Lake, every choice of them as likely as any other."""
    big = mixture.big_pond
    pond = big.cleared(pond)
    chosen = pieces(
        lake,
        min(big.capacity, len(lake)),
        rng=rng,
        n_step=n_step,
        gamma=gamma,
        size=max(64, PIECE_BYTES // (2 * big.length * big.row_bytes)),
    )
    for piece in chosen:
        pond = _load(big, pond, Loaded(*piece))
    jax.block_until_ready(pond)  # type: ignore[no-untyped-call]
    return pond


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _load(big: DevicePond, pond: PondState, piece: Loaded) -> PondState:
    return big.load(pond, piece)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def learn(
    mixture: Mixture,
    state: DQNState,
    pond: PondState,
    teacher: Params,
    key: jax.Array,
    steps: int,
    total: int,
    gamma: float,
) -> tuple[DQNState, DQNMetrics]:
    """So many gradient steps, of `total` at this reset, on the BigPond; metrics are summed up over them."""
    config = mixture.config
    fall = 1.0 - config.big_rate_end

    def step(number: int, carry: tuple[DQNState, DQNMetrics]) -> tuple[DQNState, DQNMetrics]:
        state, sums = carry
        batch = mixture.big_pond.sample(pond, jax.random.fold_in(key, number), config.big_batch, gamma=gamma)
        rate = 1.0 - fall * state.updates / total if fall else 1.0
        state, _, metrics = mixture.dqn.update(state, batch, rate=rate, teacher=teacher)
        return state, jax.tree.map(jnp.add, sums, metrics)

    zero = DQNMetrics(*[jnp.float32(0)] * 3)
    found: tuple[DQNState, DQNMetrics] = jax.lax.fori_loop(0, steps, step, (state, zero))
    return found


def start(mixture: Mixture, best: Params, last: Params, key: jax.Array) -> DQNState:
    """The BigAgent at the start of its training."""
    config = mixture.config
    fresh = mixture.pqn.network.init(key)
    known = {"best": best, "fresh": fresh, "last": last}[config.big_start]
    kept = config.big_shrink
    if kept < 1.0:
        known = jax.tree.map(lambda old, new: kept * old + (1.0 - kept) * new, known, fresh)
    old = list(fresh)[: len(fresh) - config.big_new_layers]  # layers as the network made them, the head last
    params = {name: known[name] if name in old else fresh[name] for name in fresh}
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
