"""Starting and resuming a run: experience is never deleted, and following the advice of each error works."""

import json
import logging
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from crash_points import SPEC, check, train

import lakepond as lp
from lakepond.cli import main
from lakepond.errors import ConfigError, LakeError, LakeLocked, RunCorrupt, RunMismatch, RunNotFound
from lakepond.report.gathered import gather
from lakepond.runs import Run, copies, metrics, settings, status
from lakepond.runs.resume import Resume


def record(folder: Path, steps: int) -> None:
    """A lake that somebody recorded; each reward is the number of its step."""
    with lp.Replay.open(folder, SPEC, 1_000) as replay:
        for step in range(steps):
            obs = np.full(2, step, np.float32)
            replay.record(obs=obs, action=0, reward=step, next_obs=obs, terminated=False, truncated=False)
        replay.commit()


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but for locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture(scope="module")
def four_generations(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "four"
    train(folder, 4)
    return folder


@pytest.fixture
def run(four_generations, tmp_path) -> Path:
    """A run of four generations: checkpoints 0 to 4, which name no commit and the commits 0 to 3."""
    return Path(shutil.copytree(four_generations, tmp_path / "run"))


# --- what is in a folder stays ---------------------------------------------------------------------


def test_a_lake_without_a_run_is_refused_with_its_steps_and_nothing_changes(tmp_path):
    record(tmp_path / "demo" / "lake", 199)
    before = files(tmp_path / "demo")
    with pytest.raises(
        ConfigError, match=r"199 steps in 1 commits of .*demo/lake and no checkpoint.*--start-over"
    ):
        train(tmp_path / "demo", 1)
    assert files(tmp_path / "demo") == before


def test_starting_over_moves_the_lake_with_all_its_steps_and_trains(tmp_path):
    record(tmp_path / "demo" / "lake", 199)
    (tmp_path / "demo" / "thesis.tex").write_text("not of a run")
    train(tmp_path / "demo", 2, start_over=True)
    check(tmp_path / "demo", 2)
    (old,) = tmp_path.glob("demo/old-*")
    with lp.Lake.open(old / "lake") as lake:
        lake.verify()
        assert lake.steps(0, 199).reward.tolist() == list(range(199))
    assert (tmp_path / "demo" / "thesis.tex").read_text() == "not of a run"
    train(tmp_path / "demo", 2, start_over=True)
    assert len(list(tmp_path.glob("demo/old-*"))) == 2


def test_a_log_without_a_checkpoint_is_refused_and_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "time": 1.0}\n')
    with pytest.raises(ConfigError, match=r"25 bytes of .*metrics.jsonl and no checkpoint"):
        train(tmp_path, 1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "time": 1.0}\n'


def test_a_run_whose_checkpoints_were_moved_away_keeps_its_lake_and_its_log(run, tmp_path):
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    before = files(run)
    with pytest.raises(ConfigError, match=r"40 steps in 4 commits of .* and [\d,]+ bytes of .*metrics.jsonl"):
        train(run, 5)
    assert files(run) == before


WRITER = """
import sys
import lakepond as lp
replay = lp.Replay.open(sys.argv[1], capacity=1000, commit=1)
print("open", flush=True)
sys.stdin.readline()
print(replay.commit().number, flush=True)
"""


@pytest.mark.parametrize("given", [{}, {"number": 2}, {"start_over": True}])
def test_a_lake_that_another_process_writes_is_refused_before_anything_changes(run, given):
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(run / "lake")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout.readline() == "open\n"
        before = files(run)
        with pytest.raises(LakeLocked):
            train(run, 5, **given)
        assert files(run) == before
        writer.stdin.write("\n")
        writer.stdin.flush()
        assert writer.stdout.readline() == "4\n"
    with lp.Lake.open(run / "lake", 4) as lake:
        assert lake.steps(0, 20).reward.tolist() == list(range(20))


def test_an_empty_start_leaves_the_commits_of_the_lake_and_takes_the_next_number(run):
    train(run, 1, number=0)
    assert Run.open(run).state()["lake_commit"] == 4
    for commit in range(4):
        with lp.Lake.open(run / "lake", commit) as lake:
            lake.verify()
            assert len(lake) == 10 * (commit + 1)
    with lp.Lake.open(run / "lake") as lake:
        assert lake.commit.parent is None
        assert lake.steps(0, 10).reward.tolist() == list(range(10))
    train(run, 3)
    check(run, 3)


