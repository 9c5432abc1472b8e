"""`ls`, `show`, `verify`, `repair`: what they print, where, and with which exit code."""

from contextlib import contextmanager

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main, words
from lakepond.lake.lock import WriterLock
from lakepond.plan.measured import written


def test_ls_finds_runs_and_lakes_below_a_folder(lake, make_run, tmp_path, json_of):
    make_run("deep/inside/run")
    (tmp_path / "config.json").write_text('{"of": "something else"}')
    found = json_of("ls", tmp_path)["found"]
    assert [(each["path"], each["trainer"]) for each in found] == [
        (str(tmp_path / "deep/inside/run"), "erl"),
        (str(lake), None),
    ]
    assert [each["steps"] for each in found] == [150, 150]
    assert all(each["ratio"] > 1 and each["problem"] is None for each in found)


def test_ls_of_nothing_says_so_and_is_no_error(tmp_path, json_of, capsys):
    assert json_of("ls", tmp_path) == {"path": str(tmp_path), "found": []}
    assert main(["ls", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "has no lakes and no runs" in err


def test_ls_of_a_lake_lists_its_newest_commits(lake, json_of, capsys):
    listed = json_of("ls", lake, "--limit", 2)
    assert (listed["lake"], listed["commits_kept"]) == (str(lake), 3)
    assert [commit["number"] for commit in listed["commits"]] == [1, 2]
    assert listed["commits"][-1]["note"] == {"generation": 3}
    assert [commit["steps"] for commit in json_of("ls", lake, "--limit", 0)["commits"]] == [50, 100, 150]
    assert main(["ls", str(lake), "--limit", "1"]) == 0
    out, err = capsys.readouterr()
    assert "generation 3" in out
    assert "2 older commits are not shown" in err


def test_ls_goes_on_past_a_commit_that_is_damaged(lake, json_of):
    (lake / "commits" / "0000000001.json").write_bytes(b"{")
    listed = json_of("ls", lake)["commits"]
    assert [each["problem"] is None for each in listed] == [True, False, True]


def test_ls_tells_of_a_lake_that_cannot_be_read(lake, tmp_path, json_of):
    (lake / "lake.json").write_bytes(b"torn")
    (found,) = json_of("ls", tmp_path)["found"]
    assert "is damaged" in found["problem"]


def test_show_tells_what_a_commit_holds(lake, make_run, json_of, capsys):
    shown = json_of("show", lake)
    with lp.Lake.open(lake) as opened:
        stats = opened.stats()
    assert (shown["commit"], shown["steps"], shown["rows"]) == (2, 150, stats.rows)
    assert shown["bytes_on_disk"] == stats.bytes_on_disk
    assert shown["bytes_of_rows"] == sum(file.stat().st_size for file in lake.glob("segments/*.rows")) > 0
    assert shown["spec"] == {"obs": "uint8[4, 8, 8]", "action": "int64[]", "reward": "float32[]"}
    assert json_of("show", lake, "--commit", 0)["steps"] == 50
    run = make_run()
    assert json_of("show", run)["lake"] == str(run / "lake")
    assert main(["show", str(run)]) == 0
    assert "150 live: [0, 150)" in capsys.readouterr().out


def test_show_of_a_lake_without_an_intact_commit_is_one_sentence(lake, capsys):
    for file in (lake / "commits").glob("*.json"):
        file.write_bytes(b"{")
    assert main(["show", str(lake)]) == 1
    assert "has no intact commit; `lakepond verify` says what is damaged." in capsys.readouterr().err


def test_verify_of_a_whole_lake(lake, json_of, capsys):
    checked = json_of("verify", lake, "--all")
    assert checked["intact"]
    assert [each["number"] for each in checked["commits"]] == [0, 1, 2]
    assert main(["verify", str(lake)]) == 0
    assert capsys.readouterr().out.startswith("commit 2: intact (")


def test_one_file_is_a_file_in_the_singular(tmp_path, capsys):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(lp.Field((4,))), capacity=10) as replay:
        obs = np.zeros(4, np.float32)
        replay.record(obs=obs, action=0, reward=0, next_obs=obs, terminated=False, truncated=False)
    assert main(["verify", str(tmp_path / "lake")]) == 0
    assert " in 1 file, " in capsys.readouterr().out
    assert main(["compact", str(tmp_path / "lake")]) == 0
    assert " had 1 file and now has 1; " in capsys.readouterr().out


def test_verify_of_a_damaged_lake_is_exit_code_3_and_names_the_next_step(lake, damage, json_of, capsys):
    file = damage(lake)
    checked = json_of("verify", lake, "--all", code=3)
    assert not checked["intact"]
    assert [each["intact"] for each in checked["commits"]] == [True, True, False]
    assert file.name in checked["commits"][2]["why"]
    assert main(["verify", str(lake)]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("commit 2: damaged.")
    assert f"lakepond repair {lake}" in err


def test_verify_does_not_step_back_over_a_commit_that_is_broken(lake, json_of):
    (lake / "commits" / "0000000002.json").write_bytes(b"{")
    assert not json_of("verify", lake, code=3)["intact"]


def test_verify_of_an_empty_lake_says_that_there_is_nothing(tmp_path, capsys):
    with lp.Replay.open(tmp_path / "lake", lp.Spec(lp.Field((4,))), capacity=10):
        pass
    assert main(["verify", str(tmp_path / "lake")]) == 1
    assert "has no commit yet" in capsys.readouterr().err


def test_repair_moves_what_is_damaged_aside_and_the_lake_is_whole_again(lake, damage, json_of, capsys):
    assert main(["repair", str(lake)]) == 0
    assert "intact, nothing to repair" in capsys.readouterr().out
    file = damage(lake)
    repaired = json_of("repair", lake)
    assert repaired["newest"] == 1
    assert file.name in repaired["quarantined"]
    assert (lake / "quarantine" / file.name).exists()
    assert json_of("verify", lake)["commits"][0]["number"] == 1


def test_repair_waits_for_nobody_a_lake_that_is_written_is_exit_code_4(lake, capsys):
    with WriterLock(lake / "lock"):
        assert main(["repair", str(lake)]) == 4
    assert "is being written by this process" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["show", "verify", "repair", "status"])
def test_a_folder_that_is_no_lake_is_one_sentence_with_a_next_step(command, tmp_path, capsys):
    for path in (tmp_path, tmp_path / "nowhere"):
        assert main([command, str(path)]) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("lakepond: ")
        assert "lakepond ls" in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_progress_counts_to_the_end(command, lake, monkeypatch, capsys):
    seen: list[tuple[int, int]] = []

    @contextmanager
    def progress(what):
        yield lambda done, total: seen.append((done, total))

    monkeypatch.setattr(words, "progress", progress)
    assert main([command, str(lake)]) == 0
    done, totals = [each for each, _ in seen], {total for _, total in seen}
    assert len(seen) > 2
    assert done == sorted(done)
    assert totals == {done[-1]}


def test_progress_is_drawn_on_a_terminal_only(lake, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    with words.progress("[/red] verify") as show:
        show(1, 2)
    assert "[/red] verify" in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: False, raising=False)
    with words.progress("verify") as show:
        show(1, 2)
    assert capsys.readouterr().err == ""


def test_a_lake_of_several_writers_is_told_as_a_whole(tmp_path, json_of):
    path, spec = tmp_path / "lake", lp.Spec(obs=lp.Field((256,), "float32"))
    for writer in ("", "a"):
        with lp.Replay.open(path, spec, capacity=100, writer=writer, merge_after=None) as replay:
            for number in range(12):
                obs = np.full(256, number, np.float32)
                replay.record(
                    obs=obs, action=0, reward=1.0, next_obs=obs + 1, terminated=False, truncated=False
                )
                replay.commit()
    files = [*(path / "segments").iterdir(), *(path / "writers" / "a" / "segments").iterdir()]
    size = sum(file.stat().st_size for file in files)
    status = json_of("status", path)["lake"]
    assert (status["bytes_on_disk"], status["rows"]) == (size, 26)
    assert status["bytes_per_second"] is None
    shown = json_of("show", path)
    assert (shown["segments"], shown["files"], shown["bytes_on_disk"]) == (24, len(files), size)
    assert shown["bytes_of_rows"] == sum(f.stat().st_size for f in files if f.suffix == ".rows")
    measured = written(path)
    assert (measured.bytes, measured.row_bytes) == (size, 26 * 1024)
    assert measured.bytes_per_step == pytest.approx(size / 24)
    merged = json_of("compact", path, "--keep-last", 1)
    assert merged["bytes_before"] == size
    assert merged["files"] < merged["files_before"] == len(files)
    assert merged["bytes"] < size
