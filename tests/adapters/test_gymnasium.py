"""Gymnasium environments in every autoreset mode: the true last observation is kept."""

import contextlib
import copy
import pickle

import ale_py
import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

import lakepond as lp
from lakepond.adapters.gymnasium import Recorder


class Counter(gym.Env):
    """Observes (episode, t) in a large image; terminates after 5 steps in even episodes, else truncates."""

    observation_space = gym.spaces.Dict(
        {"image": gym.spaces.Box(0, 255, (4, 12, 12), np.uint8), "t": gym.spaces.Discrete(1000)}
    )
    action_space = gym.spaces.Discrete(3)

    def __init__(self, number: int = 0) -> None:
        self.number, self.episode = number, -1

    def _observe(self) -> dict:
        rows = [max(0, self.t - 3 + k) for k in range(4)]
        image = np.stack([np.full((12, 12), (50 * self.number + 10 * self.episode + t) % 256) for t in rows])
        return {"image": image.astype(np.uint8), "t": np.int64(100 * self.episode + self.t)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        end = self.t == 5 + self.number
        even = self.episode % 2 == 0
        return self._observe(), float(self.t), end and even, end and not even, {}


def check(replay: lp.Replay) -> None:
    """Every transition goes one step on within its episode, also the last, and ends are where they were."""
    batch = replay.recent(len(replay))
    assert (batch.next_obs["t"] == batch.obs["t"] + 1).all()
    t = batch.next_obs["t"] % 100
    assert (batch.reward == t).all()
    ended = batch.terminated | batch.truncated
    assert (ended == (t == 5 + batch.stream)).all()
    assert ended.sum() >= 8
    even = batch.obs["t"] // 100 % 2 == 0
    assert (batch.terminated == (ended & even)).all()
    for i in np.flatnonzero(ended):
        newest = 50 * batch.stream[i] + 10 * (batch.obs["t"][i] // 100) + t[i]
        assert (batch.next_obs["image"][i, -1] == newest % 256).all()


def spec() -> lp.Spec:
    return lp.Spec.from_spaces(Counter.observation_space, Counter.action_space)


def test_spec_from_spaces():
    assert spec().obs == {"image": lp.Field((4, 12, 12), "uint8"), "t": lp.Field((), "int64")}
    assert spec().action == lp.Field((), "int64")
    nested = gym.spaces.Tuple((gym.spaces.MultiBinary(3), gym.spaces.MultiDiscrete([2, 3])))
    assert lp.Spec.from_spaces(nested, nested).obs == (lp.Field((3,), "int8"), lp.Field((2,), "int64"))
    with pytest.raises(lp.SpecError, match="no fixed shape"):
        lp.Spec.from_spaces(gym.spaces.Text(5), gym.spaces.Discrete(2))


def test_single_environment():
    replay = lp.Replay(spec(), 1000)
    env = Recorder(Counter(), replay)
    for _ in range(10):
        env.reset()
        done = False
        while not done:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            done = terminated or truncated
    assert len(replay) == 50
    check(replay)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("copy", [True, False])
def test_vector_environment(mode, copy):
    replay = lp.Replay(spec(), 1000)
    envs = SyncVectorEnv([lambda i=i: Counter(i) for i in range(3)], autoreset_mode=mode, copy=copy)
    env = Recorder(envs, replay)
    env.reset(seed=0)
    for _ in range(60):
        env.step(env.action_space.sample())
    ends = 60 // 5 + 60 // 6 + 60 // 7
    if mode == AutoresetMode.SAME_STEP:
        assert len(replay) == 180
    else:  # the steps that only reset are no transitions
        assert 180 - ends <= len(replay) < 180
    check(replay)
    env.close()


class Unordered(Counter):
    """Returns the keys of its observations, of one shape, in another order than its space has."""

    observation_space = gym.spaces.Dict({key: gym.spaces.Box(0, 1e4, (2,)) for key in ("goal", "t")})

    def _observe(self) -> dict:
        return {"t": np.full(2, self.t, np.float32), "goal": np.full(2, 1000 + self.episode, np.float32)}


def test_the_last_observation_has_the_keys_of_the_space():
    envs = SyncVectorEnv([Unordered], autoreset_mode=AutoresetMode.SAME_STEP)
    replay = lp.Replay(lp.Spec.from_spaces(envs.single_observation_space, envs.single_action_space), 100)
    env = Recorder(envs, replay)
    env.reset()
    for _ in range(10):
        env.step(env.action_space.sample())
    batch = replay.recent(10)
    assert batch.next_obs["t"][:, 0].tolist() == [1, 2, 3, 4, 5] * 2
    assert batch.next_obs["goal"][:, 0].tolist() == [1000] * 5 + [1001] * 5


def test_autoreset_disabled():
    replay = lp.Replay(spec(), 1000)
    envs = SyncVectorEnv([lambda: Counter(0)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    env = Recorder(envs, replay)
    env.reset()
    for _ in range(40):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if (terminated | truncated).any():
            env.reset(options={"reset_mask": terminated | truncated})
    batch = replay.recent(len(replay))
    assert len(replay) == 80
    assert (batch.next_obs["t"] == batch.obs["t"] + 1).all()


def test_a_masked_reset_truncates_only_the_environments_of_its_mask():
    replay = lp.Replay(spec(), 100)
    env = Recorder(SyncVectorEnv([Counter] * 3, autoreset_mode=AutoresetMode.DISABLED), replay)
    env.reset()
    for mask in (None, [False, True, False]):
        if mask is not None:
            env.reset(options={"reset_mask": np.array(mask)})
        for _ in range(2):
            env.step(env.action_space.sample())
    batch = replay.steps(np.arange(12), n_step=4, gamma=1.0)
    assert np.flatnonzero(replay.steps(np.arange(12)).truncated).tolist() == [4]
    assert batch.num_steps.tolist() == [4, 2, 4, 3, 1, 3, 2, 2, 2, 1, 1, 1]


def test_step_before_reset():
    with pytest.raises(lp.RecordError, match="reset"):
        Recorder(Counter(), lp.Replay(spec(), 10)).step(0)


@pytest.mark.parametrize("wrong", ["observation", "action"])
def test_a_spec_of_all_environments_together_is_refused(wrong):
    envs = SyncVectorEnv([Counter] * 3)
    names = [f"{'' if wrong == name else 'single_'}{name}_space" for name in ("observation", "action")]
    replay = lp.Replay(lp.Spec.from_spaces(*(getattr(envs, name) for name in names)), 10)
    with pytest.raises(lp.SpecError, match=r"3 environments together; use .*envs\.single_observation_space"):
        Recorder(envs, replay)
    with pytest.raises(lp.SpecError, match=r"Recorder\(env, replay\)"):
        Recorder(replay, envs)
    Recorder(envs, lp.Replay(spec(), 10))


def test_real_atari_through_the_vector_environment():
    """Breakout in eight emulators: the stack of next_obs is the stack of obs moved on, at ends too."""
    envs = ale_py.AtariVectorEnv("breakout", num_envs=8, stack_num=4, noop_max=0)
    replay = lp.Replay(
        lp.Spec.from_spaces(envs.single_observation_space, envs.single_action_space), capacity=4_000
    )
    env = Recorder(envs, replay)
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    for _ in range(500):
        env.step(rng.integers(0, 4, 8))
    stats = replay.stats()
    assert stats.layout["obs"] == "4 rows of 7,056 B along axis 0"
    batch = replay.recent(len(replay))
    assert batch.terminated.sum() >= 8
    assert np.array_equal(batch.obs[:, 1:], batch.next_obs[:, :-1])
    assert 3_900 < len(replay) <= 4_000
    # the bar: one frame a step, and 5 % and 200 bytes for everything else
    assert stats.bytes_held / len(replay) <= 1.05 * 7_056 + 200
    env.close()


def test_a_step_that_cannot_be_recorded_leaves_later_ones_correct():
    """The environment has moved on. Its observation is constant here, so only `cut` separates the steps."""

    class Constant(Counter):
        def _observe(self):
            return {"image": np.zeros((4, 12, 12), np.uint8), "t": np.int64(0)}

    fields = {"extras": {"q": lp.Field((), "float32")}}
    for make in (Counter, Constant):
        replay = lp.Replay(lp.Spec(spec().obs, spec().action, **fields), 100)
        env = Recorder(make(), replay)
        env.reset()
        for extras in ({"q": 0.0}, {}, {"q": 0.0}, {"q": 0.0}):
            with contextlib.nullcontext() if extras else pytest.raises(lp.RecordError, match="q"):
                env.step(0, **extras)
        batch = replay.steps(np.arange(3), n_step=2, gamma=1.0)
        if make is Counter:
            assert batch.obs["t"].tolist() == [0, 2, 3]
        assert batch.reward.tolist() == [1, 3 + 4, 4]
    replay = lp.Replay(lp.Spec(spec().obs, spec().action, **fields), 100)
    env = Recorder(SyncVectorEnv([Counter]), replay)
    env.reset()
    for t in range(9):  # the end of the episode is lost, the step after it only resets
        with pytest.raises(lp.RecordError, match="q") if t == 4 else contextlib.nullcontext():
            env.step(np.zeros(1, np.int64), **({} if t == 4 else {"q": np.zeros(1)}))
    assert replay.recent(7).obs["t"].tolist() == [0, 1, 2, 3, 100, 101, 102]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda env: pickle.loads(pickle.dumps(env))])
def test_copies_of_a_recorder_record(way):
    env = Recorder(Counter(), lp.Replay(spec(), 100))
    env.reset()
    env.step(0)
    new = way(env)
    new.step(0)
    assert len(new.replay) == 2
    assert len(env.replay) == (2 if way is copy.copy else 1)
    assert new.action_space == env.action_space
    assert not hasattr(new, "__deepcopy__")


def test_a_reset_in_the_middle_of_an_episode_is_an_end():
    replay = lp.Replay(spec(), 100)
    env = Recorder(Counter(), replay)
    for steps in (2, 3):
        env.reset()
        for _ in range(steps):
            env.step(0)
    batch = replay.sample(60, rng=np.random.default_rng(0), n_step=4, gamma=1.0)
    by_hand = {0: 3.0, 1: 2.0, 2: 6.0, 3: 5.0, 4: 3.0}  # rewards 1 2 | 1 2 3
    for i, step_id in enumerate(batch.step_id.tolist()):
        assert batch.reward[i] == by_hand[step_id]
