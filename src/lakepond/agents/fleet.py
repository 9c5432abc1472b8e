"""Several agents in one program, and what differs between a CPU, an accelerator, and several devices.

Agents run one after another on a CPU and under `vmap` on an accelerator. Measured on a CPU (four agents, PQN,
MLP of 256): vmap 31-33k steps/s, `lax.map` 36-44k, one agent 32-34k. On several devices the agents are
divided among them, or the environments and minibatches of a single agent (`spread`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def accelerated() -> bool:
    """Whether JAX runs on an accelerator. Everything that differs there asks this, so tests can force it."""
    return jax.default_backend() != "cpu"


def over_agents(function: Callable[..., Any], *args: Any, divide: bool = True) -> Any:
    """Call a function for every agent: every argument and result has a leading axis of agents.

    divide: use all devices; not for environments of the host, which each device would step.
    """
    divide = divide and jax.device_count() > 1
    if not (divide or accelerated()):
        return jax.lax.map(lambda each: function(*each), args)
    return spread(jax.vmap(function)(*spread(args))) if divide else jax.vmap(function)(*args)


def spread(arrays: Any) -> Any:
    """Divide arrays along their first axis among all devices, where that is possible; the values stay."""
    count = jax.device_count()
    if count == 1:
        return arrays
    first = PartitionSpec("devices")  # type: ignore[no-untyped-call]
    places = NamedSharding(Mesh(jax.devices(), ("devices",)), first)

    def divided(x: jax.Array) -> jax.Array:
        if jnp.ndim(x) == 0 or x.shape[0] % count:
            return x
        found: jax.Array = jax.lax.with_sharding_constraint(x, places)  # type: ignore[no-untyped-call]
        return found

    return jax.tree.map(divided, arrays)


def stack(agents: list[Any]) -> Any:
    """Stack trees along a new leading axis."""
    return jax.tree.map(lambda *each: jnp.stack(each), *agents)


def pick(agents: Any, agent: int | slice | jax.Array) -> Any:
    """Select one agent, or several: index the leading axis of a tree."""
    return jax.tree.map(lambda each: each[agent], agents)


def repeat(agent: Any, count: int) -> Any:
    """Repeat a tree along a new leading axis."""
    return jax.tree.map(lambda each: jnp.repeat(each[None], count, axis=0), agent)
