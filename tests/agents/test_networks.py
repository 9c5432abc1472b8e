import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents import fleet, networks
from lakepond.errors import ConfigError
from lakepond.types import Field

BOARD = Field((10, 10, 4), "uint8", rows=None)


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (8, 4)])
def test_slices_and_matmul_are_a_convolution(size, stride, monkeypatch):
    key_x, key_w = jax.random.split(jax.random.PRNGKey(0))
    x = jax.random.normal(key_x, (2, 20, 18, 3))
    params = networks.dense_init(key_w, size * size * 3, 5)
    slices = networks.conv(params, x, size, stride)
    monkeypatch.setattr(fleet, "accelerated", lambda: True)
    real = networks.conv(params, x, size, stride)
    assert real.shape == slices.shape
    assert np.asarray(slices) == pytest.approx(np.asarray(real), abs=1e-4)


def test_a_convolution_is_a_real_one_on_an_accelerator_only(monkeypatch):
    network = networks.make("cnn", BOARD, 3)
    params = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    for accelerated in (False, True):
        monkeypatch.setattr(fleet, "accelerated", lambda accelerated=accelerated: accelerated)
        program = jax.make_jaxpr(lambda *each: network.apply(*each))(params, jnp.ones((2, *BOARD.shape)))
        assert ("conv_general_dilated" in str(program)) == accelerated


def test_layer_norm_by_hand():
    found = networks.norm(networks.norm_init(2), jnp.array([[1.0, 3.0]]))  # mean 2, variance 1
    assert np.asarray(found)[0].tolist() == pytest.approx([-1.0, 1.0], abs=1e-5)


def test_a_dueling_head_is_value_and_centred_advantage():
    params = {
        "advantage": {"weight": jnp.array([[1.0, 3.0]]), "bias": jnp.zeros(2)},
        "value": {"weight": jnp.array([[10.0]]), "bias": jnp.array([0.5])},
    }
    assert np.asarray(networks.head(params, jnp.array([[2.0]])))[0].tolist() == [18.5, 22.5]


@pytest.mark.parametrize("kind", ["mlp", "cnn"])
@pytest.mark.parametrize("dueling", [False, True])
def test_every_network_values_every_action(kind, dueling):
    network = networks.make(kind, BOARD, 3, hidden=(8,), dueling=dueling)
    params = network.init(jax.random.PRNGKey(0))
    values = jax.jit(network.apply)(params, jnp.ones((5, 10, 10, 4), jnp.uint8))
    assert values.shape == (5, 3)
    assert ("value" in params["head"]) == dueling


def test_the_nature_network_takes_stacks_of_frames():
    network = networks.make("nature", Field((4, 84, 84), "uint8", rows=0), 6)
    shapes = jax.eval_shape(network.init, jax.random.PRNGKey(0))
    assert shapes["dense"]["dense"]["weight"].shape == (7 * 7 * 64, 512)
    values = jax.eval_shape(network.apply, shapes, jax.ShapeDtypeStruct((2, 4, 84, 84), jnp.uint8))
    assert values.shape == (2, 6)


STACK = Field((4, 36, 36), "uint8", rows=0)


@pytest.mark.parametrize(("kind", "field"), [("mlp", BOARD), ("cnn", BOARD), ("nature", STACK)])
def test_products_in_bfloat16_give_about_the_same_values_and_float32_parameters(kind, field, monkeypatch):
    exact, rounded = (networks.make(kind, field, 3, hidden=(8,), dtype=d) for d in ("float32", "bfloat16"))
    params = exact.init(jax.random.PRNGKey(0))
    obs = jax.random.bernoulli(jax.random.PRNGKey(1), 0.3, (64, *field.shape)).astype(jnp.uint8)
    if kind == "nature":  # with the convolution of accelerators, gradient included
        obs = 255 * obs[:8]
        monkeypatch.setattr(fleet, "accelerated", lambda: True)
    values, other = (np.asarray(jax.jit(network.apply)(params, obs)) for network in (exact, rounded))
    assert other.dtype == np.float32
    assert other == pytest.approx(values, abs=0.05)
    assert not (other == values).all()
    gradient = jax.grad(lambda p: rounded.apply(p, obs).sum())(params)
    assert {leaf.dtype.name for leaf in jax.tree.leaves(gradient)} == {"float32"}


def test_networks_that_cannot_be_are_refused():
    with pytest.raises(ConfigError, match="not a valid network; choose from mlp, cnn, nature"):
        networks.make("resnet", BOARD, 3)
    with pytest.raises(ConfigError, match="takes images"):
        networks.make("cnn", Field((4,), "float32"), 3)
    with pytest.raises(ConfigError, match="too small"):
        networks.make("nature", Field((4, 8, 8), "uint8", rows=0), 3)


def test_weights_have_the_variance_that_is_stated():
    weight = networks.dense_init(jax.random.key(0), 400, 500)["weight"]
    assert abs(float(weight.var()) * 400 / 2 - 1) < 0.02
