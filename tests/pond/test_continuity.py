"""Which step continues which: derived from the observations, kept in the lake, and never guessed."""

from __future__ import annotations

import numpy as np
import pytest

import lakepond as lp

FRAME = lp.Field((4, 8, 8), "uint8")
VECTOR = lp.Field((3,), "float32")


def observe(field: lp.Field, episode: int, t: int) -> np.ndarray:
    """The observation number `t` of an episode: it names both."""
    if field is VECTOR:
        return np.array([episode, t, episode * 1000 + t], np.float32)
    return np.stack([np.full((8, 8), (17 * episode + t + k) % 251, np.uint8) for k in range(4)])


def record(replay: lp.Replay, field: lp.Field, episode: int, t: int, **more: object) -> int:
    """One step of an episode; its reward is 10 ** t, so that a return names the steps in it."""
    step = {"reward": 10.0**t, "action": t, "terminated": False, "truncated": False} | more
    return replay.record(obs=observe(field, episode, t), next_obs=observe(field, episode, t + 1), **step)


@pytest.mark.parametrize("field", [FRAME, VECTOR], ids=["frames", "vector"])
def test_a_reset_without_an_end_of_the_episode_is_not_crossed(field):
    replay = lp.Replay(lp.Spec(obs=field), 100)
    for episode in (1, 2):
        for t in range(3):
            record(replay, field, episode, t)
    batch = replay.steps(np.arange(6), n_step=3, gamma=1.0)
    assert batch.reward.tolist() == [111, 110, 100, 111, 110, 100]
    assert batch.num_steps.tolist() == [3, 2, 1, 3, 2, 1]
    assert batch.discount.tolist() == [1.0] * 6
    found = replay.sample(500, sequence_length=3, rng=np.random.default_rng(0)).step_id
    assert {tuple(ids) for ids in found.tolist()} == {(0, 1, 2), (3, 4, 5)}
    across = replay.sample(500, sequence_length=3, across_episodes=True, rng=np.random.default_rng(0)).step_id
    assert {tuple(ids) for ids in across.tolist()} == {(i, i + 1, i + 2) for i in range(4)}


@pytest.mark.parametrize("field", [FRAME, VECTOR], ids=["frames", "vector"])
def test_a_replay_that_is_opened_again_links_as_it_was_recorded(tmp_path, field):
    """A cut, a restart in a new episode and a restart in the middle of one."""
    spec = lp.Spec(obs=field)
    with lp.Replay.open(tmp_path / "lake", spec, capacity=100) as replay:
        record(replay, field, 1, 0)
        record(replay, field, 1, 1)
        replay.cut(0)
        record(replay, field, 1, 2)  # its obs is the next_obs before it, but it was cut
        record(replay, field, 1, 3)
    with lp.Replay.open(tmp_path / "lake", capacity=100) as replay:
        record(replay, field, 1, 4)  # the environment continues
        record(replay, field, 2, 0)  # and was reset
    with lp.Replay.open(tmp_path / "lake", capacity=100) as replay:
        batch = replay.steps(np.arange(6), n_step=6, gamma=1.0)
    assert batch.num_steps.tolist() == [2, 1, 3, 2, 1, 1]
    assert batch.reward.tolist() == [11, 10, 11_100, 11_000, 10_000, 1]


