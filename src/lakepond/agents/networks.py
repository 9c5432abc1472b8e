"""Q-networks, hand-written: parameters are plain dicts of arrays, so that agents stack, clone and save.

    mlp     observation ─ flat ─ [dense ─ LayerNorm ─ relu] x n ─ head
    cnn     board ─ conv 3x3, 16 ─ LayerNorm ─ relu ─ dense 128 ─ LayerNorm ─ relu ─ head     (MinAtar)
    nature  frames ─ conv 8x8/4, 32 ─ conv 4x4/2, 64 ─ conv 3x3, 64 ─ dense 512 ─ head        (Mnih 2015)

LayerNorm everywhere is what lets PQN learn without a target network (Gallici et al. 2024).
`head` is one dense layer, or two of them, value and advantage, if `dueling` (Wang et al. 2016).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from lakepond.agents import fleet
from lakepond.errors import ConfigError
from lakepond.types import Field

Params = Any
CONVOLUTIONS = {"cnn": [(3, 1, 16)], "nature": [(8, 4, 32), (4, 2, 64), (3, 1, 64)]}
"""size, stride and channels of each, by kind of network"""
DENSE = {"cnn": 128, "nature": 512}
"""width of the dense layer after them"""


@dataclass(frozen=True)
class Network:
    """A pair of pure functions."""

    init: Callable[[jax.Array], Params]
    """parameters from a key"""
    apply: Callable[[Params, jax.Array], jax.Array]
    """the value of each action, (batch, actions), of observations (batch, ...)"""


class Layer(NamedTuple):
    """relu(LayerNorm(product(params, x)))."""

    name: str
    kind: str
    """of its product; the name of its weights in a checkpoint"""
    product: Callable[[Params, jax.Array], jax.Array]
    inputs: int
    outputs: int


@lru_cache(maxsize=64)  # equal networks are the same one, so that programs are compiled once
def make(
    kind: str,
    obs: Field,
    actions: int,
    *,
    hidden: tuple[int, ...] = (256, 128),
    dueling: bool = False,
    dtype: str = "float32",
) -> Network:
    """The network of that kind for these observations; `hidden` are the layers of the mlp.

    dtype: of the products in all layers but the last; parameters, LayerNorm and values are float32.
    """
    if kind == "mlp":
        sizes = [math.prod(obs.shape), *hidden]
        layers = [Layer(f"layer{i}", "dense", dense, *sizes[i : i + 2]) for i in range(len(hidden))]
    elif kind in CONVOLUTIONS:
        layers = _convolutional(obs, CONVOLUTIONS[kind], DENSE[kind])
    else:
        raise ConfigError(f"{kind!r} is not a valid network; choose from mlp, {', '.join(CONVOLUTIONS)}.")
    width = layers[-1].outputs if layers else math.prod(obs.shape)
    images = kind != "mlp" and obs.rows == 0  # frames first, values of 0..255

    def init(key: jax.Array) -> Params:
        *keys, key_head = jax.random.split(key, len(layers) + 1)
        params = {
            layer.name: {
                layer.kind: dense_init(k, layer.inputs, layer.outputs),
                "norm": norm_init(layer.outputs),
            }
            for k, layer in zip(keys, layers, strict=True)
        }
        return {**params, "head": head_init(key_head, width, actions, dueling)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        if images:
            x = jnp.moveaxis(x, 1, -1) / 255.0
        for layer in layers:
            if layer.kind == "dense":
                x = x.reshape(x.shape[0], -1)
            weights = jax.tree.map(lambda each: each.astype(dtype), params[layer.name][layer.kind])
            x = layer.product(weights, x.astype(dtype)).astype(jnp.float32)
            x = jax.nn.relu(norm(params[layer.name]["norm"], x))
        return head(params["head"], x.reshape(x.shape[0], -1))

    return Network(init, apply)


def _convolutional(obs: Field, convs: list[tuple[int, int, int]], width: int) -> list[Layer]:
    """Layers for images: frames first, or a board with its planes last."""
    if len(obs.shape) != 3:
        raise ConfigError(f"a convolutional network takes images, but an observation is {obs}; use 'mlp'.")
    high, wide, depth = (*obs.shape[1:], obs.shape[0]) if obs.rows == 0 else obs.shape
    layers = []
    for i, (size, stride, channels) in enumerate(convs):
        high, wide = ((n - size) // stride + 1 for n in (high, wide))
        if high < 1 or wide < 1:
            raise ConfigError(f"observations of {obs} are too small for a {size} x {size} convolution.")
        product = partial(conv, size=size, stride=stride)
        layers.append(Layer(f"conv{i}", "conv", product, size * size * depth, channels))
        depth = channels
    return [*layers, Layer("dense", "dense", dense, high * wide * depth, width)]


# --- layers --------------------------------------------------------------------------------------


def dense_init(key: jax.Array, inputs: int, outputs: int, scale: float = 2.0) -> Params:
    """Weights with a variance of `scale / inputs`, and zeros."""
    weight = jax.nn.initializers.variance_scaling(scale, "fan_in", "truncated_normal")(key, (inputs, outputs))
    return {"weight": weight, "bias": jnp.zeros(outputs)}


def dense(params: Params, x: jax.Array) -> jax.Array:
    """A matrix and a bias."""
    found: jax.Array = x @ params["weight"] + params["bias"]
    return found


def norm_init(size: int) -> Params:
    """A LayerNorm that does nothing but normalise."""
    return {"scale": jnp.ones(size), "offset": jnp.zeros(size)}


def norm(params: Params, x: jax.Array) -> jax.Array:
    """LayerNorm over the last axis."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    found: jax.Array = (x - mean) * jax.lax.rsqrt(variance + 1e-6) * params["scale"] + params["offset"]
    return found


def conv(params: Params, x: jax.Array, size: int, stride: int) -> jax.Array:
    """A convolution without padding, (batch, height, width, channels): on a CPU slices and a matmul.

    XLA for CPU has no fast convolution inside `scan`: measured 15 times slower there than the slices.
    """
    if fleet.accelerated():
        kernel = params["weight"].reshape(size, size, x.shape[-1], -1)
        found: jax.Array = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        return jnp.add(found, params["bias"])
    height, width = ((n - size) // stride + 1 for n in x.shape[1:3])
    patches = [
        x[:, i : i + stride * (height - 1) + 1 : stride, j : j + stride * (width - 1) + 1 : stride]
        for i in range(size)
        for j in range(size)
    ]
    return dense(params, jnp.concatenate(patches, axis=-1))


def head_init(key: jax.Array, inputs: int, actions: int, dueling: bool) -> Params:
    """The last layer."""
    key_value, key_advantage = jax.random.split(key)
    params = {"advantage": dense_init(key_advantage, inputs, actions, 1.0)}
    if dueling:
        params["value"] = dense_init(key_value, inputs, 1, 1.0)
    return params


def head(params: Params, x: jax.Array) -> jax.Array:
    """The value of each action."""
    advantage = dense(params["advantage"], x)
    if "value" not in params:
        return advantage
    return dense(params["value"], x) + advantage - advantage.mean(-1, keepdims=True)
