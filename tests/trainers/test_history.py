"""The history that `single` replays: sequences of what was played, each as likely as it should be."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lakepond.agents.pqn import Rollout
from lakepond.agents.settings import PQNSettings
from lakepond.envs.vector import EnvState, EnvStep
from lakepond.errors import ConfigError, SpecError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.lake.read.lake import Lake
from lakepond.trainers import single
from lakepond.trainers.single import PouredHistory, make_memory
from lakepond.types import Field, Spec

LANES, ROLLOUT, LENGTH = 3, 4, 4
PQN = PQNSettings(envs=LANES, rollout=ROLLOUT, minibatches=1)
OBS = Field((2,), "int32", rows=None)


class Game:
    """Observations are (lane, clock), rewards 1,000 x lane + clock; after an episode the clock jumps.

    every: ticks of the clock between two rewards; 0: there are none.
    """

    def __init__(self, seed=0, every=1):
        self.rng, self.clock = np.random.default_rng(seed), np.zeros(LANES, np.int32)
        self.ended, self.every = {}, every

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
        reward = (1_000 * lane + clock) * (clock % self.every == 0 if self.every else 0)
        reward = reward.astype(np.float32)
        return obs, clock % 5, reward, following.astype(np.int32), over, cut, reset.astype(np.int32)


def played(folder, updates, replay_pond, seed=0, every=1, rewarded=0.0):
    """A history after some updates, filled whenever its recent steps are full."""
    game = Game(seed, every)
    memory = make_memory(
        OBS, PQN, replay_pond, updates * PQN.update_steps, replay_pond // 4, rewarded=rewarded
    )
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


@pytest.mark.parametrize("replay_pond", [192, 96], ids=["fits", "does not fit"])
def test_a_share_of_the_sequences_contains_a_reward_and_each_reward_is_equally_likely(tmp_path, replay_pond):
    _, history = played(tmp_path / "lake", 11, replay_pond, every=6, rewarded=0.25)
    recent, older = history.state.recent, int(history.state.older)
    commit = (
        history.durable({}).number - (132 - older) // PQN.update_steps
    )  # each update was poured: one commit
    with Lake.open(tmp_path / "lake") as lake:
        played_rewards = lake.steps(0, 132).reward
    counts, positions, others = {}, np.zeros(LENGTH), []
    for seed in range(100):
        history.fill(commit, (seed, 0))
        assert int(history.state.older) == older
        history.state = history.state._replace(recent=recent)
        found = drawn(history, 400, seed).reward
        rewarded, uniform = found[:, :100], found[:, 100:] != 0
        assert (rewarded != 0).any(axis=0).all()
        others.append(uniform.mean())
        alone = (rewarded != 0).sum(axis=0) == 1  # which of two was drawn cannot be known
        positions += (rewarded[:, alone] != 0).sum(axis=1)
        for reward in rewarded[rewarded != 0].tolist():
            counts[reward] = counts.get(reward, 0) + 1
    history.lake.close()
    rewards = played_rewards[played_rewards != 0].tolist()
    assert sorted(counts) == sorted(rewards)
    assert np.mean(others) == pytest.approx(len(rewards) / 132, rel=0.05)
    assert positions / positions.mean() == pytest.approx(np.ones(LENGTH), abs=0.1)
    parts = np.array([np.mean([counts[each] for each in part]) for part in np.array_split(rewards, 4)])
    assert parts / parts.mean() == pytest.approx(np.ones(4), abs=0.15)  # early and late, any lane


def test_without_any_reward_all_sequences_are_equally_likely(tmp_path):
    _, history = played(tmp_path / "lake", 11, 192, every=0, rewarded=1.0)
    found = drawn(history, 20_000).obs
    history.lake.close()
    _, counts = np.unique(1_000 * found[0, :, 0] + found[0, :, 1], return_counts=True)
    assert len(counts) == 132
    assert ((counts - 20_000 / 132) ** 2 / (20_000 / 132)).sum() < 132 + 4 * (2 * 132) ** 0.5


class Clock:
    """A game of JAX whose observations are (lane, clock); every 20th tick is rewarded, every 37th ends it."""

    name, actions, resumes, obs = "clock", 2, True, Field((2,), "float32", rows=None)

    def __eq__(self, other):
        return isinstance(other, Clock)

    def __hash__(self):
        return 0

    def reset(self, key, count):
        return self.state(jnp.zeros(count, jnp.int32), jnp.zeros(count))

    def state(self, clock, score):
        return EnvState(clock, self.seen(clock), jnp.zeros_like(clock), score)

    def seen(self, clock):
        return jnp.stack([jnp.arange(len(clock)), clock], 1).astype(jnp.float32)

    def step(self, state, action, key):
        clock, over = state.inner, state.inner % 37 == 36
        reward = (clock % 20 == 19).astype(jnp.float32)
        after = self.state(clock + 1, jnp.where(over, 0.0, state.score + reward))
        return after, EnvStep(
            after.obs, after.obs, reward, over, jnp.zeros_like(over), state.score + reward, over
        )


CLOCK = replace(
    single.PRESETS["tiny"],
    suite="module",
    game=f"{__name__}:Clock",
    env_steps=1_024,
    evaluate_every=128,
    checkpoint_every=2,
    hidden=(8,),
    pqn=PQNSettings(envs=4, rollout=16, minibatches=2),
    replay_share=0.5,
    replay_pond=2_000,
    replay_newest=600,
    replay_rewarded=0.5,
    min_free="0",
)


def test_the_trainer_replays_from_the_newest_steps_and_by_reward_and_resumes_exactly(tmp_path, monkeypatch):
    seen, train = [], single.train

    def spy(pqn, state, updates, memory, history, share):
        new, older = int(memory.recent.held(history.recent)), int(history.older)
        if new + older:
            draw_all = partial(memory.draw, count=20_000, length=CLOCK.pqn.rollout)
            found = jax.jit(draw_all)(history, jax.random.PRNGKey(0))
            seen.append(
                (int(state.updates) * CLOCK.pqn.update_steps, new, older, jax.tree.map(np.asarray, found))
            )
        return train(pqn, state, updates, memory, history, share=share)

    monkeypatch.setattr(single, "train", spy)
    single.run(CLOCK, tmp_path / "whole")
    with Lake.open(tmp_path / "whole" / "lake") as lake:
        order = {tuple(obs): id for id, obs in enumerate(lake.steps(0, 1_024).obs.astype(int).tolist())}
    assert [(frames, new, older) for frames, new, older, _ in seen] == [
        (128, 128, 0),
        (256, 0, 256),
        (384, 128, 256),
        (512, 0, 344),
        (640, 128, 344),
        (768, 0, 344),
        (896, 128, 344),
    ]
    for frames, new, older, found in seen:
        ids = np.array([order[tuple(obs)] for obs in found.obs[0, 10_000:].astype(int).tolist()])
        places, counts = np.unique(ids, return_counts=True)
        assert places.tolist() == list(range(frames - new - older, frames))
        expected = 10_000 / len(places)
        assert ((counts - expected) ** 2 / expected).sum() < len(places) + 4 * (2 * len(places)) ** 0.5
        assert (found.reward[:, :10_000] != 0).any(axis=0).all()
    monkeypatch.undo()

    class Stopped(Exception):
        pass

    def stop(line):
        if " 896 steps" in line:
            raise Stopped

    with pytest.raises(Stopped):
        single.run(CLOCK, tmp_path / "stopped", tell=stop)
    single.run(CLOCK, tmp_path / "stopped")
    whole, stopped = (
        {
            file.relative_to(tmp_path / name): file.read_bytes()
            for file in (tmp_path / name).rglob("*.safetensors")
        }
        for name in ("whole", "stopped")
    )
    assert len(whole) > 4
    assert whole == stopped


def test_ponds_that_are_too_small_or_too_large_are_refused():
    with pytest.raises(ConfigError, match="replay_pond is 20 steps, less than two updates of 12; raise it"):
        make_memory(OBS, PQN, 20, 1_000, 1_000)
    with pytest.raises(ConfigError, match="replay_newest is 23 steps, less than two updates of 12; raise it"):
        make_memory(OBS, PQN, 240, 1_000, 1_000, newest=23)
    with pytest.raises(SpecError, match="room for"):
        make_memory(OBS, PQN, 10**11, 10**11, 1_000)
    with pytest.raises(SpecError, match="room for"):
        make_memory(OBS, PQN, 10**6, 10**6, 1_000, runs=10**5)


def test_the_ponds_share_their_steps_by_what_lies_between_two_checkpoints():
    def sizes(*numbers, newest=None):
        memory = make_memory(OBS, PQN, *numbers, newest=newest)
        return memory.recent.lanes * memory.recent.capacity, memory.filled.capacity

    assert sizes(1_200, 100_000, 130) == (120, 1_080)  # whole updates of 12
    assert sizes(1_200, 100_000, 9_999) == (600, 600)  # at most half
    assert sizes(10**9, 1_200, 10**9) == (1_200, 1_200)  # no larger than the run
    assert sizes(24, 100_000, 1) == (12, 12)
    assert sizes(1_200, 100_000, 130, newest=600) == (120, 480)  # no larger than the history
