"""The BigPond of `live` is restored from the lake, exactly, where its environments can be saved or not."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_games import LIVE, Stopped, arrays_of, stop_after

from lakepond.errors import LakeCorrupt
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.lake.read.lake import Lake
from lakepond.pond.device import Added, DevicePond
from lakepond.runs import Run
from lakepond.trainers import arena, live
from lakepond.types import Field

LANES, ROLLOUT = 3, 8


def rollout(rng, obs):
    """Steps of all lanes in stacks; each frame has its lane and a random number."""
    steps = []
    for _ in range(ROLLOUT):
        frame = np.stack([np.arange(LANES), rng.integers(1, 1_000, LANES)], 1)[:, None]
        following = np.concatenate([obs[:, 1:], frame], 1).astype(np.int32)
        over, cut = rng.random((2, LANES)) < 0.2
        first = np.repeat(frame + np.array([0, 1_000]), obs.shape[1], 1).astype(np.int32)
        action = rng.integers(0, 9, LANES).astype(np.int32)
        steps.append((action, frame[:, 0, 1].astype(np.float32), following, over, cut & ~over, first))
        obs = np.where((over | cut)[:, None, None], first, following)
    return Added(*(np.stack(each) for each in zip(*steps, strict=True))), obs


def live_rows(shape, pond):
    """The observation and next observation of each live step, by lane and step."""
    older = np.arange(shape.length)[::-1]
    return {
        (lane, step): [
            np.asarray(pond.rows)[lane, (int(newest[lane, step % shape.capacity]) - older) % shape.rows]
            for newest in (np.asarray(pond.at), np.asarray(pond.next_at))
        ]
        for lane in range(shape.lanes)
        for step in range(int(pond.oldest[lane]), int(pond.steps))
    }


@pytest.mark.parametrize("stack", [1, 3])
def test_the_rows_of_a_pond_are_read_from_the_lake_for_every_live_step(tmp_path, monkeypatch, stack):
    monkeypatch.setattr(live, "READ_BYTES", 2 * 8 * stack * 29)  # 29 steps at a time
    rng, obs = np.random.default_rng(stack), np.zeros((LANES, stack, 2), np.int32)
    field = Field((stack, 2), "int32", rows=0)
    shape = DevicePond(field, LANES, 20, rows=34)  # fewer steps than that fit where episodes are short
    pond = shape.begin(shape.init(), jnp.asarray(obs))
    with DeviceLake(tmp_path, arena.spec_of(field)) as lake:
        for _ in range(6):
            poured = int(pond.steps)
            new, obs = rollout(rng, obs)
            pond = jax.jit(shape.add)(pond, new)
            arena.pour_new(shape, pond, poured, lake, {})
        lake.wait()
    held = (int(pond.steps) - np.asarray(pond.oldest)).tolist()
    assert min(held) < 20 if stack == 3 else held == [20] * LANES
    expected = live_rows(shape, pond)
    without = pond._replace(rows=jnp.zeros_like(pond.rows))
    with Lake.open(tmp_path) as steps:
        found = live.read_rows(shape, without, steps)
        assert live_rows(shape, found).keys() == expected.keys()
        jax.tree.map(np.testing.assert_array_equal, live_rows(shape, found), expected)
        for other in (pond._replace(action=pond.action + 1), pond._replace(steps=pond.steps + 60)):
            with pytest.raises(LakeCorrupt, match="does not have the steps of the checkpoint"):
                live.read_rows(shape, other._replace(rows=jnp.zeros_like(pond.rows)), steps)


def test_on_an_environment_of_the_host_a_resumed_run_keeps_its_history(tmp_path, monkeypatch):
    short = {"env_steps": 2 * LIVE.evaluate_every, "evaluation_steps": 20, "evaluation_greedy": False}
    config = replace(LIVE, suite="gymnasium", game="CartPole-v1", **short)
    with pytest.raises(Stopped):
        live.run(config, tmp_path / "run", tell=stop_after(2))
    assert Run.open(tmp_path / "run").checkpoints() == [1]
    seen, train = [], live.train

    def first(made, state, iterations):
        seen.append((made.pond, jax.tree.map(np.array, state.pond), np.asarray(made.lane_obs(*state[:3]))))
        return train(made, state, iterations)

    monkeypatch.setattr(live, "train", first)
    last = live.run(config, tmp_path / "run")
    shape, pond, now = seen[0]
    lanes, each = shape.lanes, config.evaluate_every // shape.lanes
    assert (int(pond.steps), pond.oldest.tolist()) == (each, [0] * lanes)
    assert (pond.rows[np.arange(lanes), (pond.cursor - 1) % shape.rows] == now).all()
    held = live_rows(shape, pond)
    assert len(held) == config.evaluate_every
    assert last["big_pond_steps"] == shape.lanes * min(2 * each, shape.capacity)
    assert "pond.rows" not in arrays_of(tmp_path / "run")
    with Lake.open(tmp_path / "run" / "lake") as lake:
        for lane in range(lanes):
            steps = lake.steps(lake.query(stream=lane)[:each])
            for name in ("action", "reward", "terminated"):
                assert (getattr(steps, name) == getattr(pond, name)[lane, :each]).all()
            for step in range(each):
                obs, after = held[lane, step]
                assert (obs[0] == steps.obs[step]).all()
                assert (after[0] == steps.next_obs[step]).all()
