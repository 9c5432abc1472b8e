"""What a lake hands to others is what was recorded, bit for bit, an episode or some megabytes at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from test_lake import item, record, spec_of, step_of

import lakepond as lp
from lakepond.adapters import arrow, episodes, lerobot, minari, npz
from lakepond.types import leaves, rebuild
from reference import same_bytes

EXPORTED = ["frames first", "frames last", "market window", "dict and tuple", "vector"]


@pytest.fixture(params=EXPORTED)
def lake(request: pytest.FixtureRequest, tmp_path: Path):
    """Three streams whose episodes of seven steps interleave; commits fall in their middle."""
    with lp.Replay.open(tmp_path / "lake", spec_of(request.param), capacity=60) as replay:
        for stop in (1, 25, 26, 100):
            record(replay, request.param, replay.stats().recorded, stop)
            replay.commit()
    with lp.Lake.open(tmp_path / "lake") as opened:
        opened.world = request.param
        yield opened


def test_episodes_are_whole_and_in_order(lake):
    found = list(lake.episodes())
    assert sorted(np.concatenate([e.step_id for e in found]).tolist()) == list(range(100))
    assert [e.steps for e in found].count(7) == 12
    for episode in found:
        assert set(np.diff(episode.step_id).tolist()) <= {3}
        ended = episode.terminated | episode.truncated
        assert not ended[:-1].any()
        for k, n in enumerate(episode.step_id.tolist()):
            step = step_of(lake.world, n)
            assert episode.stream == step["stream"]
            assert same_bytes(item(episode.obs, k), step["obs"])
            assert same_bytes(item(episode.obs, k + 1), step["next_obs"])
            assert same_bytes(item(episode.action, k), step["action"])
            assert episode.extras["log_prob"][k] == step["log_prob"]


def test_an_environment_that_was_reset_begins_an_episode(tmp_path):
    world = "frames first"
    with lp.Replay.open(tmp_path / "lake", spec_of(world), capacity=60) as replay:
        for n in (0, 3, 6, 30, 33):  # the second stretch is of another episode, and no flag says so
            replay.record(**step_of(world, n))
            if n == 6:
                replay.cut(0)
        replay.commit()
        for n in (36, 0, 3):
            replay.record(**step_of(world, n))
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert [e.reward.tolist() for e in lake.episodes()] == [[0, 3, 6], [30, 33, 36], [0, 3]]


def test_arrow_and_parquet_hold_every_step(lake, tmp_path):
    lake.to_parquet(tmp_path / "steps.parquet")
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table["step_id"].to_pylist() == list(range(100))
    batch = lake.steps(0, 100)
    for name, tree in (("obs", batch.obs), ("next_obs", batch.next_obs), ("action", batch.action)):
        for path, values in leaves(tree, name):
            column = table[path].combine_chunks()
            flat = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
            assert flat.to_numpy(zero_copy_only=False).tobytes() == np.ascontiguousarray(values).tobytes()
    streamed = lake.to_arrow().read_all()
    assert streamed.column_names == table.column_names
    assert streamed["reward"].equals(table["reward"])
    assert table["terminated"].to_numpy().tolist() == batch.terminated.tolist()
    without = lake.to_arrow(next_obs=False).schema.names
    assert not [name for name in without if name.startswith("next_obs")]
    with pytest.raises(lp.SpecError, match="already exists"):
        lake.to_parquet(tmp_path / "steps.parquet")


def test_minari_opens_what_was_exported(lake, tmp_path):
    import minari

    world = lake.world
    if world == "frames last":  # Minari would take (24, 12, 4) for no image: the same as any box
        assert lake.spec.obs.shape[-1] == 4
    done = []
    count = lake.to_minari(
        tmp_path / "set", dataset_id="test/set-v0", progress=lambda a, b: done.append((a, b))
    )
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    assert done[-1] == (100, 100)
    assert (dataset.total_episodes, dataset.total_steps) == (count, 100)
    for theirs, ours in zip(dataset.iterate_episodes(), lake.episodes(), strict=True):
        assert same_bytes(theirs.observations, ours.obs)
        assert same_bytes(theirs.actions, ours.action)
        assert theirs.rewards.tolist() == ours.reward.tolist()
        assert theirs.terminations.tolist() == ours.terminated.tolist()
        assert theirs.truncations.tolist() == ours.truncated.tolist()
        assert theirs.infos["log_prob"][:-1].reshape(-1).tolist() == ours.extras["log_prob"].tolist()
    with pytest.raises(lp.SpecError, match="already exists"):
        lake.to_minari(tmp_path / "set")


def test_views_are_arrays_to_numpy(lake):
    batch = lake.steps(0, 100)
    reward = lake.column("reward")
    assert np.asarray(reward).tolist() == batch.reward.tolist()
    assert reward[7] == batch.reward[7]
    assert reward[[5, 1, 99, 1]].tolist() == batch.reward[[5, 1, 99, 1]].tolist()
    assert np.asarray(lake.column("action"))[40:].tobytes() == batch.action[40:].tobytes()
    with pytest.raises(lp.SpecError, match="no column"):
        lake.column("rewards")
    if lake.world == "vector":
        with pytest.raises(lp.SpecError, match="without deduplication"):
            lake.rows()
    if lake.world == "market window":
        rows = lake.rows()
        held = {row.tobytes() for row in np.asarray(rows)}
        assert {row.tobytes() for row in batch.obs[60]} <= held
        assert rows[3:5].shape == (2, *lake.spec.obs.shape[1:])
        assert rows[-1].tobytes() == np.asarray(rows)[-1].tobytes()


def test_an_image_of_a_minari_dataset_is_not_a_jpeg(tmp_path):
    import minari

    frames = np.random.default_rng(0).integers(0, 255, (12, 64, 48, 3), dtype=np.uint8)
    with lp.Replay.open(tmp_path / "lake", lp.Spec(obs=lp.Field((64, 48, 3), "uint8")), 50) as replay:
        for t in range(11):
            last = t == 10
            step = {"obs": frames[t], "next_obs": frames[t + 1], "terminated": last, "truncated": False}
            replay.record(action=t % 3, reward=float(t), **step)
    with lp.Lake.open(tmp_path / "lake") as lake:
        lake.to_minari(tmp_path / "set")
    dataset = minari.MinariDataset(tmp_path / "set" / "data")
    (episode,) = dataset.iterate_episodes()
    assert (episode.observations == frames).all()
    assert dataset.action_space.n == 3


def test_plain_rows_are_seen_where_they_lie(tmp_path):
    """With codec "none" no row is copied: every array is a part of the mapped file."""
    world, path = "market window", tmp_path / "lake"
    with lp.Replay.open(path, spec_of(world), capacity=100, codec="none") as replay:
        record(replay, world, 0, 60)
        replay.commit()
        with lp.Lake.open(path) as lake:
            first = lake.stats().rows
        record(replay, world, 60, 90)
    with lp.Lake.open(path) as lake:
        view = lake.rows()
        assert len(lake.commit.rows[0]) == 2
        both = np.asarray(view)  # of two files: a copy
        mapped = lake.reader._open(lake.reader.heads[0], lake.commit.rows[0][0]).shard._blocks.plain
        for some, places in ((view[:first], slice(0, first)), (view[3:9], slice(3, 9)), (view[5], 5)):
            assert np.shares_memory(some, mapped)
            assert not some.flags.writeable
            assert same_bytes(some, both[places])
        assert not np.shares_memory(both, mapped)
        assert same_bytes(view[first - 2 : first + 2], both[first - 2 : first + 2])
        assert same_bytes(view[-1], both[-1])
        assert view[4:4].shape == (0, *view.shape[1:])
        with pytest.raises(ValueError, match="several files"):
            view.__array__(copy=False)
        lake.compact(keep_last=1)
        whole = lake.rows()
        array = np.asarray(whole)
        assert np.shares_memory(
            array, lake.reader._open(lake.reader.heads[0], lake.commit.rows[0][0]).shard._blocks.plain
        )
        assert np.shares_memory(whole.__array__(copy=False), array)
        assert not np.shares_memory(whole.__array__(copy=True), array)
        assert np.asarray(whole, np.float64).dtype == np.float64
    assert same_bytes(array, both)  # also after the lake is closed
    with lp.Replay.open(tmp_path / "zstd", spec_of(world), capacity=100) as replay:
        record(replay, world, 0, 60)
    with lp.Lake.open(tmp_path / "zstd") as lake, pytest.raises(ValueError, match="decoded"):
        lake.rows().__array__(copy=False)


TAKEN = (
    "self",
    "done",
    "step_id",
    "allow_pickle",
    "file",
    "index",
    "infos",
    "extras",
    "frame_index",
    "rewards",
)
FORMS = {
    "npz": (npz.export_npz, npz.import_npz),
    "parquet": (arrow.export_parquet, arrow.import_arrow),
    "arrow": (arrow.export_arrow, arrow.import_arrow),
    "minari": (minari.export_minari, minari.import_minari),
    "lerobot": (lerobot.export_lerobot, lerobot.import_lerobot),
}


def lake_of_numbers(path: Path, steps: int, obs: lp.Field | dict | None = None, extras=()) -> lp.Lake:
    """One episode whose observations, actions and rewards are the number of the step."""
    spec = lp.Spec(obs=obs or lp.Field((2,)), extras={name: lp.Field((), "float64") for name in extras})
    with lp.Replay.open(path, spec, capacity=100) as replay:
        for n in range(steps):
            seen, after = (rebuild(spec.obs, lambda t=t: np.full(2, t, np.float32)) for t in (n, n + 1))
            flags = {"terminated": n == steps - 1, "truncated": False}
            others = {name: n + i / 100 for i, name in enumerate(extras)}
            replay.record(obs=seen, next_obs=after, action=n, reward=float(n), **flags, **others)
    return lp.Lake.open(path)


@pytest.mark.parametrize("form", FORMS)
def test_an_extra_may_have_a_name_that_the_format_uses(tmp_path, form):
    write, read = FORMS[form]
    with lake_of_numbers(tmp_path / "lake", 6, extras=TAKEN) as lake:
        write(lake, tmp_path / "exported")
        read(tmp_path / "exported", tmp_path / "again")
        with lp.Lake.open(tmp_path / "again") as again:
            assert again.spec == lake.spec
            kept, recorded = again.steps(0, 6).extras, lake.steps(0, 6).extras
            assert {name: kept[name].tolist() for name in TAKEN} == {n: recorded[n].tolist() for n in TAKEN}
    if form == "npz":
        with np.load(tmp_path / "exported/000000.npz") as arrays:
            assert arrays["step_id"].tolist() == list(range(6))
    elif form == "parquet":
        assert pq.read_table(tmp_path / "exported")["step_id"].to_pylist() == list(range(6))


@pytest.mark.parametrize("form", FORMS)
def test_an_observation_may_have_any_name(tmp_path, form):
    write, read = FORMS[form]
    names = ["a'b", 'c"d', "e\\f", "g\nh", "\u00fc\u2028\U0001f99e", "x'\"y", "i/j", "0"]
    obs = {name: lp.Field((2,)) for name in names}
    with lake_of_numbers(tmp_path / "lake", 6, obs=obs) as lake:
        write(lake, tmp_path / "exported")
        read(tmp_path / "exported", tmp_path / "again")
        with lp.Lake.open(tmp_path / "again") as again:
            assert again.spec == lake.spec
            assert {name: again.steps(0, 6).obs[name][:, 0].tolist() for name in names} == {
                name: list(range(6)) for name in names
            }


def test_npz_files_of_earlier_versions_and_of_others_are_imported(tmp_path):
    (tmp_path / "npz").mkdir()
    arrays = {"obs": np.zeros((4, 2)), "action": np.zeros(3), "reward": np.zeros(3), "log_prob": np.ones(3)}
    end = np.array([False, False, True])
    earlier = {"terminated": end, "truncated": ~end, "stream": np.array(7), "step_id": np.arange(3)}
    for flags, stream in ((earlier, 7), ({"done": end}, 0)):
        np.savez_compressed(tmp_path / "npz/0.npz", **arrays, **flags)
        (episode,) = npz.read_npz(tmp_path / "npz")
        assert episode.terminated.tolist() == end.tolist()
        assert (episode.stream, list(episode.extras)) == (stream, ["log_prob"])


@pytest.mark.parametrize("form", ["npz", "minari", "lerobot"])
def test_an_episode_may_be_longer_than_the_capacity_of_an_import(tmp_path, monkeypatch, form):
    monkeypatch.setattr(episodes, "COMMIT_STEPS", 8)
    write, read = FORMS[form]
    with lake_of_numbers(tmp_path / "lake", 20) as lake:
        write(lake, tmp_path / "exported")
    assert read(tmp_path / "exported", tmp_path / "again").steps == 20
    with lp.Lake.open(tmp_path / "again") as again:
        (episode,) = again.episodes()
        assert episode.obs[:, 0].tolist() == list(range(21))


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_a_table_may_have_larger_batches_than_an_export_writes(tmp_path, form):
    with lake_of_numbers(tmp_path / "lake", 10, extras=["tag"]) as lake:
        table = pa.concat_tables([lake.to_arrow().read_all()] * 5001).combine_chunks()
    assert table.num_rows > episodes.COMMIT_STEPS
    if form == "parquet":
        pq.write_table(table, tmp_path / "steps")
    else:
        with pa.ipc.new_file(str(tmp_path / "steps"), table.schema) as file:
            file.write_table(table)
    done = arrow.import_arrow(tmp_path / "steps", tmp_path / "again")
    assert (done.steps, done.episodes) == (50_010, 5001)
    with lp.Lake.open(tmp_path / "again") as again:
        batch = again.steps(49_990, 50_010)
    for values in (batch.obs[:, 0], batch.next_obs[:, 1] - 1, batch.action, batch.extras["tag"]):
        assert values.tolist() == [*range(10)] * 2


@pytest.mark.parametrize(
    ("form", "obs"),
    [
        ("lerobot", {"a": {"b": lp.Field((2,))}, "a.b": lp.Field((2,))}),
        ("minari", {0: lp.Field((2,)), "0": lp.Field((2,))}),
    ],
)
def test_observations_whose_columns_would_have_one_name_are_refused(tmp_path, form, obs):
    with lake_of_numbers(tmp_path / "lake", 3, obs) as lake, pytest.raises(lp.SpecError, match="rename one"):
        FORMS[form][0](lake, tmp_path / "exported")


@pytest.mark.parametrize("values", [np.arange(7), np.full(7, 0.5)])
def test_a_minari_info_that_is_named_stream_and_is_not_one_is_refused(tmp_path, monkeypatch, values):
    with lake_of_numbers(tmp_path / "lake", 6) as lake:
        minari.export_minari(lake, tmp_path / "exported")
    (found,) = minari._read_arrow(tmp_path / "exported/data", "arrow")
    found["infos"]["stream"] = values
    monkeypatch.setattr(minari, "_read_arrow", lambda *_: iter([found]))
    with pytest.raises(lp.SpecError, match="info `stream`"):
        list(minari.read_minari(tmp_path / "exported"))
