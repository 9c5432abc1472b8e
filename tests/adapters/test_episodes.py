"""Datasets in other formats are imported to a lake and exported again bit for bit."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import minari
import numpy as np
import pytest

import lakepond as lp
from lakepond.adapters.episodes import Episode, import_episodes
from lakepond.adapters.minari import import_minari, read_minari
from lakepond.adapters.npz import import_npz, read_npz
from reference import same_bytes

sys.path.insert(0, str(Path(__file__).parents[1] / "lake"))
from test_lake import record, spec_of


def same_episodes(one: list[Episode], other: list[Episode]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        for name in ("obs", "action", "reward", "terminated", "truncated", "extras"):
            assert same_bytes(getattr(a, name), getattr(b, name)), name
        assert a.stream == b.stream


@pytest.mark.parametrize("world", ["frames first", "dict and tuple", "vector", "market window"])
@pytest.mark.parametrize("way", ["npz", "minari"])
def test_there_and_back(tmp_path, world, way):
    with lp.Replay.open(tmp_path / "one", spec_of(world), capacity=60) as replay:
        record(replay, world, 0, 80)
    with lp.Lake.open(tmp_path / "one") as lake:
        before = list(lake.episodes())
        getattr(lake, f"to_{way}")(tmp_path / "between")
    answer = []
    bring = import_npz if way == "npz" else import_minari
    done = bring(tmp_path / "between", tmp_path / "two", progress=lambda a, b: answer.append((a, b)))
    assert (done.episodes, done.steps) == (len(before), 80)
    assert done.ratio > 0
    assert answer[-1] == (len(before), len(before))
    with lp.Lake.open(tmp_path / "two") as lake:
        lake.verify()
        same_episodes(list(lake.episodes()), before)
    with pytest.raises(lp.SpecError, match="already exists"):
        bring(tmp_path / "between", tmp_path / "two")


class Screen(gym.Env):
    """Episodes of five steps whose frames are their number; Minari makes JPEGs of them."""

    observation_space = gym.spaces.Box(0, 255, (40, 36, 3), np.uint8)
    action_space = gym.spaces.Discrete(2)

    def reset(self, **_):
        self.t = 0
        return np.full((40, 36, 3), 7, np.uint8), {}

    def step(self, action):
        self.t += 1
        return np.full((40, 36, 3), self.t, np.uint8), 1.0, self.t == 5, False, {}


@pytest.mark.filterwarnings("ignore")  # of Minari, about metadata
@pytest.mark.parametrize("data_format", ["arrow", "parquet", "hdf5"])
@pytest.mark.parametrize("make", [lambda: gym.make("CartPole-v1"), Screen], ids=["vector", "images"])
def test_a_dataset_that_minari_wrote(tmp_path, monkeypatch, data_format, make):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    env = minari.DataCollector(make(), record_infos=False, data_format=data_format)
    for episode in range(3):
        env.reset(seed=episode)
        over = False
        while not over:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            over = terminated or truncated
    env.create_dataset("theirs/set-v0", algorithm_name="random", code_permalink="none")
    env.close()
    dataset = minari.MinariDataset(tmp_path / "theirs" / "set-v0" / "data")
    found = list(read_minari(tmp_path / "theirs" / "set-v0"))
    assert len(found) == 3
    for ours, theirs in zip(found, dataset.iterate_episodes(), strict=True):
        assert ours.obs.tobytes() == theirs.observations.tobytes()
        assert ours.obs.shape == theirs.observations.shape
        assert ours.action.tolist() == theirs.actions.tolist()
        assert ours.reward.tolist() == theirs.rewards.tolist()
        assert ours.terminated.tolist() == theirs.terminations.tolist()
    done = import_minari(tmp_path / "theirs" / "set-v0", tmp_path / "lake")
    assert done.steps == sum(episode.steps for episode in found)


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_done_in_npz_files_is_a_termination_unless_it_is_truncated(tmp_path, kind):
    flags = {
        "time limit": ({"done": [0, 0, 1], "truncated": [0, 0, 1]}, [False, True]),
        "end": ({"done": [0, 0, 1], "truncated": [0, 0, 0]}, [True, False]),
        "limit only": ({"done": [0, 0, 0], "truncated": [0, 0, 1]}, [False, True]),
        "no limits": ({"done": [0, 0, 1]}, [True, False]),
        "both": ({"terminated": [0, 0, 1], "truncated": [0, 0, 1]}, [True, True]),
    }
    steps = {"obs": np.zeros((4, 3)), "action": np.zeros(3), "reward": np.zeros(3)}
    for name, (given, _) in flags.items():
        np.savez(tmp_path / f"{name}.npz", **steps, **{key: np.array(v, kind) for key, v in given.items()})
    for file, episode in zip(sorted(tmp_path.glob("*.npz")), read_npz(tmp_path), strict=True):
        assert [episode.terminated[-1], episode.truncated[-1]] == flags[file.stem][1], file.stem
        assert not (episode.terminated | episode.truncated)[:-1].any()


def test_what_cannot_be_imported_is_told(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(lp.SpecError, match=r"no \.npz files"):
        import_npz(tmp_path / "empty", tmp_path / "lake")
    with pytest.raises(lp.SpecError, match="not a Minari dataset"):
        import_minari(tmp_path / "empty", tmp_path / "lake")
    with pytest.raises(lp.SpecError, match="no episode"):
        import_episodes([], tmp_path / "lake")
    folder = tmp_path / "npz"
    folder.mkdir()
    whole = {"obs": np.zeros((4, 3)), "action": np.zeros(3), "reward": np.zeros(3), "done": np.zeros(3)}
    for wrong, says in (
        ({"obs": np.zeros((3, 3))}, "one more"),
        ({"reward": np.zeros(2)}, "2 rewards"),
    ):
        np.savez(folder / "0.npz", **{**whole, **wrong})
        with pytest.raises(lp.SpecError, match=says):
            list(read_npz(folder))
    np.savez(folder / "0.npz", obs=whole["obs"])
    with pytest.raises(lp.SpecError, match="no reward and no terminated and no action"):
        list(read_npz(folder))
    (folder / "0.npz").write_bytes(b"not a zip")
    with pytest.raises(lp.SpecError, match="cannot be read"):
        list(read_npz(folder))
    np.savez(folder / "0.npz", **{**whole, "action": np.array([None] * 3)}, allow_pickle=True)
    with pytest.raises(lp.SpecError, match="cannot be read"):  # a pickle is never run
        list(read_npz(folder))
    assert not (tmp_path / "lake").exists()
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "metadata.json").write_text("{")
    with pytest.raises(lp.SpecError, match=r"metadata\.json cannot be read"):
        list(read_minari(tmp_path / "bad"))
    (tmp_path / "bad" / "metadata.json").write_text("{}")
    with pytest.raises(lp.SpecError, match="observation_space"):
        list(read_minari(tmp_path / "bad"))


def test_an_episode_without_an_end_is_cut(tmp_path):
    def episode(first: float) -> Episode:
        obs = np.arange(first, first + 4)[:, None].astype(np.float32)
        flags = np.zeros(3, bool)
        return Episode(obs, np.zeros(3, np.int64), np.ones(3, np.float32), flags, flags, {})

    import_episodes([episode(0), episode(3)], tmp_path / "lake")  # the second begins where the first stopped
    with lp.Replay.open(tmp_path / "lake", capacity=10) as replay:
        batch = replay.steps([0, 1, 2, 3])
        assert batch.reward.tolist() == [1, 1, 1, 1]
