"""The BigAgent of a `mixture`: steps 4 to 7, as functions.

4  fill    one BigPond from the Lake, in blocks of steps chosen uniformly
5  learn   from it with DQN, starting from the weights that the settings name
7  clone   the agents from it, or those with a lower score

Step 5 may have stages, each with its own n-step and gamma: the annealing after a reset of BBF (Schwarzer et
al. 2023).
"""

from __future__ import annotations

import time
from dataclasses import replace
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
from lakepond.flow import lake_to_device
from lakepond.lake.read.lake import Lake
from lakepond.pond.device import DevicePond, PondState
from lakepond.pond.device_load import load
from lakepond.types import Field

if TYPE_CHECKING:
    from lakepond.trainers.game_settings import MixtureConfig
    from lakepond.trainers.mixture import Mixture

PIECE_BYTES = 4 << 20
"""bytes of rows copied to the BigPond at a time"""


def make_dqn(config: MixtureConfig, network: Network) -> DQN:
    """The BigAgent's algorithm; raises `ConfigError` for stages that do not match."""
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
    """The BigPond, with rows for blocks of `BLOCK` steps and episodes of 16 steps on average.

    Each block and each end of an episode takes one stack of rows more. `fill` computes the exact number and
    makes a larger pond if episodes are shorter.
    """
    capacity = min(config.big_pond, config.frames)
    length = obs.shape[0] if obs.rows == 0 else 1
    runs = capacity // lake_to_device.BLOCK + capacity // 16 + 2
    return DevicePond(obs, 1, capacity, rows=capacity + runs * length)


class Trained(NamedTuple):
    """A BigAgent after steps 4 to 6."""

    agent: DQNState
    held: int
    """transitions in the BigPond"""
    steps: int
    """gradient steps"""
    loss: float
    value: float

    @property
    def metrics(self) -> dict[str, float]:
        """The entries of the log."""
        return {
            "big_pond_steps": self.held,
            "big_steps": self.steps,
            "big_loss": self.loss,
            "big_value": self.value,
        }


class BigAgent:
    """The state of the BigAgent during a run, with its BigPond, which is allocated at the first reset."""

    def __init__(self, mixture: Mixture, key: jax.Array) -> None:
        self.mixture, self.key = mixture, key
        self.params: Params = mixture.pqn.network.init(key)
        self.pond_shape = mixture.big_pond
        self.pond: PondState | None = None
        self.resets = 0
        self.samples = 0
        """transitions used in gradients so far"""

    def restore(self, params: Params, resets: int, samples: int) -> None:
        """Set the state from a checkpoint."""
        self.params = jax.tree.map(jnp.array, params)
        self.resets, self.samples = resets, samples

    def train(self, best: Params, lake: Lake, samples: float, seconds: dict[str, float]) -> Trained:
        """Steps 4 to 6, using each transition `samples` times; adds the time taken to `seconds`."""
        mixture, config = self.mixture, self.mixture.config
        key_start, key_learn = jax.random.split(jax.random.fold_in(self.key, self.resets))
        rng = np.random.default_rng([config.seed, self.resets])
        agent = start(mixture, best, self.params, key_start)
        began = time.perf_counter()
        old, self.pond = self.pond, None  # its memory is reused
        shape, pond = fill(self.pond_shape, old, lake, rng)
        seconds["fill"] += time.perf_counter() - began
        held = min(shape.capacity, len(lake))
        parts = stages(config)
        steps = max(len(parts), round(samples * held / config.big_batch))
        sums = []
        for number, (n_step, gamma) in enumerate(parts):
            began = time.perf_counter()
            count = steps * (number + 1) // len(parts) - steps * number // len(parts)
            key = jax.random.fold_in(key_learn, number)
            agent, new = learn(mixture, shape, agent, pond, best, key, count, steps, n_step, gamma)
            sums.append(jax.tree.map(np.asarray, new))  # waits for the device
            seconds["learn"] += time.perf_counter() - began
        self.params, self.pond_shape, self.pond = agent.params, shape, pond
        self.resets += 1
        self.samples += steps * config.big_batch
        loss, value = (float(sum(getattr(each, name) for each in sums)) for name in ("loss", "value"))
        return Trained(agent, held, steps, loss / steps, value / steps)


