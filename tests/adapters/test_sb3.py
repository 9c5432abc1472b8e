"""SB3 buffers over lakepond: the same batches as SB3's own, bit for bit; lakes, priorities and copies."""

import copy
import pickle
import runpy
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC
from stable_baselines3.common import buffers
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.envs import BitFlippingEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from stable_baselines3.her import HerReplayBuffer

import lakepond as lp
from lakepond.adapters.sb3 import (
    LakepondHerReplayBuffer,
    LakepondReplayBuffer,
    PrioritizedDQN,
    PrioritizedSAC,
)

BOX = spaces.Box(-9, 9, (5,), np.float32)
FRAMES = spaces.Box(0, 255, (4, 6, 6), np.uint8)
DICT = spaces.Dict({"frames": FRAMES, "speed": BOX, "level": spaces.Discrete(7)})
DISCRETE = spaces.Discrete(3)


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Walk:
    """Transitions as SB3 hands them over: random observations, ends and time limits, the true last ones."""

    def __init__(self, space, n_envs, action_space=DISCRETE, seed=0):
        self.space, self.n_envs, self.action_space = space, n_envs, action_space
        self.rng = np.random.default_rng(seed)
        self.obs = self._draw()

    def _draw(self):
        def one(space):
            if isinstance(space, spaces.Dict):
                return {key: one(sub) for key, sub in space.items()}
            if isinstance(space, spaces.Discrete):
                return self.rng.integers(0, space.n, self.n_envs)
            if space.dtype == np.uint8:
                return self.rng.integers(0, 255, (self.n_envs, *space.shape)).astype(np.uint8)
            return self.rng.normal(size=(self.n_envs, *space.shape)).astype(space.dtype)

        return one(self.space)

    def step(self):
        n = self.n_envs
        next_obs = self._draw()
        done = self.rng.random(n) < 0.2
        late = done & (self.rng.random(n) < 0.5)
        if isinstance(self.action_space, spaces.Discrete):
            action = self.rng.integers(0, self.action_space.n, n)
        else:
            action = self.rng.uniform(-1, 1, (n, *self.action_space.shape))
        infos = [{"TimeLimit.truncated": bool(flag)} for flag in late]
        obs, self.obs = self.obs, copy.deepcopy(next_obs)
        fresh = self._draw()
        for i in np.flatnonzero(done):
            if isinstance(fresh, dict):
                for key in fresh:
                    self.obs[key][i] = fresh[key][i]
            else:
                self.obs[i] = fresh[i]
        return obs, next_obs, action, self.rng.normal(size=n) * 5, done, infos


def fill(walk, steps, *targets):
    for _ in range(steps):
        step = walk.step()
        for target in targets:
            target.add(*copy.deepcopy(step))


def assert_same(mine, theirs):
    for name in theirs._fields:
        one, other = getattr(mine, name), getattr(theirs, name)
        if isinstance(other, dict):
            assert one.keys() == other.keys()
            pairs = [(one[key], other[key]) for key in other]
        else:
            pairs = [(one, other)]
        for a, b in pairs:
            if b is None:
                assert a is None
            else:
                assert (a.dtype, a.shape) == (b.dtype, b.shape), name
                assert torch.equal(a, b), name


def draw(buffer, size, seed, env=None):
    np.random.seed(seed)
    return buffer.sample(size, env=env)


@pytest.mark.parametrize("steps", [7, 40])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("handle", [True, False])
@pytest.mark.parametrize(
    "space", [BOX, FRAMES, DICT, spaces.Discrete(5)], ids=["box", "frames", "dict", "discrete"]
)
def test_batches_are_those_of_sb3(space, n_envs, handle, steps):
    their_class = buffers.DictReplayBuffer if isinstance(space, spaces.Dict) else buffers.ReplayBuffer
    options = dict(n_envs=n_envs, handle_timeout_termination=handle, device="cpu")
    theirs = their_class(15 * n_envs, space, DISCRETE, **options)
    mine = LakepondReplayBuffer(15 * n_envs, space, DISCRETE, **options)
    fill(Walk(space, n_envs), steps, mine, theirs)
    assert (mine.pos, mine.full, mine.size()) == (theirs.pos, theirs.full, theirs.size())
    for seed in range(5):
        assert_same(draw(mine, 64, seed), draw(theirs, 64, seed))
    np.testing.assert_array_equal(mine.rewards, theirs.rewards)
    np.testing.assert_array_equal(mine.dones, theirs.dones)
    np.testing.assert_array_equal(mine.timeouts, theirs.timeouts)
    np.testing.assert_array_equal(mine.actions[-1], theirs.actions[-1])
    np.testing.assert_array_equal(mine.actions[2:5, 0], theirs.actions[2:5, 0])


