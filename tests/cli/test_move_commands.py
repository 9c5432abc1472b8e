"""`compact`, `push`, `pull`, `gc`, `import`, `export`: the library's functions, one command away."""

import os
import pickle
import shutil
import time
from collections import deque

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main
from lakepond.lake.lock import WriterLock


def steps_of(path) -> lp.Batch:
    with lp.Lake.open(path) as lake:
        return lake.steps(lake.commit.oldest, lake.commit.recorded)


def same(a: lp.Batch, b: lp.Batch) -> None:
    for name in ("obs", "action", "reward", "next_obs", "terminated"):
        np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_compact_merges_and_keeps_every_step(lake, json_of, capsys):
    before = steps_of(lake)
    merged = json_of("compact", lake, "--keep-last", 1)
    assert merged["files"] < merged["files_before"]
    assert [each["number"] for each in json_of("ls", lake)["commits"]] == [merged["commit"]]
    same(steps_of(lake), before)
    assert main(["compact", str(lake)]) == 0
    assert f"commit {merged['commit']} had" in capsys.readouterr().out


def test_compact_of_a_lake_that_is_written_is_exit_code_4(lake):
    with WriterLock(lake / "lock"):
        assert main(["compact", str(lake)]) == 4


def test_a_lake_goes_up_and_comes_back(lake, tmp_path, json_of, capsys):
    url = f"file://{tmp_path}/bucket/demo"
    pushed = json_of("push", lake, url)
    assert pushed["done"]
    assert pushed["status"]["uploaded"] > 0
    assert json_of("push", lake, url)["status"]["uploaded"] == 0  # each file goes once
    pulled = json_of("pull", url, tmp_path / "back")
    assert pulled["trainer"] is None
    assert pulled["lake"]["steps"] == 150
    same(steps_of(tmp_path / "back"), steps_of(lake))
    assert json_of("pull", url, tmp_path / "older", "--commit", 0)["lake"]["steps"] == 50
    assert main(["push", str(lake), url]) == 0
    assert capsys.readouterr().out == f"{lake} is in {url}: the lake had no new files.\n"
    assert main(["push", str(lake), f"{url}-2"]) == 0
    count = pushed["status"]["uploaded"]
    assert f"{url}-2: uploaded {count} new files of the lake, " in capsys.readouterr().out


def test_a_place_that_came_with_a_lake_is_shown_and_not_used(lake, tmp_path, json_of, capsys, monkeypatch):
    """Somebody sends a lake whose lists say where it was pushed: nothing of ours goes there by itself."""
    monkeypatch.delenv("CLOUD_BUCKET", raising=False)
    url = f"file://{tmp_path}/bucket/theirs"
    json_of("push", lake, url)
    shutil.rmtree(tmp_path / "bucket")
    assert main(["push", str(lake)]) == 2
    assert f"confirm that it should go there: lakepond push {lake} {url}" in capsys.readouterr().err
    assert not (tmp_path / "bucket").exists()


