"""Priorities of a device pond: weights in blocks, so that a draw reads one block and the sums of all."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

BLOCK = 512
"""weights per block"""


class DevicePriorities(NamedTuple):
    """Priorities to the power of alpha, and their sum in each block."""

    weight: jax.Array
    """(lanes * capacity,), rounded up to full blocks; 0 where there is no live step"""
    block: jax.Array
    largest: jax.Array
    """the largest weight set so far; new steps get it"""


def no_priorities(size: int) -> DevicePriorities:
    """Priorities of `size` places without a step."""
    blocks = -(-size // BLOCK)
    return DevicePriorities(jnp.zeros(blocks * BLOCK), jnp.zeros(blocks), jnp.float32(1.0))


def set_weights(priorities: DevicePriorities, place: jax.Array, value: jax.Array) -> DevicePriorities:
    """Set the weights at these places; a place of -1 stands for none."""
    place = jnp.where(place < 0, priorities.weight.size, place)
    weight = priorities.weight.at[place].set(value, mode="drop")
    touched = place // BLOCK
    sums = weight.reshape(-1, BLOCK)[touched.clip(0, len(priorities.block) - 1)].sum(1)
    block = priorities.block.at[touched].set(sums, mode="drop")
    return DevicePriorities(weight, block, jnp.maximum(priorities.largest, value.max()))


def draw(priorities: DevicePriorities, key: jax.Array, batch: int) -> tuple[jax.Array, jax.Array]:
    """Places drawn in proportion to their weights, and the probability of each."""
    key_block, key_within = jax.random.split(key)
    ends = jnp.cumsum(priorities.block)
    drawn = jax.random.uniform(key_block, (batch,)) * ends[-1]
    block = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), len(ends) - 1)
    inside = jnp.cumsum(priorities.weight.reshape(-1, BLOCK)[block], axis=1)
    target = jax.random.uniform(key_within, (batch,)) * inside[:, -1:].T[0]
    place = block * BLOCK + (inside <= target[:, None]).sum(1).clip(0, BLOCK - 1)
    return place, priorities.weight[place] / ends[-1]