@pytest.mark.parametrize("handle", [True, False])
def test_a_time_limit_without_done_is_that_of_sb3(handle):
    pair = [
        of(20, BOX, DISCRETE, device="cpu", handle_timeout_termination=handle, n_steps=3, gamma=0.9)
        for of in (LakepondReplayBuffer, buffers.NStepReplayBuffer)
    ]
    for t in range(12):
        obs = np.full((1, 5), t, np.float32)
        info = [{"TimeLimit.truncated": t % 4 == 3}]
        for buffer in pair:
            buffer.add(obs, obs + 1, np.array([0]), np.array([t]), np.array([t == 7]), info)
    assert_same(draw(pair[0], 64, 1), draw(pair[1], 64, 1))


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("steps", [2, 9, 60])
@pytest.mark.parametrize("n_envs", [1, 3])
@pytest.mark.parametrize("n_steps", [2, 5])
def test_n_step_returns_are_those_of_sb3(n_steps, n_envs, steps, normalize):
    """With VecNormalize each reward is normalised and clipped before the sum, as SB3 does."""
    box = spaces.Box(-1, 1, (2,), np.float64)
    options = dict(n_envs=n_envs, device="cpu", n_steps=n_steps, gamma=0.97)
    theirs = buffers.NStepReplayBuffer(20 * n_envs, BOX, box, **options)
    mine = LakepondReplayBuffer(20 * n_envs, BOX, box, **options)
    fill(Walk(BOX, n_envs, box), steps, mine, theirs)
    env = normalizer(BOX, box) if normalize else None
    for seed in range(8):
        assert_same(draw(mine, 64, seed, env), draw(theirs, 64, seed, env))


def normalizer(space, action_space):
    class Env(gym.Env):
        observation_space, action_space = BOX, DISCRETE

    Env.observation_space, Env.action_space = space, action_space
    env = VecNormalize(DummyVecEnv([Env]), clip_reward=0.7, clip_obs=1.1)
    env.obs_rms.mean, env.obs_rms.var = np.full(5, 0.3), np.full(5, 2.0)
    env.ret_rms.var = np.float64(9.0)
    return env


def test_n_step_returns_by_hand():
    """Rewards 1, 2, 3, 4, ...; the third step terminates, the fifth is cut by a time limit."""
    buffer = LakepondReplayBuffer(10, BOX, DISCRETE, device="cpu", n_steps=3, gamma=0.5)
    for t in range(7):
        obs = np.full((1, 5), t, np.float32)
        done = np.array([t in (2, 4)])
        buffer.add(obs, obs + 1, np.array([0]), np.array([t + 1.0]), done, [{"TimeLimit.truncated": t == 4}])
    batch = buffer._get_samples(np.arange(7))
    assert batch.rewards[:, 0].tolist() == [1 + 1 + 0.75, 2 + 1.5, 3, 4 + 2.5, 5, 6 + 3.5, 7]
    assert batch.dones[:, 0].tolist() == [1, 1, 1, 0, 0, 0, 0]
    assert batch.discounts[:, 0].tolist() == [0.125, 0.25, 0.5, 0.25, 0.5, 0.25, 0.5]
    assert batch.next_observations[:, 0].tolist() == [3, 3, 3, 5, 5, 7, 7]


@pytest.mark.parametrize("reward", [np.inf, np.nan])
def test_n_step_returns_ignore_what_follows_the_end_of_an_episode(reward):
    buffer = LakepondReplayBuffer(10, BOX, DISCRETE, device="cpu", n_steps=3, gamma=0.5)
    obs = np.zeros((1, 5), np.float32)
    with warnings.catch_warnings(action="ignore"):  # of the NaN
        for value, done in ((1.0, False), (1.0, False), (1.0, True), (reward, False)):
            buffer.add(obs, obs, np.array([0]), np.array([value]), np.array([done]), [{}])
    assert buffer._get_samples(np.arange(3)).rewards[:, 0].tolist() == [1.75, 1.5, 1]


# --- training ----------------------------------------------------------------------------------------


class Losses:
    """A logger's `train/` values of each update."""

    def __init__(self, model):
        self.values = []
        train = model.train

        def recorded(*args, **kwargs):
            train(*args, **kwargs)
            self.values.append(
                {k: v for k, v in model.logger.name_to_value.items() if k.startswith("train/")}
            )

        model.train = recorded