def test_what_was_moved_away_is_not_pushed(run, tmp_path):
    train(run, 1, start_over=True)
    copies.push_run(run, lp.Cloud(f"file://{tmp_path}/bucket/run"))
    assert not list((tmp_path / "bucket").rglob("old-*"))
    copies.pull_run(tmp_path / "back", lp.Cloud(f"file://{tmp_path}/bucket/run"))
    train(tmp_path / "back", 2)
    check(tmp_path / "back", 2)


def test_a_push_beside_training_sends_no_checkpoint_before_its_commit(run, tmp_path, monkeypatch):
    """A driver that dies right after such a push is resumed from the bucket alone."""
    place, push = lp.Cloud(f"file://{tmp_path}/bucket/run"), copies.push

    def push_and_train(*lake, **how):
        status = push(*lake, **how)
        train(run, 6)  # while the lake is on its way
        return status

    monkeypatch.setattr(copies, "push", push_and_train)
    copies.push_run(run, place)
    copies.pull_run(tmp_path / "back", place)
    train(tmp_path / "back", 6)
    check(tmp_path / "back", 6)


def test_a_run_resumes_from_a_bucket_to_which_the_last_push_was_cut_off_after_any_file(
    run, tmp_path, monkeypatch
):
    place, upload = lp.Cloud(f"file://{tmp_path}/bucket/run"), copies.CloudSync.upload_file
    copies.push_run(run, place)
    train(run, 5)
    left = 0

    def upload_some(sync, file, name):
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt
        upload(sync, file, name)

    monkeypatch.setattr(copies.CloudSync, "upload_file", upload_some)
    uploads = 0
    while left <= 0:
        left = uploads = uploads + 1
        shutil.copytree(tmp_path / "bucket", tmp_path / "before")
        with suppress(KeyboardInterrupt):
            copies.push_run(run, place)
        back = tmp_path / f"back-{uploads}"
        copies.pull_run(back, place)
        train(back, 6)
        check(back, 6)
        shutil.rmtree(tmp_path / "bucket")
        (tmp_path / "before").rename(tmp_path / "bucket")
    assert uploads > 5


def test_checkpoint_0_leaves_like_any_other(tmp_path):
    with Run.create(tmp_path, "mine", Settings(), keep_last=2, keep_every=5) as run:
        for number in range(7):
            run.save(number, arrays={}, state={})
        assert run.checkpoints() == [5, 6]


def test_a_new_run_has_a_status_and_a_report_before_its_first_generation(tmp_path):
    train(tmp_path / "run", 0)
    assert Run.open(tmp_path / "run").checkpoints() == [0]
    seen = status.look(tmp_path / "run")
    assert (seen.checkpoint, seen.done, seen.lake, seen.state) == (0, None, None, "stopped")
    assert gather(tmp_path / "run").problems == []
    train(tmp_path / "run", 2)
    check(tmp_path / "run", 2)


def test_a_run_to_resume_that_is_not_there_is_an_error_with_near_names(run, tmp_path):
    with pytest.raises(
        RunNotFound, match=rf"{tmp_path}/rnu has no run to resume; did you mean {tmp_path}/run\?"
    ):
        Resume(required=True).find(tmp_path / "rnu")
    with pytest.raises(RunNotFound, match=r"`lakepond ls` lists"):
        Resume(required=True).find(tmp_path / "xyz")
    with pytest.raises(RunNotFound, match=r"has no checkpoint 9; it has 0–4\."):
        train(run, 5, number=9)
    assert not (tmp_path / "rnu").exists()


# --- killed anywhere -------------------------------------------------------------------------------


def test_killed_at_any_file_operation_of_a_start_a_resume_or_a_move_a_run_loses_nothing(tmp_path):
    script = Path(__file__).with_name("crash_points.py")
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    found = json.loads(done.stdout)
    assert found["new"] > 15
    assert found["resume_from"] > 5
    assert found["start_over"] > 20


# --- the log ---------------------------------------------------------------------------------------


def edit_state(run: Path, number: int, **values: object) -> None:
    file = run / "checkpoints" / f"{number:08d}" / "state.json"
    about = json.loads(file.read_text())
    about["state"] |= values
    file.write_text(json.dumps(about))


@pytest.mark.parametrize("mark", [10**12, -1, 3, "12", True, None, 1.5])
def test_a_wrong_length_of_the_log_is_refused_and_never_makes_the_log_longer(run, mark, caplog):
    size = (run / "metrics.jsonl").stat().st_size
    edit_state(run, 4, metrics_bytes=mark)
    with pytest.raises(RunCorrupt, match="checkpoint 4"):
        train(run, 5, number=4)
    assert (run / "metrics.jsonl").stat().st_size == size
    train(run, 5)  # from checkpoint 3
    assert "skipping checkpoint 4" in caplog.text
    check(run, 5)


