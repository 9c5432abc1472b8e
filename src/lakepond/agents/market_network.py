"""Actor and critic for a market of many instruments: pytrees and pure functions, matrix products only.

    trunk        summary of a day (instruments, inputs) ─▶ dense ─▶ dense ─▶ attention over instruments
    actor head   embedding, position (instruments, 4)   ─▶ dense ─▶ coefficient and sale target of each
    critic head                                         ─▶ dense ─▶ V of the day, A of each and its target

The trunk is shared by all instruments and depends on the day only, so it runs once for all days of an
episode, outside the loop; only positions and the head are inside. Its input is computed once per day
(`envs.market.observe.summaries`).

The critic uses the rule of the market, that only the highest coefficient above the threshold buys:

    Q(s, a) = V(s) + A(s, i, target_i)   if i = argmax coefficient may be bought, else V(s)

and passes its gradient to all coefficients through a softmax in which the threshold is one more instrument,
"nothing", with an advantage of 0 (straight-through: Bengio et al. 2013).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.envs.market_rules import Rules

Array: TypeAlias = jax.Array
Params: TypeAlias = dict[str, Any]

POSITION = 4
"""numbers per position: held, profit, time passed, trades today"""
SOFTNESS = 0.1
"""temperature of the softmax over coefficients that the critic's gradient goes through"""


def _draw(key: Array, shapes: dict[str, tuple[int, int, float]]) -> dict[str, Params]:
    """Layers by name from (inputs, outputs, scale): normal weights of variance scale^2 / inputs, no bias.

    One draw for all: many small ones would compile for longer than a small network trains.
    """
    sizes = [inputs * outputs for inputs, outputs, _ in shapes.values()]
    parts = jnp.split(jax.random.normal(key, (sum(sizes),)), np.cumsum(sizes)[:-1])
    return {
        name: {
            "w": part.reshape(inputs, outputs) * (scale / math.sqrt(inputs)),
            "b": jnp.zeros(outputs),
        }
        for part, (name, (inputs, outputs, scale)) in zip(parts, shapes.items(), strict=True)
    }


def _apply(layer: Params, x: Array) -> Array:
    y: Array = x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)
    return y


def _centred(x: Array) -> Array:
    """Layer normalisation without parameters, so that no mutation can break it."""
    x = x - x.mean(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5)


def _trunk(inputs: int, width: int) -> dict[str, tuple[int, int, float]]:
    return {
        "in": (inputs, width, 1.0),
        "mid": (width, width, 1.0),
        "attend": (width, 3 * width, 1.0),
        "attended": (width, width, 1.0),
    }


def init_actor(key: Array, inputs: int, width: int) -> Params:
    """A new actor: `inputs` numbers a day and instrument, `width` wide inside."""
    head = {"hidden": (width + POSITION, width, 1.0), "out": (width, 2, 1.0)}
    return _draw(key, {**_trunk(inputs, width), **head})


def init_critic(key: Array, inputs: int, width: int) -> Params:
    """A new critic."""
    head = {
        "advantage": (width + POSITION + 1, width, 1.0),
        "advantage_out": (width, 1, 0.1),
        "state": (width + POSITION, width, 1.0),
        "state_out": (width, 1, 0.1),
    }
    return _draw(key, {**_trunk(inputs, width), **head})


def embed(params: Params, summary: Array, dtype: Any = jnp.float32) -> Array:
    """(..., instruments, inputs) to (..., instruments, width); computed in `dtype`, returned in float32."""
    x = jax.nn.gelu(_apply(params["in"], summary.astype(dtype)))
    x = x + jax.nn.gelu(_apply(params["mid"], _centred(x)))
    query, key, value = jnp.split(_apply(params["attend"], _centred(x)), 3, axis=-1)
    scores = query @ jnp.swapaxes(key, -1, -2) / math.sqrt(query.shape[-1])
    seen = jax.nn.softmax(scores.astype(jnp.float32), axis=-1).astype(dtype) @ value
    return _centred(x + _apply(params["attended"], seen)).astype(jnp.float32)


def may_buy(position: Array) -> Array:
    """Which instruments can be bought at all: they trade today and are not held."""
    return position[..., 3] * (1 - position[..., 0])


def act(params: Params, embedding: Array, position: Array, rules: Rules) -> Array:
    """(..., instruments, 2): coefficients in 0..1, 0 for what cannot be bought; sale targets in percent."""
    x = jax.nn.gelu(_apply(params["hidden"], jnp.concatenate([embedding, position], axis=-1)))
    raw = jax.nn.sigmoid(_apply(params["out"], x))
    coefficient = raw[..., 0] * may_buy(position)
    target = rules.target_low + (rules.target_high - rules.target_low) * raw[..., 1]
    return jnp.stack([coefficient, target], axis=-1)


def value(params: Params, embedding: Array, position: Array, action: Array, rules: Rules) -> Array:
    """Q of an action, (...)."""
    span = max(rules.target_high - rules.target_low, 1e-6)
    target = (action[..., 1:] - rules.target_low) / span
    x = jax.nn.gelu(_apply(params["advantage"], jnp.concatenate([embedding, position, target], axis=-1)))
    advantage = _apply(params["advantage_out"], x)[..., 0]
    pooled = jnp.concatenate([embedding, position], axis=-1).mean(axis=-2)
    state = _apply(params["state_out"], jax.nn.gelu(_apply(params["state"], pooled)))[..., 0]
    return state + (chosen(action[..., 0] * may_buy(position), rules) * advantage).sum(axis=-1)


def chosen(coefficient: Array, rules: Rules) -> Array:
    """One for the instrument that is bought, zero for all others; its gradient is that of a softmax."""
    nothing = jnp.full((*coefficient.shape[:-1], 1), rules.threshold)
    every = jnp.concatenate([nothing, coefficient], axis=-1)  # first: a tie with the threshold buys nothing
    soft = jax.nn.softmax(every / SOFTNESS, axis=-1)
    hard = jax.nn.one_hot(jnp.argmax(every, axis=-1), every.shape[-1])
    return (soft + jax.lax.stop_gradient(hard - soft))[..., 1:]