def trained(algorithm, env_id, buffer_class, *, n_envs, options=None, **arguments):
    model = algorithm(
        "MlpPolicy",
        make_vec_env(env_id, n_envs=n_envs, seed=1),
        replay_buffer_class=buffer_class,
        replay_buffer_kwargs=options,
        policy_kwargs={"net_arch": [16]},
        learning_starts=40,
        buffer_size=60,  # overwritten several times
        seed=0,
        device="cpu",
        **arguments,
    )
    losses = Losses(model)
    model.learn(240)
    return model, losses.values


@pytest.mark.parametrize("n_envs", [1, 2])
@pytest.mark.parametrize(("algorithm", "env_id"), [(DQN, "CartPole-v1"), (SAC, "Pendulum-v1")])
def test_training_is_identical_to_sb3s_own_buffer(algorithm, env_id, n_envs):
    theirs, their_losses = trained(algorithm, env_id, buffers.ReplayBuffer, n_envs=n_envs)
    mine, losses = trained(algorithm, env_id, LakepondReplayBuffer, n_envs=n_envs)
    assert len(losses) > 20
    assert losses == their_losses
    for name, value in theirs.policy.state_dict().items():
        assert torch.equal(mine.policy.state_dict()[name], value), name


# --- hindsight ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("infos", [False, True])
@pytest.mark.parametrize("strategy", ["future", "final", "episode"])
def test_hindsight_batches_are_those_of_sb3(strategy, infos):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), n_envs=2, seed=3)
    options = dict(
        env=env,
        device="cpu",
        n_envs=2,
        n_sampled_goal=3,
        goal_selection_strategy=strategy,
        copy_info_dict=infos,
    )
    theirs = HerReplayBuffer(80, env.observation_space, env.action_space, **options)
    mine = LakepondHerReplayBuffer(80, env.observation_space, env.action_space, **options)
    rng = np.random.default_rng(0)
    obs = env.reset()
    for step in range(130):  # the buffer holds 40 of each environment
        action = rng.integers(0, 4, 2)
        new_obs, reward, done, info = env.step(action)
        next_obs = copy.deepcopy(new_obs)
        for i in np.flatnonzero(done):
            for key in next_obs:
                next_obs[key][i] = info[i]["terminal_observation"][key]
        for buffer in (mine, theirs):
            buffer.add(copy.deepcopy(obs), copy.deepcopy(next_obs), action, reward, done, info)
        obs = new_obs
        np.testing.assert_array_equal(mine.ep_length, theirs.ep_length)
        if step % 10 == 9:
            assert_same(draw(mine, 33, step), draw(theirs, 33, step))


@pytest.mark.parametrize("handle", [False, True])
def test_hindsight_truncates_unfinished_episodes_as_sb3_does(handle):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), n_envs=2, seed=3)
    spaces_of = env.observation_space, env.action_space
    options = dict(env=env, device="cpu", n_envs=2, handle_timeout_termination=handle)
    theirs, mine = (
        HerReplayBuffer(80, *spaces_of, **options),
        LakepondHerReplayBuffer(80, *spaces_of, **options),
    )
    obs = env.reset()
    for _ in range(9):  # no flip reaches the goal
        new_obs, reward, done, info = env.step(np.zeros(2, np.int64))
        for buffer in (mine, theirs):
            buffer.add(copy.deepcopy(obs), copy.deepcopy(new_obs), np.zeros(2), reward, done, info)
        obs = new_obs
    for buffer in (mine, theirs):
        with pytest.warns(UserWarning, match="will be truncated"):
            buffer.truncate_last_trajectory()
    for name in ("dones", "timeouts", "ep_start", "ep_length"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    assert_same(draw(mine, 33, 1), draw(theirs, 33, 1))
    with pytest.raises(lp.RecordError, match="dones of a step that has ended cannot be changed"):
        mine.dones[mine.pos - 1] = False


def test_hindsight_survives_a_lake_with_the_same_episodes(tmp_path):
    env = make_vec_env(lambda: BitFlippingEnv(n_bits=4, continuous=False, max_steps=6), n_envs=2, seed=3)
    options = dict(env=env, device="cpu", n_envs=2, path=str(tmp_path / "lake"))
    buffer = LakepondHerReplayBuffer(40, env.observation_space, env.action_space, **options)
    with pytest.raises(RuntimeError, match="before the end of the first episode"):
        buffer.sample(4)
    obs, rng = env.reset(), np.random.default_rng(0)
    for _ in range(57):
        action = rng.integers(0, 4, 2)
        new_obs, reward, done, info = env.step(action)
        buffer.add(obs, copy.deepcopy(new_obs), action, reward, done, info)
        obs = new_obs
    before = (buffer.ep_start.copy(), buffer.ep_length.copy(), buffer._current_ep_start.copy())
    batch = draw(buffer, 33, 0)
    saved = pickle.dumps(buffer)
    assert len(saved) < 20_000
    buffer.close()
    again = pickle.loads(saved)
    again.set_env(env)
    for one, other in zip((again.ep_length, again._current_ep_start), before[1:], strict=True):
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(again.ep_start[again.ep_length > 0], before[0][before[1] > 0])
    assert_same(draw(again, 33, 0), batch)
    with pytest.warns(UserWarning, match="last trajectory in the replay buffer will be truncated"):
        again.truncate_last_trajectory()
    assert (again.dones[again.pos - 1] == 1).all()
    again.close()


# --- priorities --------------------------------------------------------------------------------------


def test_priorities_choose_and_weigh_in_proportion():
    """Four steps with priorities 1, 2, 3, 4 and alpha 0.5: shares of sqrt(p), weights (N P) ** -beta."""
    buffer = LakepondReplayBuffer(4, BOX, DISCRETE, device="cpu", alpha=0.5, beta=0.7)
    fill(Walk(BOX, 1), 4, buffer)
    buffer.update_priorities(np.arange(4), torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True))
    share = np.sqrt([1, 2, 3, 4]) / np.sqrt([1, 2, 3, 4]).sum()
    np.random.seed(0)
    batches = [buffer.sample(100) for _ in range(40)]
    drawn = np.bincount(np.concatenate([b.step_ids for b in batches]), minlength=4) / 4000
    np.testing.assert_allclose(drawn, share, atol=0.01)
    weight = (4 * share) ** -0.7
    weight /= weight.max()
    for batch in batches:
        np.testing.assert_allclose(batch.weights.numpy()[:, 0], weight[batch.step_ids], rtol=1e-4)
    np.random.seed(5)
    first = buffer.sample(10).step_ids
    np.random.seed(5)
    np.testing.assert_array_equal(buffer.sample(10).step_ids, first)