@pytest.mark.parametrize("how", ["open", "save", "snapshot"])
def test_a_cut_before_the_next_step_is_kept_when_the_replay_is_opened_again(tmp_path, how):
    """The environment was reset, then the process ended; the next obs happens to be the last next_obs."""
    spec, path = lp.Spec(obs=VECTOR), tmp_path / "lake"
    replay = lp.Replay.open(path, spec, capacity=100) if how == "open" else lp.Replay(spec, 100)
    for t in range(2):
        record(replay, VECTOR, 1, t)
    if how == "open":
        replay.commit()  # the cut is newer than the last step that was committed
    replay.cut([0, 7])
    if how == "save":
        replay.save(path)
    elif how == "snapshot":
        replay.snapshot(path)
    replay.close()
    for _ in range(2):  # also if nothing is recorded
        reopened = lp.Replay.open(path, capacity=100) if how == "open" else lp.Replay.open_saved(path, 100)
        assert reopened._pond.pending_cuts() == {0: 2, 7: 2}
        if _:
            record(reopened, VECTOR, 1, 2)
            record(reopened, VECTOR, 1, 3)
            assert reopened.steps(np.arange(4), n_step=4, gamma=1.0).num_steps.tolist() == [2, 1, 2, 1]
            assert reopened._pond.pending_cuts() == {7: 2}
        reopened.close()


@pytest.mark.parametrize("stream", [-1, 2**31, 10**30, 1.0, True, "0", [0, -1], [[0]], np.array([0.5])])
def test_only_streams_can_be_cut_recorded_to_and_ended(stream):
    replay = lp.Replay(lp.Spec(obs=VECTOR), 10)
    record(replay, VECTOR, 1, 0)
    for call in (replay.cut, replay.end, lambda stream: record(replay, VECTOR, 1, 1, stream=stream)):
        with pytest.raises(lp.RecordError, match="stream must be"):
            call(stream)
    replay.cut([])  # no stream is fine: those of the environments that were reset, say
    record(replay, VECTOR, 1, 1, stream=np.int64(0))
    assert replay.steps([0], n_step=2, gamma=1.0).reward.tolist() == [11]
    assert replay.end(np.int64(0)) == 1


def test_a_lake_that_lists_numbers_of_no_stream_as_cut_is_opened(tmp_path):
    """Earlier versions accepted them in `cut`."""
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=VECTOR), capacity=10) as replay:
        record(replay, VECTOR, 1, 0)
        replay._pond.cut([-1, 0, 2**31])
    with lp.Replay.open(tmp_path / "lake", capacity=10) as replay:
        record(replay, VECTOR, 1, 1)
        assert replay.steps([0, 1], n_step=2, gamma=1.0).reward.tolist() == [1, 10]
        assert replay._pond.pending_cuts() == {}


def test_two_cuts_of_a_stream_both_apply_although_links_are_computed_later():
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    for t in range(6):
        if t in (2, 4):
            replay.cut(0)
            replay.cut(0)
        record(replay, VECTOR, 1, t)
    assert replay.steps(np.arange(6), n_step=6, gamma=1.0).num_steps.tolist() == [2, 1, 2, 1, 2, 1]


def test_a_cut_applies_once_to_its_stream_alone():
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    for t in range(6):
        if t == 3:
            replay.cut(1)
        for stream in range(3):
            record(replay, VECTOR, stream, t, stream=stream)
    steps = replay.steps(np.arange(18), n_step=6, gamma=1.0).num_steps.reshape(6, 3)
    assert steps[:, 0].tolist() == steps[:, 2].tolist() == [6, 5, 4, 3, 2, 1]
    assert steps[:, 1].tolist() == [3, 2, 1, 3, 2, 1]


def test_follows_previous_can_be_passed_where_observations_differ():
    """Observations that are normalised as they are recorded: no obs is the next_obs before it."""
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    for t in range(4):
        record(replay, VECTOR, t, 0, follows_previous=t != 2, reward=10.0**t)
    assert replay.steps(np.arange(4), n_step=4, gamma=1.0).reward.tolist() == [11, 10, 1100, 1000]
    with pytest.raises(lp.RecordError, match="follows_previous has 2 values for 1 steps"):
        record(replay, VECTOR, 0, 0, follows_previous=np.array([True, False]))
    with pytest.raises(lp.RecordError, match="must be a bool"):
        record(replay, VECTOR, 0, 0, follows_previous=1)
    assert len(replay) == 4


