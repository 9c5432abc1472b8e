"""The history that `single` replays: sequences of what was played, each as likely as any other."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.pqn import Rollout
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError, SpecError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.trainers.history import PouredHistory, make_memory
from lakepond.types import Field, Spec

LANES, ROLLOUT, LENGTH = 3, 4, 4
PQN = PQNSettings(envs=LANES, rollout=ROLLOUT, minibatches=1)
OBS = Field((2,), "int32", rows=None)


class Game:
    """Observations are (lane, clock), rewards 1,000 x lane + clock; after an episode the clock jumps."""

    def __init__(self, seed=0):
        self.rng, self.clock = np.random.default_rng(seed), np.zeros(LANES, np.int32)
        self.ended = {}

    @property
    def obs(self):
        return jnp.asarray(np.stack([np.arange(LANES), self.clock], 1), jnp.int32)

    def rollout(self):
        steps = [self.step() for _ in range(ROLLOUT)]
        return Rollout(*[jnp.asarray(np.stack([step[i] for step in steps])) for i in range(7)])

    def step(self):
        lane, clock = np.arange(LANES, dtype=np.int32), self.clock
        over, cut = self.rng.random((2, LANES)) < 0.15
        cut &= ~over
        self.ended |= {(i, int(clock[i])): bool(over[i]) for i in np.flatnonzero(over | cut)}
        self.clock = np.where(over | cut, clock + 7, clock + 1).astype(np.int32)
        obs, following, reset = (np.stack([lane, t], 1) for t in (clock, clock + 1, self.clock))
        reward = (1_000 * lane + clock).astype(np.float32)
        return obs, clock % 5, reward, following.astype(np.int32), over, cut, reset.astype(np.int32)


def played(folder, updates, replay_pond, seed=0):
    """A history after some updates, filled whenever its recent steps are full."""
    game = Game(seed)
    memory = make_memory(OBS, PQN, replay_pond, updates * PQN.frames, replay_pond // 4)
    history = PouredHistory(memory, game.obs, DeviceLake(folder, Spec(obs=OBS, action=Field((), "int32"))))
    room = memory.recent.capacity // ROLLOUT
    for number in range(updates):
        if number and number % room == 0:
            history.fill(history.durable({}).number, (seed, number))
        history.state = history.memory.add(history.state, game.rollout())
        history.pour({})
    return game, history


@partial(jax.jit, static_argnums=(0, 3))
def draw(memory, state, key, count):
    return memory.draw(state, key, count, LENGTH)


def drawn(history, count, key=0):
    return jax.tree.map(np.asarray, draw(history.memory, history.state, jax.random.PRNGKey(key), count))


@pytest.mark.parametrize("replay_pond", [192, 96], ids=["fits", "does not fit"])
def test_what_is_drawn_was_played_and_is_cut_where_the_next_step_does_not_follow(tmp_path, replay_pond):
    game, history = played(tmp_path / "lake", 11, replay_pond)
    found = drawn(history, 400)
    history.lake.close()
    lane, clock = found.obs[..., 0], found.obs[..., 1]
    assert (found.reward == 1_000 * lane + clock).all()
    assert (found.action == clock % 5).all()
    assert (found.next_obs == np.stack([lane, clock + 1], -1)).all()
    ended = np.vectorize(lambda *at: at in game.ended)(lane, clock)
    terminated = np.vectorize(lambda *at: game.ended.get(at, False))(lane, clock)
    assert (found.terminated == terminated).all()
    follows = (lane[1:] == lane[:-1]) & (clock[1:] == clock[:-1] + 1) & ~ended[:-1]
    assert found.cut[:-1][~follows].all()
    assert found.cut[:-1][follows].mean() < 0.5  # at the ends of blocks, which have up to four steps here
    assert ended.any()
    assert (~ended[:-1] & ~follows).any()  # two blocks of a fill, or two lanes


def test_every_sequence_of_a_history_that_fits_is_equally_likely(tmp_path):
    _, history = played(tmp_path / "lake", 11, 192)
    state, memory = history.state, history.memory
    assert (int(state.older), int(memory.recent.held(state.recent))) == (96, 36)
    assert int(memory.filled.held(state.filled)) == 96  # all of it
    found = drawn(history, 40_000)
    history.lake.close()
    for position in (0, LENGTH - 1):
        _, counts = np.unique(found.reward[position], return_counts=True)
        assert len(counts) == 132
        assert ((counts - 40_000 / 132) ** 2 / (40_000 / 132)).sum() < 132 + 4 * (2 * 132) ** 0.5


def test_beyond_the_ponds_every_part_of_the_lake_is_equally_likely(tmp_path):
    game, history = played(tmp_path / "lake", 11, 96)
    state = history.state
    assert (int(state.older), int(history.memory.recent.held(state.recent))) == (120, 12)
    assert int(history.memory.filled.held(state.filled)) == 72
    commit, recent = history.durable({}).number, state.recent
    counts = np.zeros((LANES, int(game.clock.max()) + 8))
    for seed in range(200):
        history.fill(commit - 1, (seed, 0))
        history.state = history.state._replace(recent=recent)
        found = drawn(history, 500, seed)
        np.add.at(counts, (found.obs[..., 0], found.obs[..., 1]), 1)
    history.lake.close()
    assert [int((lane > 0).sum()) for lane in counts] == [44] * LANES  # every step
    shares = np.concatenate([np.add.reduceat(lane[lane > 0], range(0, 44, 11)) for lane in counts])
    assert shares / shares.mean() == pytest.approx(np.ones(len(shares)), abs=0.15)


def test_ponds_that_are_too_small_or_too_large_are_refused():
    with pytest.raises(ConfigError, match="replay_pond is 20 steps, less than two updates of 12; raise it"):
        make_memory(OBS, PQN, 20, 1_000, 1_000)
    with pytest.raises(SpecError, match="room for"):
        make_memory(OBS, PQN, 10**11, 10**11, 1_000)


def test_the_ponds_share_their_steps_by_what_lies_between_two_checkpoints():
    def sizes(*numbers):
        memory = make_memory(OBS, PQN, *numbers)
        return memory.recent.lanes * memory.recent.capacity, memory.filled.capacity

    assert sizes(1_200, 100_000, 130) == (120, 1_080)  # whole updates of 12
    assert sizes(1_200, 100_000, 9_999) == (600, 600)  # at most half
    assert sizes(10**9, 1_200, 10**9) == (1_200, 1_200)  # no larger than the run
    assert sizes(24, 100_000, 1) == (12, 12)