def test_prioritised_dqn_weighs_the_loss_and_updates_priorities():
    model = PrioritizedDQN(
        "MlpPolicy",
        "CartPole-v1",
        n_steps=3,
        gamma=0.9,
        learning_starts=50,
        seed=0,
        device="cpu",
        train_freq=1,
    )
    buffer = model.replay_buffer
    assert isinstance(buffer, LakepondReplayBuffer)
    assert (buffer.n_steps, buffer.gamma, buffer.alpha, buffer.beta) == (3, 0.9, 0.6, 0.4)
    seen = []
    sample, update = buffer.sample, buffer.update_priorities
    buffer.sample = lambda *args, **kwargs: seen.append(sample(*args, **kwargs)) or seen[-1]

    def check(step_ids, td):
        batch = seen[-1]
        assert batch.step_ids is step_ids
        with torch.no_grad():  # one step after the update, on the same batch: close to the TD error before it
            best = model.q_net_target(batch.next_observations).max(dim=1, keepdim=True).values
            target = batch.rewards + (1 - batch.dones) * batch.discounts * best
            value = model.q_net(batch.observations).gather(1, batch.actions)
        np.testing.assert_allclose(td, (value - target).abs()[:, 0], atol=0.1)
        update(step_ids, td)

    buffer.update_priorities = check
    model.learn(120)
    assert len(seen) == 70
    assert 0.9 < buffer.beta <= 1
    assert np.unique(sample(500).weights).size > 20


@pytest.mark.parametrize(
    ("base", "ours", "env_id"), [(DQN, PrioritizedDQN, "CartPole-v1"), (SAC, PrioritizedSAC, "Pendulum-v1")]
)
def test_with_equal_weights_prioritised_training_is_sb3s(base, ours, env_id):
    """The same batches with weights of 1 give the same parameters as SB3's own algorithm."""
    common = dict(learning_starts=50, seed=0, device="cpu", batch_size=32, policy_kwargs={"net_arch": [16]})
    theirs = base("MlpPolicy", env_id, replay_buffer_class=LakepondReplayBuffer, **common).learn(150)
    mine = ours("MlpPolicy", env_id, **common)

    def uniform(batch_size, env=None):
        inds = np.random.randint(0, mine.replay_buffer.size(), size=batch_size)
        envs = np.random.randint(0, high=1, size=(batch_size,))
        ids = mine.replay_buffer.ids_at(inds, envs)
        samples = mine.replay_buffer._samples(ids, env)
        return lp.adapters.sb3.buffer.PrioritizedSamples(*samples, torch.ones(batch_size, 1), ids)

    mine.replay_buffer.sample = uniform
    mine.learn(150)
    for name, value in theirs.policy.state_dict().items():
        torch.testing.assert_close(mine.policy.state_dict()[name], value, rtol=1e-5, atol=1e-6)