def test_an_episode_that_ended_is_not_continued_by_an_equal_observation():
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    record(replay, VECTOR, 1, 0, truncated=True)
    record(replay, VECTOR, 1, 1)
    assert replay.steps([0], n_step=2, gamma=1.0).num_steps.tolist() == [1]


def test_the_newest_step_of_a_stream_can_be_ended_later():
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    for t in range(3):
        record(replay, VECTOR, 1, t, stream=5)
    assert replay.end(5) == 2
    record(replay, VECTOR, 1, 3, stream=5)
    batch = replay.steps(np.arange(4), n_step=4, gamma=1.0)
    assert batch.num_steps.tolist() == [3, 2, 1, 1]
    assert batch.truncated.tolist() == [True, True, True, False]
    with pytest.raises(lp.UnknownStream):
        replay.end(7)


def test_steps_that_were_filled_in_at_random_belong_to_their_stream_and_follow_nothing(tmp_path, rng):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=VECTOR), capacity=50) as replay:
        for t in range(20):
            record(replay, VECTOR, 1, t % 6, reward=float(t))
    filled = lp.Replay(lp.Spec(obs=VECTOR), 50)
    with lp.Lake.open(tmp_path / "lake") as lake:
        filled.fill_from(lake, 20, rng=rng)
    assert filled.recent(3, stream=0).stream.tolist() == [0, 0, 0]
    assert (filled.sample(50, rng=rng, n_step=5, gamma=0.9).num_steps == 1).all()
    for t in range(3):
        record(filled, VECTOR, 1, t, reward=100.0 + t)
    filled.save(tmp_path / "saved")
    with lp.Lake.open(tmp_path / "saved") as lake:
        for sampled in (filled, lake):  # sequences of the steps that were recorded, and of no other
            batch = sampled.sample(30, rng=rng, sequence_length=2, across_episodes=True)
            assert {*map(tuple, batch.reward.tolist())} == {(100.0, 101.0), (101.0, 102.0)}


def test_an_episode_of_a_lake_does_not_start_with_a_step_that_was_filled_in(tmp_path, rng):
    """The first step that is recorded has the observation that the filled one of its stream led to."""
    source = lp.Replay(lp.Spec(obs=VECTOR), 10)
    record(source, VECTOR, 1, 0, reward=1_000.0)
    source.snapshot(tmp_path / "source")
    replay = lp.Replay(lp.Spec(obs=VECTOR), 10)
    with lp.Lake.open(tmp_path / "source") as lake:
        replay.fill_from(lake, 1, rng=rng)
    for t in range(1, 4):
        record(replay, VECTOR, 1, t, follows_previous=True if t == 1 else None)
    replay.snapshot(tmp_path / "saved")
    with lp.Lake.open(tmp_path / "saved") as lake:
        assert [episode.reward.tolist() for episode in lake.episodes()] == [[1_000], [10, 100, 1_000]]


def test_the_end_of_a_stream_is_not_that_of_a_step_that_was_filled_in(tmp_path, rng):
    source = lp.Replay(lp.Spec(obs=VECTOR), 10)
    for t in range(5):
        record(source, VECTOR, 1, t)
    source.snapshot(tmp_path / "source")
    replay = lp.Replay(lp.Spec(obs=VECTOR), 10)
    with lp.Lake.open(tmp_path / "source") as lake:
        replay.fill_from(lake, 5, rng=rng)
    with pytest.raises(lp.UnknownStream, match="stream 0"):
        replay.end(0)
    assert not replay.recent(5).truncated.any()
    record(replay, VECTOR, 1, 7)
    assert replay.end(0) == 5