def test_a_run_goes_up_and_comes_back(make_run, tmp_path, json_of, capsys):
    run = make_run(done=3)
    url = f"file://{tmp_path}/bucket/run"
    assert json_of("push", run, url)["done"]
    assert json_of("push", run, url)["url"] == url
    assert json_of("pull", url, tmp_path / "back")["trainer"] == "erl"
    same(steps_of(tmp_path / "back" / "lake"), steps_of(run / "lake"))
    assert (tmp_path / "back" / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    assert json_of("verify", tmp_path / "back")["intact"]
    assert not (tmp_path / "bucket" / "run" / "lock").exists()
    assert main(["pull", url, str(tmp_path / "again"), "--commit", "1"]) == 2
    assert "leave --commit out" in capsys.readouterr().err


def test_push_without_a_place_says_what_to_name(lake, capsys, monkeypatch):
    monkeypatch.delenv("CLOUD_BUCKET", raising=False)
    monkeypatch.delenv("CLOUD_PROVIDER", raising=False)
    assert main(["push", str(lake)]) == 2
    assert "give the URL to push" in capsys.readouterr().err


@pytest.mark.parametrize("scheme", ["s3", "gs", "az"])
def test_push_without_credentials_fails_at_once(scheme, lake, make_run, capsys, monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "STORAGE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    for path in (lake, make_run(done=1)):
        began = time.monotonic()
        assert main(["push", str(path), f"{scheme}://bucket/demo"]) == 1
        assert time.monotonic() - began < 30  # an unreachable server is asked for 120 s
        err = capsys.readouterr().err
        assert err.startswith(f"lakepond: no credentials for {scheme}://bucket/demo: set ")
        assert err.count("\n") == 1


def test_push_goes_where_the_environment_says(lake, tmp_path, monkeypatch, json_of):
    monkeypatch.setenv("CLOUD_PROVIDER", "local")
    monkeypatch.setenv("CLOUD_BUCKET", str(tmp_path / "bucket"))
    assert json_of("push", lake)["url"] == f"file://{tmp_path}/bucket/lake"
    assert (tmp_path / "bucket" / "lake" / "lake.json").exists()


def test_pull_of_nothing_is_one_sentence(tmp_path, capsys):
    assert main(["pull", f"file://{tmp_path}/nothing", str(tmp_path / "back")]) == 1
    assert "has no lake" in capsys.readouterr().err


def test_gc_only_tells_unless_told_to_delete(lake, tmp_path, json_of, capsys):
    url = f"file://{tmp_path}/bucket"
    lp.push(lake, url)
    words = ["gc", url, "--keep-last", "1", "--older-than", "0"]
    dry = json_of(*words)
    assert (dry["dry_run"], dry["commits"]) == (True, [0, 1])
    assert main(words) == 0
    assert "add --delete to mark them" in capsys.readouterr().err
    assert main([*words, "--delete"]) == 0
    assert "Run it again after 0 hours to delete what is marked." in capsys.readouterr().err
    assert json_of(*words, "--delete")["commits"] == [0, 1]
    assert json_of(*words)["commits"] == []
    assert json_of("pull", url, tmp_path / "back")["lake"]["steps"] == 150


def test_an_old_pickle_becomes_a_lake_and_goes_back(tmp_path, json_of):
    rows = np.random.default_rng(0).random((60, 3, 2), np.float32)
    old = {
        "capacity": 500,
        "buffer": deque(
            {
                "state": rows[t : t + 8],
                "action": np.full((3, 2), t, np.float32),
                "reward": float(t),
                "next_state": rows[t + 1 : t + 9],
                "done": t % 10 == 9,
            }
            for t in range(40)
        ),
    }
    (tmp_path / "replay_buffer.pkl").write_bytes(pickle.dumps(old))
    imported = json_of("import", tmp_path / "replay_buffer.pkl", tmp_path / "lake")
    assert (imported["form"], imported["steps"], imported["episodes"]) == ("pickle", 40, 4)
    batch = steps_of(tmp_path / "lake")
    np.testing.assert_array_equal(batch.reward, np.arange(40))
    np.testing.assert_array_equal(batch.obs[7], rows[7:15])
    written = json_of("export", tmp_path / "lake", tmp_path / "back.pkl", "--compress", "no")
    assert (written["form"], written["steps"]) == ("pickle", 40)
    back = pickle.loads((tmp_path / "back.pkl").read_bytes())
    assert back["capacity"] == 500
    assert len(back["buffer"]) == 40
    for mine, theirs in zip(back["buffer"], old["buffer"], strict=True):
        assert (mine["reward"], mine["done"]) == (theirs["reward"], theirs["done"])
        for name in ("state", "action", "next_state"):
            np.testing.assert_array_equal(mine[name], theirs[name])


def test_episodes_go_out_as_npz_and_come_back(lake, tmp_path, json_of):
    assert json_of("export", lake, tmp_path / "episodes")["form"] == "npz"
    imported = json_of("import", tmp_path / "episodes", tmp_path / "again")
    assert (imported["form"], imported["steps"], imported["episodes"]) == ("npz", 150, 3)
    same(steps_of(tmp_path / "again"), steps_of(lake))


@pytest.mark.parametrize(
    ("target", "form"),
    [("a.parquet", "parquet"), ("a.arrow", "arrow"), ("set", "lerobot"), ("set", "minari"), ("x", "parquet")],
)
def test_import_recognises_what_export_wrote_whatever_its_name(lake, tmp_path, json_of, target, form):
    assert json_of("export", lake, tmp_path / target, "--form", form)["steps"] == 150
    imported = json_of("import", tmp_path / target, tmp_path / "again")
    assert (imported["form"], imported["steps"], imported["episodes"]) == (form, 150, 3)
    np.testing.assert_array_equal(
        np.sort(steps_of(tmp_path / "again").reward), np.sort(steps_of(lake).reward)
    )


def test_steps_go_out_as_parquet_and_arrow(lake, tmp_path, json_of):
    import pyarrow as pa
    import pyarrow.parquet as pq

    json_of("export", lake, tmp_path / "steps.parquet", "--commit", 1)
    json_of("export", lake, tmp_path / "steps.arrow", "--next-obs", "no")
    table = pq.read_table(tmp_path / "steps.parquet")
    assert table["reward"].to_pylist() == list(map(float, range(100)))
    with pa.ipc.open_file(str(tmp_path / "steps.arrow")) as file:
        whole = file.read_all()
    assert whole["reward"].to_pylist() == list(map(float, range(150)))
    assert "next_obs" in table.column_names
    assert "next_obs" not in whole.column_names


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("export {lake} {tmp}/steps.xyz", "give the format with --form"),
        ("export {lake} {lake}/lake.json --form parquet", "already exists"),
        ("export {lake} {lake}/lake.json --form arrow", "already exists"),
        ("export {lake} {lake}/lake.json --form pickle", "already exists"),
        ("import {tmp} {tmp}/new", "name it with --form"),
        ("import {lake} {tmp}/new", "is a lake already"),
        ("import {lake}/lake.json {tmp}/new", "name it with --form"),
        ("import {lake}/lake.json {lake} --form pickle", "already exists"),
    ],
)
def test_what_cannot_be_moved_is_one_sentence_and_changes_nothing(words, sentence, lake, tmp_path, capsys):
    before = steps_of(lake)
    assert main(words.format(lake=lake, tmp=tmp_path).split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert sentence in err
    assert err.count("\n") == 1
    same(steps_of(lake), before)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        (
            "theirs/data/part-0.parquet",
            "only the columns price, day; import takes tables that lakepond exported",
        ),
        ("theirs", "has Parquet files but no meta/info.json"),
        ("theirs/data", "has Parquet files but no meta/info.json"),
        ("robot", "only datasets that lakepond exported"),
    ],
)
def test_parquet_of_others_is_refused_in_one_sentence(tmp_path, source, sentence, capsys):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for folder in ("theirs/data", "robot/meta"):
        (tmp_path / folder).mkdir(parents=True)
    pq.write_table(pa.table({"price": [1.0], "day": [1]}), tmp_path / "theirs/data/part-0.parquet")
    (tmp_path / "robot/meta/info.json").write_text('{"codebase_version": "v3.0", "total_episodes": 1}')
    assert main(["import", str(tmp_path / source), str(tmp_path / "new")]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()


def test_what_is_no_pickle_is_one_sentence(tmp_path, capsys):
    (tmp_path / "torn.pkl").write_bytes(b"\x80\x04 torn")
    assert main(["import", str(tmp_path / "torn.pkl"), str(tmp_path / "lake")]) == 1
    assert capsys.readouterr().err.startswith("lakepond: ")
    assert not (tmp_path / "lake").exists()
