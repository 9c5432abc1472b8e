"""Q-networks, hand-written: parameters are plain dicts of arrays, so that agents stack, clone and save.

    mlp     observation ─ flat ─ [dense ─ LayerNorm ─ relu] x n ─ head
    cnn     board ─ conv 3x3, 16 ─ LayerNorm ─ relu ─ dense 128 ─ LayerNorm ─ relu ─ head     (MinAtar)
    nature  frames ─ conv 8x8/4, 32 ─ conv 4x4/2, 64 ─ conv 3x3, 64 ─ dense 512 ─ head        (Mnih 2015)

LayerNorm everywhere is what lets PQN learn without a target network (Gallici et al. 2024).
`head` is one dense layer, or two of them, value and advantage, if `dueling` (Wang et al. 2016).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

from lakepond.agents import fleet
from lakepond.errors import ConfigError
from lakepond.types import Field

Params = Any
ConvImpl = Literal["auto", "real", "slices"]
KINDS = ("mlp", "cnn", "nature")


@dataclass(frozen=True)
class Network:
    """A pair of pure functions."""

    init: Callable[[jax.Array], Params]
    """parameters from a key"""
    apply: Callable[[Params, jax.Array], jax.Array]
    """the value of each action, (batch, actions), of observations (batch, ...)"""


@lru_cache(maxsize=64)  # equal networks are the same one, so that programs are compiled once
def make(
    kind: str,
    obs: Field,
    actions: int,
    *,
    hidden: tuple[int, ...] = (256, 128),
    dueling: bool = False,
    conv_impl: ConvImpl = "auto",
    dtype: str = "float32",
) -> Network:
    """The network of that kind for these observations; `hidden` are the layers of the mlp.

    dtype: of the products in all layers but the last; parameters, LayerNorm and values are float32.
    """
    if kind == "mlp":
        return _mlp(obs, actions, hidden, dueling, dtype)
    if kind == "cnn":
        return _convolutional(obs, actions, [(3, 1, 16)], 128, dueling, conv_impl, dtype)
    if kind == "nature":
        convs = [(8, 4, 32), (4, 2, 64), (3, 1, 64)]
        return _convolutional(obs, actions, convs, 512, dueling, conv_impl, dtype)
    raise ConfigError(f"{kind!r} is not a valid network; choose from {', '.join(KINDS)}.")


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


def conv(params: Params, x: jax.Array, size: int, stride: int, impl: ConvImpl = "auto") -> jax.Array:
    """A convolution without padding, (batch, height, width, channels): a real one, or slices and a matmul.

    XLA for CPU has no fast convolution inside `scan`: measured 15 times slower there than the slices.
    """
    if impl == "auto":
        impl = "real" if fleet.accelerated() else "slices"
    channels = x.shape[-1]
    if impl == "real":
        kernel = params["weight"].reshape(size, size, channels, -1)
        dimensions = ("NHWC", "HWIO", "NHWC")
        found: jax.Array = jax.lax.conv_general_dilated(
            x, kernel, (stride, stride), "VALID", dimension_numbers=dimensions
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
    if not dueling:
        return {"advantage": dense_init(key_advantage, inputs, actions, 1.0)}
    return {
        "advantage": dense_init(key_advantage, inputs, actions, 1.0),
        "value": dense_init(key_value, inputs, 1, 1.0),
    }


def head(params: Params, x: jax.Array) -> jax.Array:
    """The value of each action."""
    advantage = dense(params["advantage"], x)
    if "value" not in params:
        return advantage
    return dense(params["value"], x) + advantage - advantage.mean(-1, keepdims=True)


# --- networks ------------------------------------------------------------------------------------


def _normed(
    product: Callable[..., jax.Array], params: Params, norm_params: Params, x: jax.Array, dtype: str
) -> jax.Array:
    """relu(LayerNorm(product(params, x))), the product in `dtype`."""
    cast = jax.tree.map(lambda each: each.astype(dtype), params)
    return jax.nn.relu(norm(norm_params, product(cast, x.astype(dtype)).astype(jnp.float32)))


def _mlp(obs: Field, actions: int, hidden: tuple[int, ...], dueling: bool, dtype: str) -> Network:
    sizes = [_size(obs), *hidden]

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(sizes))
        layers = {
            f"layer{i}": {
                "dense": dense_init(keys[i], sizes[i], sizes[i + 1]),
                "norm": norm_init(sizes[i + 1]),
            }
            for i in range(len(hidden))
        }
        return {**layers, "head": head_init(keys[-1], sizes[-1], actions, dueling)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = x.reshape(x.shape[0], -1).astype(jnp.float32)
        for i in range(len(hidden)):
            layer = params[f"layer{i}"]
            x = _normed(dense, layer["dense"], layer["norm"], x, dtype)
        return head(params["head"], x)

    return Network(init, apply)


def _convolutional(
    obs: Field,
    actions: int,
    convs: list[tuple[int, int, int]],
    width: int,
    dueling: bool,
    impl: ConvImpl,
    dtype: str,
) -> Network:
    """`convs`: size, stride and channels of each."""
    if len(obs.shape) != 3:
        raise ConfigError(f"a convolutional network takes images, but an observation is {obs}; use 'mlp'.")
    stacked = obs.rows == 0  # frames first, values of 0..255; a board has its planes last, values of 0 and 1
    board = (*obs.shape[1:], obs.shape[0]) if stacked else obs.shape
    shapes = [board]
    for size, stride, channels in convs:
        high, wide = ((n - size) // stride + 1 for n in shapes[-1][:2])
        if high < 1 or wide < 1:
            raise ConfigError(f"observations of {obs} are too small for a {size} x {size} convolution.")
        shapes.append((high, wide, channels))
    flat = shapes[-1][0] * shapes[-1][1] * shapes[-1][2]

    def init(key: jax.Array) -> Params:
        keys = jax.random.split(key, len(convs) + 2)
        params: dict[str, Params] = {}
        for i, (size, _, channels) in enumerate(convs):
            inputs = size * size * shapes[i][2]
            params[f"conv{i}"] = {"conv": dense_init(keys[i], inputs, channels), "norm": norm_init(channels)}
        params["dense"] = {"dense": dense_init(keys[-2], flat, width), "norm": norm_init(width)}
        return {**params, "head": head_init(keys[-1], width, actions, dueling)}

    def apply(params: Params, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        if stacked:
            x = jnp.moveaxis(x, 1, -1) / 255.0
        for i, (size, stride, _) in enumerate(convs):
            layer = params[f"conv{i}"]
            product = partial(conv, size=size, stride=stride, impl=impl)
            x = _normed(product, layer["conv"], layer["norm"], x, dtype)
        x = x.reshape(x.shape[0], -1)
        x = _normed(dense, params["dense"]["dense"], params["dense"]["norm"], x, dtype)
        return head(params["head"], x)

    return Network(init, apply)


def _size(obs: Field) -> int:
    size = 1
    for n in obs.shape:
        size *= n
    return size