def stages(config: MixtureConfig) -> list[tuple[int, float]]:
    """n-step and gamma of each stage of the training at a reset."""
    n_steps, gammas = config.big_n_step, config.big_gamma or (config.pqn.gamma,)
    count = max(len(n_steps), len(gammas))
    if {len(n_steps), len(gammas)} - {1, count}:
        raise ConfigError(
            f"{len(n_steps)} values of big_n_step and {len(gammas)} of big_gamma do not match; "
            "give the same number of both, or one value of either."
        )
    return [(n_steps[i % len(n_steps)], gammas[i % len(gammas)]) for i in range(count)]


def fill(
    shape: DevicePond, pond: PondState | None, lake: Lake, rng: np.random.Generator
) -> tuple[DevicePond, PondState]:
    """Fill a pond with steps of the Lake, each with the same probability; see `flow.lake_to_device`.

    pond: the state to reuse, invalid afterwards; None: a new one. If the rows that the steps need do not fit,
    a pond with more rows takes its place, so the shape is returned too; `SpecError` if the device has no
    memory for it.
    """
    chosen = lake_to_device.plan(lake, min(shape.capacity, len(lake)), rng=rng)
    if chosen.rows > shape.rows:
        shape, pond = replace(shape, rows=chosen.rows + chosen.rows // 16), None
    pieces = chosen.pieces(max(64, PIECE_BYTES // shape.row_bytes))
    pond = load(shape, shape.init() if pond is None else pond, chosen.columns, pieces)
    jax.block_until_ready(pond)  # type: ignore[no-untyped-call]
    return shape, pond


@partial(jax.jit, static_argnames=("mixture", "shape", "n_step"), donate_argnames="state")
def learn(
    mixture: Mixture,
    shape: DevicePond,
    state: DQNState,
    pond: PondState,
    teacher: Params,
    key: jax.Array,
    steps: int,
    total: int,
    n_step: int,
    gamma: float,
) -> tuple[DQNState, DQNMetrics]:
    """Take `steps` of the `total` gradient steps of this reset; metrics are summed over them."""
    config = mixture.config
    decay = 1.0 - config.big_rate_end

    def step(number: int, carry: tuple[DQNState, DQNMetrics]) -> tuple[DQNState, DQNMetrics]:
        state, sums = carry
        key_batch = jax.random.fold_in(key, number)
        batch = shape.sample(pond, key_batch, config.big_batch, n_step=n_step, gamma=gamma)
        rate = 1.0 - decay * state.updates / total if decay else 1.0
        state, _, metrics = mixture.dqn.update(state, batch, rate=rate, teacher=teacher)
        return state, jax.tree.map(jnp.add, sums, metrics)

    zero = DQNMetrics(*[jnp.float32(0)] * 3)
    result: tuple[DQNState, DQNMetrics] = jax.lax.fori_loop(0, steps, step, (state, zero))
    return result


def start(mixture: Mixture, best: Params, last: Params, key: jax.Array) -> DQNState:
    """The BigAgent at the start of its training."""
    config = mixture.config
    fresh = mixture.pqn.network.init(key)
    known = {"best": best, "fresh": fresh, "last": last}[config.big_start]
    kept = config.big_shrink
    if kept < 1.0:
        known = jax.tree.map(lambda old, new: kept * old + (1.0 - kept) * new, known, fresh)
    old = list(fresh)[
        : len(fresh) - config.big_new_layers
    ]  # layers in the order of the network, the head last
    params = {name: known[name] if name in old else fresh[name] for name in fresh}
    return mixture.dqn.init(jax.tree.map(jnp.copy, params))


def clone(mixture: Mixture, agents: PQNState, big: DQNState, who: np.ndarray[Any, Any]) -> PQNState:
    """The agents after the reset; those selected by the mask `who` start again from the BigAgent."""
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
    """An optimiser state with the Adam moments and the count of another one."""
    moments = [s for s in jax.tree.leaves(other, is_leaf=_is_adam) if _is_adam(s)]
    return jax.tree.map(lambda s: moments[0] if _is_adam(s) else s, fresh, is_leaf=_is_adam)


def _is_adam(state: Any) -> bool:
    return isinstance(state, optax.ScaleByAdamState)