@pytest.mark.parametrize("field", [FRAME, VECTOR], ids=["frames", "vector"])
@pytest.mark.parametrize(
    ("capacity", "streams"), [(20, 8), (20, 10), (8, 8)], ids=["2.5 steps", "2 steps", "1 step"]
)
def test_a_lake_keeps_the_links_of_streams_that_have_few_steps_in_memory(tmp_path, field, capacity, streams):
    """One step of each stream per call: a step may evict the one that it continues."""
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=field), capacity=capacity) as replay:
        for t in range(9):
            flags, reward = np.zeros(streams, bool), 100.0 * t + np.arange(streams)
            obs, next_obs = (
                np.stack([observe(field, episode, t + k) for episode in range(streams)]) for k in (0, 1)
            )
            step = {"action": np.full(streams, t), "reward": reward, "terminated": flags, "truncated": flags}
            replay.record(obs=obs, next_obs=next_obs, **step)
    with lp.Lake.open(tmp_path / "lake") as lake:
        found = [episode.reward.tolist() for episode in lake.episodes()]
    assert sorted(found) == [[100.0 * t + stream for t in range(9)] for stream in range(streams)]


def test_a_lake_keeps_the_links_of_a_stream_that_records_once_in_half_a_pond(tmp_path):
    """Single steps: one of stream 0, then 49 of stream 1, again and again; the pond has 100."""
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=VECTOR), capacity=100) as replay:
        for t in range(20):
            record(replay, VECTOR, 0, t, reward=float(t), stream=0)
            for _ in range(49):
                record(replay, VECTOR, 1, 0, reward=-1.0, stream=1)
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert list(range(20)) in [episode.reward.tolist() for episode in lake.episodes()]


def test_a_rollout_without_a_stream_is_refused_and_identical_environments_are_not():
    replay = lp.Replay(lp.Spec(obs=VECTOR), 100)
    obs = np.stack([observe(VECTOR, 1, t) for t in range(6)])
    zeros, flags = np.zeros(5), np.zeros(5, bool)
    step = {"action": zeros.astype(int), "reward": zeros, "terminated": flags, "truncated": flags}
    with pytest.raises(lp.RecordError, match=r"stream=0; if they are 5 environments, stream=np.arange\(5\)"):
        replay.record(obs=obs[:-1], next_obs=obs[1:], **step)
    assert len(replay) == 0
    still = np.repeat(obs[:1], 5, axis=0)
    replay.record(obs=still, next_obs=still, **step)  # five environments right after their reset
    replay.record(obs=obs[:-1], next_obs=obs[1:], stream=0, **step)
    assert replay.steps([5], n_step=5, gamma=1.0).num_steps.tolist() == [5]
    assert len(replay) == 10


def test_returns_of_integer_rewards_are_not_truncated():
    replay = lp.Replay(lp.Spec(obs=VECTOR, reward=lp.Field((), "int64")), 10)
    for t in range(3):
        record(replay, VECTOR, 1, t, reward=1)
    assert replay.steps([0], n_step=3, gamma=0.5).reward.tolist() == [1.75]
    assert replay.steps([0]).reward.dtype == np.int64


def test_streams_in_a_lake_of_a_vector_environment_keep_their_links(tmp_path):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=FRAME), capacity=10) as replay:
        for t in range(8):  # two environments; the second is reset after every third step, unannounced
            obs = [observe(FRAME, 1, t), observe(FRAME, 2 + t // 3, t % 3)]
            next_obs = [observe(FRAME, 1, t + 1), observe(FRAME, 2 + t // 3, t % 3 + 1)]
            flags = np.zeros(2, bool)
            replay.record(
                obs=np.stack(obs),
                next_obs=np.stack(next_obs),
                action=np.array([t, t]),
                reward=np.ones(2),
                terminated=flags,
                truncated=flags,
            )
    with lp.Replay.open(tmp_path / "lake", capacity=100) as replay:
        batch = replay.steps(np.arange(16), n_step=20, gamma=1.0)
    assert batch.num_steps[::2].tolist() == [8, 7, 6, 5, 4, 3, 2, 1]
    assert batch.num_steps[1::2].tolist() == [3, 2, 1, 3, 2, 1, 2, 1]