def test_priorities_that_nobody_updates_are_warned_of():
    buffer = LakepondReplayBuffer(10, BOX, DISCRETE, device="cpu", alpha=0.6)
    fill(Walk(BOX, 1), 5, buffer)
    for _ in range(999):
        buffer.sample(2)
    with pytest.warns(RuntimeWarning, match="no priority was updated; use PrioritizedDQN"):
        buffer.sample(2)


@pytest.mark.parametrize("script", ["dqn", "rainbow"])
def test_the_cleanrl_examples_update_as_often_with_several_environments(script, tmp_path):
    found = runpy.run_path(str(Path(__file__).parents[2] / f"examples/cleanrl_{script}_atari.py"))
    args = found["Args"](
        num_envs=8,
        total_timesteps=96,
        learning_starts=48,
        buffer_size=200,
        batch_size=2,
        out=tmp_path,
        device="cpu",
    )
    found["main"](args)
    saved = torch.load(tmp_path / "checkpoint.pt")
    assert {int(state["step"]) for state in saved["optimizer"]["state"].values()} == {(96 - 48) // 4}


# --- lakes -------------------------------------------------------------------------------------------


def test_a_saved_buffer_goes_through_its_lake_and_costs_what_is_new(tmp_path):
    lake = tmp_path / "lake"
    buffer = LakepondReplayBuffer(300, FRAMES, DISCRETE, device="cpu", n_envs=2, path=str(lake))
    plain = LakepondReplayBuffer(300, FRAMES, DISCRETE, device="cpu", n_envs=2)
    walk = Walk(FRAMES, 2)
    fill(walk, 140, buffer, plain)
    pickle.dumps(buffer)
    before = used(lake)
    fill(walk, 20, buffer, plain)
    saved = pickle.dumps(buffer)
    assert len(saved) < 5_000
    assert used(lake) - before < before / 4
    fill(walk, 3, buffer)  # after the save: not part of it
    again = pickle.loads(saved)
    assert (again.pos, again.full) == (plain.pos, plain.full) == (10, True)
    assert_same(draw(again, 64, 1), draw(plain, 64, 1))
    with pytest.raises(lp.ReplayClosed, match="closed"):
        buffer.add(*walk.step())
    fill(walk, 5, again, plain)
    assert_same(draw(again, 64, 2), draw(plain, 64, 2))
    again.close()


def used(folder):
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def test_a_second_buffer_of_one_program_takes_the_lake_over(tmp_path):
    arguments = (50, BOX, DISCRETE)
    first = LakepondReplayBuffer(*arguments, device="cpu", path=str(tmp_path / "lake"))
    walk = Walk(BOX, 1)
    fill(walk, 20, first)
    second = LakepondReplayBuffer(*arguments, device="cpu", path=str(tmp_path / "lake"))
    assert second.size() == 20
    with pytest.raises(lp.ReplayClosed, match="a later buffer of this program has opened"):
        fill(walk, 1, first)
    fill(walk, 1, second)
    assert second.dones[19] == 1  # the episode that was under way when it was opened again has ended
    second.close()


@pytest.mark.parametrize("change", [{"alpha": 0.6}, {"lake_options": {"max_steps": 60}}])
def test_a_second_buffer_with_other_settings_opens_the_lake_again(tmp_path, change):
    arguments = (50, BOX, DISCRETE, "cpu")
    first = LakepondReplayBuffer(*arguments, path=str(tmp_path / "lake"))
    fill(Walk(BOX, 1), 20, first)
    second = LakepondReplayBuffer(*arguments, path=str(tmp_path / "lake"), **change)
    assert second.size() == 20
    with pytest.raises(lp.ReplayClosed, match="closed"):
        fill(Walk(BOX, 1), 1, first)
    second.sample(4)
    fill(Walk(BOX, 1), 60, second)
    second.close()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == (60 if "lake_options" in change else 80)


FORKED = """
import os, sys
import numpy as np
from gymnasium import spaces
from lakepond.adapters.sb3 import LakepondReplayBuffer

box = spaces.Box(-9, 9, (5000,), np.float32)
buffer = LakepondReplayBuffer(500, box, spaces.Discrete(3), device="cpu", path=sys.argv[1])
obs = np.zeros((1, 5000), np.float32)
buffer.add(obs, obs, np.array([0]), np.array([1.0]), np.array([False]), [{}])
child = os.fork()
if child:
    os.waitpid(child, 0)
    for obs in np.random.default_rng(0).random((100, 1, 5000), np.float32):
        buffer.add(obs, obs, np.array([0]), np.array([2.0]), np.array([False]), [{}])
"""


def test_a_forked_child_that_exits_leaves_the_lake_to_its_parent(tmp_path):
    """Both exit without `close`; the parent commits at its exit, more than is compressed in one go."""
    program = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "lake")]
    ended = subprocess.run(program, capture_output=True, text=True, timeout=120, check=True)
    assert ended.stderr == ""
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 101


