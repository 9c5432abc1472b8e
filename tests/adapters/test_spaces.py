"""Gymnasium spaces stay with a lake, and every export has them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import pyarrow.parquet as pq
import pytest
from gymnasium import spaces

import lakepond as lp
from lakepond.adapters.arrow import import_arrow
from lakepond.adapters.lerobot import import_lerobot
from lakepond.adapters.minari import import_minari
from lakepond.lake.format import description
from reference import same_bytes

OBS = spaces.Dict(
    {
        "image": spaces.Box(0, 255, (4, 6, 3), np.uint8),
        "state": spaces.Box(np.array([-np.inf, 0.1], np.float32), np.array([1.5, np.inf], np.float32)),
        "parts": spaces.Tuple((spaces.MultiBinary(3), spaces.MultiDiscrete([3, 5], start=[1, 0]))),
        "level": spaces.Discrete(7, start=-2),
    }
)
ACTION = spaces.Discrete(18)
ENV_SPEC = gym.spec("CartPole-v1")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    OBS.seed(0)
    spec = lp.Spec.from_spaces(OBS, ACTION, extras={"value": lp.Field((2,))}, env_spec=ENV_SPEC)
    with lp.Replay.open(tmp_path / "lake", spec, capacity=100) as replay:
        obs = OBS.sample()
        for t in range(30):
            after = OBS.sample()
            replay.record(
                obs=obs,
                action=t % 4,  # never near 17
                reward=float(t),
                next_obs=after,
                terminated=t % 10 == 9,
                truncated=t == 25,
                value=np.full(2, t),
            )
            obs = after if t % 10 != 9 and t != 25 else OBS.sample()
    return tmp_path / "lake"


def kept(spec: lp.Spec) -> str:
    return json.dumps(description.spec_to_json(spec), sort_keys=True)


def test_a_lake_keeps_spaces_and_the_environment(lake):
    spec = lp.Spec.from_spaces(OBS, ACTION, extras={"value": lp.Field((2,))}, env_spec=ENV_SPEC)
    with lp.Lake.open(lake) as opened:
        assert kept(opened.spec) == kept(spec)
        assert opened.spec.action.space == {"type": "Discrete", "n": 18, "start": 0}
        assert opened.spec.obs["image"].space == {"type": "Box", "low": 0, "high": 255}
        assert opened.spec.obs["state"].space["high"] == [1.5, None]
        assert gym.envs.registration.EnvSpec.from_json(opened.spec.env_spec).id == "CartPole-v1"


def test_specs_are_compared_by_what_is_stored(lake):
    known = lp.Spec.from_spaces(OBS, ACTION, extras={"value": lp.Field((2,))})
    other = lp.Spec.from_spaces(OBS, spaces.Discrete(4), extras={"value": lp.Field((2,))})
    assert known == other
    assert hash(known) == hash(other)
    with lp.Replay.open(lake, other, capacity=10) as replay:  # a spec by hand has no spaces either
        assert replay.spec.action.space["n"] in (4, 18)
    with lp.Lake.open(lake) as opened:
        assert opened.spec.action.space["n"] == 18


def test_a_reader_that_knows_no_spaces_reads_the_description(lake):
    """Format 2 has shape, dtype and rows; other keys of a field are ignored."""
    text = json.loads((lake / "lake.json").read_text())
    assert text["format"] == 2
    assert set(text["spec"]["action"]) == {"shape", "dtype", "rows", "space"}
    assert set(text["spec"]["reward"]) == {"shape", "dtype", "rows"}
    assert "null" not in json.dumps(text["spec"]["obs"]["dict"][0]).replace('"rows": null', "")


@pytest.mark.parametrize(
    "space",
    [
        {"type": "Text"},
        {"type": "Box", "low": 0},
        {"type": "Box", "low": [0, 0, 0], "high": 1},
        {"type": "Box", "low": 2, "high": 1},
        {"type": "Box", "low": "x", "high": 1},
        {"type": "Discrete", "n": 0, "start": 0},
        {"type": "MultiDiscrete", "nvec": [2], "start": [0]},
        [],
    ],
)
def test_an_invalid_space_is_refused(lake, space):
    with pytest.raises(lp.SpecError, match="space"):
        lp.Field((2,), "float32", space=space)


def test_minari_has_the_true_spaces(lake, tmp_path):
    import minari

    with lp.Lake.open(lake) as opened:
        opened.to_minari(tmp_path / "set")
        before = [*opened.episodes()]
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    assert dataset.action_space == ACTION
    assert dataset.observation_space == OBS
    assert dataset.env_spec.id == "CartPole-v1"
    for episode in dataset.iterate_episodes():
        assert OBS["state"].contains(episode.observations["state"][0])
    import_minari(tmp_path / "set", tmp_path / "again")
    with lp.Lake.open(tmp_path / "again") as again, lp.Lake.open(lake) as opened:
        assert replace(again.spec, extras={}) == replace(opened.spec, extras={})
        assert again.spec.action.space == opened.spec.action.space
        assert kept(lp.Spec(obs=again.spec.obs)) == kept(lp.Spec(obs=opened.spec.obs))
        assert again.spec.env_spec == opened.spec.env_spec
        assert [e.reward.tolist() for e in again.episodes()] == [e.reward.tolist() for e in before]


def test_a_spec_by_hand_is_exported_as_before(tmp_path):
    import minari

    zeros = np.zeros(2, np.float32)
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((2,))), capacity=10) as replay:
        for t in range(4):
            flags = {"terminated": t == 3, "truncated": False}
            replay.record(obs=zeros, action=t, reward=0.0, next_obs=zeros, **flags)
    with lp.Lake.open(tmp_path / "lake") as lake:
        lake.to_minari(tmp_path / "set")
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    assert dataset.action_space == spaces.Discrete(4)
    assert dataset.observation_space == spaces.Box(-np.inf, np.inf, (2,), np.float32)


@pytest.mark.parametrize("form", ["parquet", "arrow", "lerobot"])
def test_there_and_back_with_spaces(lake, tmp_path, form):
    from lakepond.adapters.arrow import export_arrow, export_parquet
    from lakepond.adapters.lerobot import export_lerobot

    export = {"parquet": export_parquet, "arrow": export_arrow, "lerobot": export_lerobot}[form]
    target = tmp_path / f"steps.{form}"
    with lp.Lake.open(lake) as opened:
        export(opened, target)
        with pytest.raises(lp.SpecError, match="already exists"):
            export(opened, target)
    bring = import_lerobot if form == "lerobot" else import_arrow
    seen: list[tuple[int, int]] = []
    done = bring(target, tmp_path / "again", progress=lambda *at: seen.append(at))
    assert (done.steps, done.episodes) == (30, 4)
    assert seen[-1][0] == seen[-1][1]
    with lp.Lake.open(tmp_path / "again") as again, lp.Lake.open(lake) as opened:
        assert kept(again.spec) == kept(opened.spec)
        for one, other in zip(again.episodes(), opened.episodes(), strict=True):
            assert same_bytes(one.obs, other.obs)
            assert same_bytes(one.extras, other.extras)
            assert one.action.tolist() == other.action.tolist()
            assert one.reward.tolist() == other.reward.tolist()
            assert one.truncated.tolist() == other.truncated.tolist()
            assert one.stream == other.stream


def test_a_table_without_next_obs_or_spec_is_refused(lake, tmp_path):
    with lp.Lake.open(lake) as opened:
        opened.to_parquet(tmp_path / "half.parquet", next_obs=False)
    with pytest.raises(lp.SpecError, match=r"has no next_obs\['image'\].*export it again"):
        import_arrow(tmp_path / "half.parquet", tmp_path / "again")
    table = pq.read_table(tmp_path / "half.parquet")
    pq.write_table(table.replace_schema_metadata({}), tmp_path / "theirs.parquet")
    with pytest.raises(lp.SpecError, match="import takes tables that lakepond exported"):
        import_arrow(tmp_path / "theirs.parquet", tmp_path / "again")
    (tmp_path / "cut.parquet").write_bytes((tmp_path / "half.parquet").read_bytes()[:-99])
    with pytest.raises(lp.SpecError, match="not a Parquet file"):
        import_arrow(tmp_path / "cut.parquet", tmp_path / "again")
    assert not (tmp_path / "again").exists()


class TestLeRobot:
    def test_hugging_face_datasets_opens_the_folder(self, lake, tmp_path, monkeypatch):
        datasets = pytest.importorskip("datasets")
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        with lp.Lake.open(lake) as opened:
            assert opened.to_lerobot(tmp_path / "set", fps=10) == 4
            episodes = [*opened.episodes()]
        found = datasets.load_dataset(str(tmp_path / "set"), cache_dir=str(tmp_path / "cache"))["train"]
        assert len(found) == 30
        rows = found.with_format("numpy")[:]
        assert rows["observation.image"].shape == (30, 4, 6, 3)
        images = np.concatenate([e.obs["image"][:-1] for e in episodes])
        assert (rows["observation.image"] == images).all()
        assert rows["action"].tolist() == np.concatenate([e.action for e in episodes]).tolist()
        assert rows["next.reward"].tolist() == np.concatenate([e.reward for e in episodes]).tolist()
        assert rows["next.done"].sum() == 4
        assert rows["index"].tolist() == list(range(30))
        assert rows["timestamp"][3] == np.float32(0.3)

    def test_the_metadata_is_lerobots(self, lake, tmp_path):
        with lp.Lake.open(lake) as opened:
            opened.to_lerobot(tmp_path / "set")
        info = json.loads((tmp_path / "set/meta/info.json").read_text())
        assert (info["codebase_version"], info["total_episodes"], info["total_frames"]) == ("v3.0", 4, 30)
        assert info["features"]["action"]["space"]["n"] == 18
        assert info["features"]["observation.parts.1"]["space"]["nvec"] == [3, 5]
        file = info["data_path"].format(chunk_index=0, file_index=0)
        names = set(pq.read_schema(tmp_path / "set" / file).names)
        assert names == set(info["features"])
        episodes = pq.read_table(tmp_path / "set/meta/episodes/chunk-000/file-000.parquet").to_pylist()
        for episode in episodes:
            assert episode["dataset_to_index"] - episode["dataset_from_index"] == episode["length"]
        assert episodes[-1]["dataset_to_index"] == 30
        assert (
            pq.read_table(tmp_path / "set/meta/tasks.parquet").to_pandas().loc["default", "task_index"] == 0
        )

    def test_large_lakes_have_several_files(self, lake, tmp_path, monkeypatch):
        monkeypatch.setattr("lakepond.adapters.lerobot.FILE_BYTES", 1000)
        with lp.Lake.open(lake) as opened:
            opened.to_lerobot(tmp_path / "set")
        assert len([*(tmp_path / "set/data").rglob("*.parquet")]) == 4
        assert import_lerobot(tmp_path / "set", tmp_path / "again").steps == 30

    def test_a_dataset_of_others_is_refused(self, lake, tmp_path):
        with lp.Lake.open(lake) as opened:
            opened.to_lerobot(tmp_path / "set")
        info = tmp_path / "set/meta/info.json"
        whole = json.loads(info.read_text())
        info.write_text(json.dumps({k: v for k, v in whole.items() if k != "lakepond"}))
        with pytest.raises(lp.SpecError, match="only datasets that lakepond exported"):
            import_lerobot(tmp_path / "set", tmp_path / "again")
        info.write_text(json.dumps({**whole, "total_episodes": 9}))
        with pytest.raises(lp.SpecError, match="missing"):
            import_lerobot(tmp_path / "set", tmp_path / "again")
        assert not (tmp_path / "again").exists()