def test_a_log_that_was_cut_is_refused_until_it_is_removed_as_the_error_says(run, caplog):
    log = run / "metrics.jsonl"
    os.truncate(log, log.stat().st_size // 2)
    with pytest.raises(RunCorrupt, match="restore that file, or remove it to resume without its lines"):
        train(run, 5, number=4)
    log.unlink()
    train(run, 5)
    assert "lines are missing" in caplog.text
    assert [line["step"] for line in Run.open(run).history()] == [5]


@pytest.mark.parametrize("length", [10**12, 100 << 20])
def test_a_log_of_zero_bytes_takes_no_memory_to_look_at(run, length, caplog):
    log = run / "metrics.jsonl"
    before = log.stat().st_size
    os.truncate(log, length)  # takes no disk
    assert status.look(run).done is None
    (problem,) = gather(run).problems
    assert f"longer than {metrics.LINE_BYTES:,} bytes" in problem
    with pytest.raises(RunCorrupt, match="line 5 of"):
        list(Run.open(run).history())
    train(run, 5)
    assert log.stat().st_size > before
    check(run, 5)


def test_a_line_that_is_no_json_is_named(tmp_path):
    file = tmp_path / "metrics.jsonl"
    for line in (b"\0" * 50, b"[1]", b"[" * 100_000):
        file.write_bytes(b'{"step": 1, "time": 1}\n' + line + b"\n")
        with pytest.raises(RunCorrupt, match=r"line 2 of .*metrics.jsonl is not valid"):
            list(metrics.read(file))


# --- which checkpoint ------------------------------------------------------------------------------


def test_after_a_repair_it_resumes_from_the_newest_checkpoint_whose_commit_is_left(run, caplog):
    newest = max((run / "lake" / "commits").glob("*.json"))
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    assert main(["repair", str(run)]) == 0
    train(run, 6)
    assert "skipping checkpoint 4" in caplog.text
    assert "has no commit 3; it has 0–2" in caplog.text
    assert "resuming from checkpoint 3" in caplog.text
    check(run, 6)


def test_a_damaged_checkpoint_is_skipped_and_the_later_ones_are_kept_beside(run, caplog):
    (run / "checkpoints" / "00000004" / "state.json").write_bytes(b'{"state"')
    edit_state(run, 3, lake_commit=-1)
    train(run, 5)
    assert [each in caplog.text for each in ("skipping checkpoint 4", "skipping checkpoint 3")] == [
        True,
        True,
    ]
    assert {"00000003.dropped", "00000004.dropped"} <= {each.name for each in (run / "checkpoints").iterdir()}
    check(run, 5)


@pytest.mark.parametrize(
    "state", [{"done": "4"}, {"done": None}, {"lake_commit": "2"}, {"lake_commit": True}]
)
def test_a_state_of_another_kind_is_refused_in_one_sentence(run, state):
    edit_state(run, 4, **state)
    with pytest.raises(RunCorrupt, match=rf"state.json of .*00000004 has no valid {next(iter(state))}"):
        train(run, 5, number=4)


def test_without_a_usable_checkpoint_nothing_changes_and_starting_over_works_as_the_error_says(run):
    for number in range(1, 5):  # checkpoint 0 has nothing to resume
        (run / "checkpoints" / f"{number:08d}" / "state.json").write_bytes(b"")
    before = files(run)
    with pytest.raises(RunCorrupt, match=r"no checkpoint of .* can be resumed.*--start-over.*old-<time>"):
        train(run, 5)
    assert files(run) == before
    train(run, 5, start_over=True)
    check(run, 5)
    (old,) = run.glob("old-*")
    with lp.Lake.open(old / "lake") as lake:
        assert lake.steps(0, 40).reward.tolist() == list(range(40))


def test_a_lake_that_was_moved_away_is_an_error_and_no_empty_lake_takes_its_place(run, tmp_path):
    (run / "lake").rename(tmp_path / "moved")
    with pytest.raises(RunCorrupt, match=r"no checkpoint of .* can be resumed"):
        train(run, 5)
    assert not (run / "lake").exists()
    (tmp_path / "moved").rename(run / "lake")
    train(run, 5)
    check(run, 5)


def test_segments_that_are_only_in_the_cloud_are_fetched_first_and_no_checkpoint_is_skipped(run, tmp_path):
    url = f"file://{tmp_path}/bucket/run"
    copies.push_run(run, lp.Cloud(url))
    back = tmp_path / "back"
    copies.pull_run(back, lp.Cloud(url), lazy=True)
    with pytest.raises(LakeError, match=r"are only at .*; `lakepond pull .*` fetches them") as refused:
        train(back, 5)
    words = str(refused.value).split("`")[1].split()
    assert main(words[1:]) == 0
    train(back, 5)
    check(back, 5)


# --- settings of another version -------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    depth: int = 3
    width: int = 8


@dataclass(frozen=True)
class Settings:
    noise: float = 0.5
    sizes: tuple[int, ...] = (1, 2)
    part: Part = field(default_factory=lambda: Part(depth=5))
    panel: Path | None = None
    kept: str = "as it was"


def edit_config(run: Path, change) -> None:
    about = json.loads((run / "config.json").read_text())
    change(about)
    (run / "config.json").write_text(json.dumps(about))


def older(about) -> None:
    """As a version wrote it that did not have these settings, and had others."""
    for name in ("noise", "sizes"):
        del about["config"][name]
    del about["config"]["part"]["depth"]
    about["config"]["warp"] = 9
    about["config"]["part"]["gravity"] = 9.8


def test_settings_that_an_older_run_does_not_have_take_their_defaults_and_unknown_ones_are_named(
    tmp_path, caplog
):
    Run.create(tmp_path, "mine", Settings()).close()
    edit_config(tmp_path, older)
    with Run.create(tmp_path, "mine", Settings()) as run:
        assert run.config["noise"] == 0.5
        assert run.config["part"] == {"depth": 5, "width": 8, "gravity": 9.8}
        assert run.config["warp"] == 9  # another version may need it
    (warning,) = caplog.records
    assert "ignores: part.gravity, warp." in warning.getMessage()
    made = settings.from_json(Settings, Run.open(tmp_path).config, "mine", tmp_path)
    assert made == Settings()
    with pytest.raises(RunMismatch, match=r"noise 0\.5 there, 0\.7 here.*part\.depth 5 there, 6 here"):
        Run.create(tmp_path, "mine", Settings(noise=0.7, part=Part(depth=6)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise", "loud"),
        ("noise", True),
        ("sizes", 3),
        ("sizes", ["a"]),
        ("part", 1),
        ("panel", 5),
        ("kept", None),
    ],
)
def test_a_setting_of_another_type_is_refused_by_name(tmp_path, name, value):
    config = settings.as_json(Settings()) | {name: value}
    with pytest.raises(
        ConfigError, match=rf"the setting {name} is .* which is not .*; correct it in config.json"
    ):
        settings.from_json(Settings, config, "mine", tmp_path)


def test_settings_come_back_as_they_were(tmp_path):
    config = Settings(noise=1, sizes=(3,), part=Part(1, 2), panel=Path("a/b.csv"))
    assert settings.from_json(Settings, settings.as_json(config), "mine", tmp_path) == config


# --- machines --------------------------------------------------------------------------------------


def test_another_machine_is_warned_of_once_and_every_session_is_kept(run, caplog):
    def moved(about) -> None:
        about["sessions"][-1]["machine"] |= {"cores": 512, "memory_bytes": 1}
        about["sessions"][-1]["libraries"]["numpy"] = "0.9"

    edit_config(run, moved)
    with caplog.at_level(logging.WARNING, "lakepond"):
        train(run, 5)
    (warning,) = caplog.records
    assert "cores 512 there" in warning.getMessage()
    assert "numpy 0.9 there" in warning.getMessage()
    assert "memory" not in warning.getMessage()
    train(run, 6)
    assert len(caplog.records) == 1
    sessions = Run.open(run).about["sessions"]
    assert len(sessions) == 3
    assert [each["machine"]["cores"] for each in sessions] == [512, *[len(os.sched_getaffinity(0))] * 2]
    check(run, 6)


def test_a_run_of_a_version_without_sessions_is_compared_with_where_it_was_created(run, caplog):
    def before(about) -> None:
        del about["sessions"]
        about["machine"] = {"system": "Linux x86_64", "cores": 512}

    edit_config(run, before)
    train(run, 5)
    assert "cores 512 there" in caplog.text
    assert "processor" not in caplog.text


def test_sessions_that_are_none_are_refused(run):
    edit_config(run, lambda about: about.update(sessions=[3]))
    with pytest.raises(RunNotFound, match="cannot be read as a run's settings"):
        Run.open(run)