def test_a_model_is_saved_loaded_and_continued(tmp_path):
    options = {"path": str(tmp_path / "lake"), "n_steps": 3, "gamma": 0.99, "commit_every": 30}
    model = DQN(
        "MlpPolicy",
        "CartPole-v1",
        replay_buffer_class=LakepondReplayBuffer,
        replay_buffer_kwargs=options,
        learning_starts=20,
        buffer_size=100,
        seed=0,
        device="cpu",
    )
    model.learn(132)
    model.save(tmp_path / "model")
    model.save_replay_buffer(tmp_path / "buffer")
    rewards = np.asarray(model.replay_buffer.rewards)
    del model
    model = DQN.load(tmp_path / "model", env=gym.make("CartPole-v1"))
    model.load_replay_buffer(tmp_path / "buffer")
    assert (model.replay_buffer.size(), model.replay_buffer.pos) == (100, 32)
    np.testing.assert_array_equal(model.replay_buffer.rewards, rewards)
    model.learn(40, reset_num_timesteps=False)
    assert model.replay_buffer.replay.recorded == 172
    model.replay_buffer.close()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 172


def test_a_loaded_buffer_truncates_unfinished_episodes(tmp_path):
    """Observations are constant, so that only the flag separates the episodes."""
    options = dict(device="cpu", n_envs=2, path=str(tmp_path / "lake"), n_steps=3, gamma=1.0)
    buffer = LakepondReplayBuffer(100, BOX, DISCRETE, **options)

    def add(*rounds):
        obs, action = np.zeros((2, 5), np.float32), np.zeros(2)
        for t in rounds:  # environment 1 terminates in round 3
            done = np.array([False, t == 3])
            buffer.add(obs, obs, action, np.array([t, t + 100.0]), done, [{}, {}])

    add(0, 1, 2, 3)
    saved = pickle.dumps(buffer)
    add(4)  # not part of it
    buffer.close()
    buffer = pickle.loads(saved)
    add(10, 11)
    batch = buffer.replay.steps(np.arange(12), n_step=3, gamma=1.0)
    assert batch.reward[::2].tolist() == [0 + 1 + 2, 1 + 2 + 3, 2 + 3, 3, 10 + 11, 11]
    assert buffer.dones[:].sum() == 2
    assert buffer.timeouts[:, 0].nonzero()[0].tolist() == [3]
    assert buffer.timeouts[:, 1].sum() == 0
    buffer.close()


KILLED = """
import sys
import numpy as np
from gymnasium import spaces
from lakepond.adapters.sb3 import LakepondReplayBuffer

box = spaces.Box(-9, 9, (5,), np.float32)
buffer = LakepondReplayBuffer(500, box, spaces.Discrete(3), device="cpu", path=sys.argv[1], commit_every=50)
for t in range(10**6):
    obs = np.full((1, 5), t, np.float32)
    buffer.add(obs, obs + 1, np.array([0]), np.array([t]), np.array([t % 10 == 9]), [{}])
    if t == 400:
        buffer.commit()
        print("ready", flush=True)
"""


def test_a_killed_process_leaves_all_that_was_committed(tmp_path):
    lake = str(tmp_path / "lake")
    process = subprocess.Popen([sys.executable, "-c", KILLED, lake], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    buffer = LakepondReplayBuffer(500, BOX, DISCRETE, device="cpu", path=lake)
    recorded = buffer.replay.recorded
    assert recorded > 400
    newest = (buffer.pos - 1) % buffer.buffer_size
    assert buffer.rewards[newest, 0] == recorded - 1
    assert buffer.timeouts[newest, 0] == (recorded % 10 != 0)  # cut off where it was killed
    obs = np.full((1, 5), -1, np.float32)
    buffer.add(obs, obs, np.array([0]), np.array([0.0]), np.array([False]), [{}])
    assert buffer.size() == min(500, recorded + 1)
    buffer.close()


def test_a_lake_is_pushed_to_a_bucket_and_resumed_from_it(tmp_path):
    cloud = f"file://{tmp_path / 'bucket'}"
    first = LakepondReplayBuffer(50, BOX, DISCRETE, device="cpu", path=str(tmp_path / "a"), cloud=cloud)
    fill(Walk(BOX, 1), 30, first)
    rewards = np.asarray(first.rewards)
    first.close()
    second = LakepondReplayBuffer(50, BOX, DISCRETE, device="cpu", path=str(tmp_path / "b"), cloud=cloud)
    np.testing.assert_array_equal(second.rewards, rewards)
    second.close()


def test_reset_forgets_and_stays_forgotten(tmp_path):
    buffer = LakepondReplayBuffer(50, BOX, DISCRETE, device="cpu", path=str(tmp_path / "lake"))
    walk = Walk(BOX, 1)
    fill(walk, 30, buffer)
    buffer.reset()
    assert buffer.size() == 0
    with pytest.raises(ValueError, match="no steps; add some"):
        buffer.sample(1)
    fill(walk, 7, buffer)
    rewards = buffer.rewards[:7]
    buffer.close()
    again = LakepondReplayBuffer(50, BOX, DISCRETE, device="cpu", path=str(tmp_path / "lake"))
    assert again.size() == 7
    np.testing.assert_array_equal(again.rewards[:7], rewards)
    assert (again.rewards[7:] == 0).all()
    again.close()


# --- copies ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["pickle", "deepcopy", "deepcopy of a lake"])
@pytest.mark.parametrize("steps", [0, 12, 77])
def test_copies_are_equal_and_independent(way, steps, tmp_path):
    path = str(tmp_path / "lake") if way == "deepcopy of a lake" else None
    buffer = LakepondReplayBuffer(60, DICT, DISCRETE, device="cpu", n_envs=2, alpha=0.6, path=path)
    walk = Walk(DICT, 2)
    fill(walk, steps, buffer)
    if steps:
        ids = np.arange(buffer.replay.oldest, buffer.replay.recorded)
        buffer.update_priorities(ids, np.linspace(0.1, 3, len(ids)))
    new = pickle.loads(pickle.dumps(buffer)) if way == "pickle" else copy.deepcopy(buffer)
    assert new.path is None
    assert (new.pos, new.full, new.size()) == (buffer.pos, buffer.full, buffer.size())
    np.testing.assert_array_equal(new.next_observations["frames"], buffer.next_observations["frames"])
    if steps:
        mine, theirs = draw(new, 50, 3), draw(buffer, 50, 3)
        np.testing.assert_array_equal(mine.step_ids, theirs.step_ids)
        assert_same(mine._replace(step_ids=None), theirs._replace(step_ids=None))
    if path is None:
        fill(walk, 3, new)
        assert new.pos == (buffer.pos + 3) % 30
    else:
        with pytest.raises(lp.LakeReadOnly, match="is a copy of the one that writes"):
            fill(walk, 1, new)
    assert buffer.replay.recorded == 2 * steps
    buffer.close()


# --- refusals ----------------------------------------------------------------------------------------


def test_bad_input_is_refused_in_one_sentence(tmp_path):
    with pytest.raises(lp.SpecError, match="optimize_memory_usage=True would lose the last observation"):
        LakepondReplayBuffer(10, BOX, DISCRETE, optimize_memory_usage=True)
    with pytest.raises(lp.SpecError, match=r"observation_space is Tuple.*takes Box, Discrete"):
        LakepondReplayBuffer(10, spaces.Tuple([BOX]), DISCRETE)
    with pytest.raises(lp.SpecError, match=r"observation_space\['a'\] is Dict"):
        LakepondReplayBuffer(10, spaces.Dict({"a": DICT}), DISCRETE)
    with pytest.raises(lp.SpecError, match="buffer_size=3 is less than one step of n_envs=4"):
        LakepondReplayBuffer(3, BOX, DISCRETE, n_envs=4)
    with pytest.raises(lp.SpecError, match="n_steps must be at least 1"):
        LakepondReplayBuffer(3, BOX, DISCRETE, n_steps=0)
    with pytest.raises(lp.SpecError, match="need a lake; pass its folder as path"):
        LakepondReplayBuffer(3, BOX, DISCRETE, cloud="gs://bucket/demo")
    with pytest.raises(lp.SpecError, match="PrioritizedDQN needs a LakepondReplayBuffer with alpha"):
        PrioritizedDQN("MlpPolicy", "CartPole-v1", replay_buffer_class=buffers.ReplayBuffer)
    with pytest.raises(lp.SpecError, match="HER needs a Dict observation"):
        LakepondHerReplayBuffer(10, BOX, DISCRETE, env=None)
    buffer = LakepondReplayBuffer(10, BOX, DISCRETE, device="cpu", n_envs=2)
    with pytest.raises(lp.RecordError, match=r"obs has the shape \[1, 5\], but 2 environments need \[2, 5\]"):
        buffer.add(np.zeros((1, 5)), np.zeros((2, 5)), np.zeros(2), np.zeros(2), np.zeros(2), [{}, {}])
    assert buffer.size() == 0
    assert repr(buffer).startswith("LakepondReplayBuffer(0 of 10 steps, ")
    with pytest.raises(lp.TooFewSteps, match="has no steps") as caught:
        buffer.sample(4)
    assert isinstance(caught.value, ValueError)  # as SB3's own buffer
    with pytest.raises(lp.LakeError, match="in memory only"):
        buffer.commit()
    fill(Walk(BOX, 2), 3, buffer)
    with pytest.raises(lp.RecordError, match="dones can be set for the newest step"):
        buffer.dones[0] = True
    with pytest.raises(lp.RecordError, match="cannot be changed"):
        buffer.rewards[0] = 1


def test_a_lake_has_the_spaces_of_the_environment(tmp_path):
    actions = (
        (spaces.Discrete(18), spaces.MultiDiscrete([18])),
        (spaces.Discrete(3, start=-1), spaces.MultiDiscrete([3], start=[-1])),
        (spaces.Box(-2, 5, (2, 3), np.float64), spaces.Box(-2, 5, (6,), np.float32)),
        (spaces.MultiDiscrete([2, 3]), spaces.MultiDiscrete([2, 3])),
        (spaces.MultiBinary(4), spaces.MultiBinary(4)),
    )
    observations = spaces.Dict(a=spaces.Box(-1, np.array([2, 3, np.inf], np.float32)), b=spaces.Discrete(4))
    for number, (space, stored) in enumerate(actions):
        path = tmp_path / str(number)
        buffer = LakepondReplayBuffer(20, observations, space, device="cpu", path=str(path))
        obs = {key: np.array([value]) for key, value in observations.sample().items()}
        buffer.add(obs, obs, np.array([space.sample()]), np.zeros(1), np.array([True]), [{}])
        buffer.close()
        with lp.Lake.open(path) as lake:
            lake.to_minari(tmp_path / f"minari-{number}")
        dataset = minari.MinariDataset(tmp_path / f"minari-{number}" / "data")
        assert dataset.action_space == stored
        assert dataset.observation_space == spaces.Dict(a=observations["a"], b=spaces.MultiDiscrete([4]))


def test_a_buffer_whose_lake_was_moved_says_how_to_continue(tmp_path):
    buffer = LakepondReplayBuffer(20, BOX, DISCRETE, device="cpu", path=str(tmp_path / "old"))
    fill(Walk(BOX, 1), 5, buffer)
    saved = pickle.dumps(buffer)
    buffer.close()
    (tmp_path / "old").rename(tmp_path / "new")
    with pytest.raises(lp.LakeNotFound, match=r"of the lake .*old: .* give its folder as path"):
        pickle.loads(saved)
    assert not (tmp_path / "old").exists()
    buffer = LakepondReplayBuffer(20, BOX, DISCRETE, device="cpu", path=str(tmp_path / "new"))
    assert buffer.size() == 5


def test_a_lake_of_another_environment_is_refused(tmp_path):
    path = str(tmp_path / "lake")
    buffer = LakepondReplayBuffer(20, BOX, DISCRETE, device="cpu", path=path)
    fill(Walk(BOX, 1), 5, buffer)
    buffer.close()
    with pytest.raises(lp.SpecError, match=r"does not fit Box\(0, 255, \(4, 6, 6\), uint8\)"):
        LakepondReplayBuffer(20, FRAMES, DISCRETE, path=path)
    with pytest.raises(
        lp.SpecError, match=r"recorded with .*Discrete\(3\) and n_envs=1, this model has .*Discrete\(4\)"
    ):
        LakepondReplayBuffer(20, BOX, spaces.Discrete(4), path=path)
    with pytest.raises(lp.SpecError, match=r"n_envs=1, this model has .*n_envs=2"):
        LakepondReplayBuffer(20, BOX, DISCRETE, n_envs=2, path=path)
    with lp.Replay.open(tmp_path / "other", buffer.spec, 20) as replay:
        replay.record(
            obs=np.zeros(5, np.float32),
            action=np.array([0]),
            reward=0.0,
            next_obs=np.ones(5, np.float32),
            terminated=False,
            truncated=False,
        )
    with pytest.raises(lp.SpecError, match="was not recorded by an SB3 buffer"):
        LakepondReplayBuffer(20, BOX, DISCRETE, path=str(tmp_path / "other"))
    with lp.Lake.open(path) as lake:
        assert len(lake) == 5
