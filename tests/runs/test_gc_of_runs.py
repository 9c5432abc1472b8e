"""Commits that a checkpoint names are kept in the cloud."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main
from lakepond.runs import Run
from lakepond.runs.copies import push_run


@dataclass(frozen=True)
class _Settings:
    seed: int = 0


@pytest.fixture
def run(tmp_path) -> Path:
    """Commits 0 to 7 of which each drops older steps; checkpoints 2, 5 and 9 name 2, 5 and none."""
    folder = tmp_path / "run"
    spec = lp.Spec(obs=lp.Field((64,), "float32"))
    rng = np.random.default_rng(0)
    with (
        Run.create(folder, "mine", _Settings()) as run,
        lp.Replay.open(folder / "lake", spec, capacity=20, max_steps=20, merge_after=None) as replay,
    ):
        for number in range(8):
            for t in range(20):
                rows = rng.random((2, 64), np.float32)
                replay.record(
                    obs=rows[0],
                    action=0,
                    reward=float(t),
                    next_obs=rows[1],
                    terminated=False,
                    truncated=t == 19,
                )
            assert replay.commit().number == number
            if number in (2, 5):
                run.save(number, {"w": {"x": np.zeros(1)}}, {"lake_commit": number})
        run.save(9, {"w": {"x": np.zeros(1)}}, {"lake_commit": None})
    return folder


def test_commits_that_checkpoints_in_the_cloud_name_stay_with_their_segments(run, tmp_path):
    url = f"file://{tmp_path}/bucket/demo"
    push_run(run, lp.Cloud(url))
    lp.gc(f"{url}/lake", keep_last=1, older_than=0, dry_run=False)
    swept = lp.gc(f"{url}/lake", keep_last=1, older_than=0, dry_run=False)
    assert swept.commits == (0, 1, 3, 4, 6)
    assert swept.segments
    for number in (2, 5, 7):
        with lp.pull(tmp_path / f"at-{number}", f"{url}/lake", commit=number) as lake:
            lake.verify()
            assert lake.commit.recorded == 20 * (number + 1)


def test_commits_that_checkpoints_on_this_disk_name_stay_too(run, tmp_path):
    url = f"file://{tmp_path}/elsewhere/lake"
    lp.push(run / "lake", url)  # the lake alone
    (run / "checkpoints" / "00000003.dropped").mkdir()
    (run / "checkpoints" / "00000003.dropped" / "state.json").write_text("no checkpoint any more")
    assert lp.gc(url, keep_last=1, older_than=0).commits == (0, 1, 2, 3, 4, 5, 6)
    assert lp.gc(url, keep_last=1, older_than=0, lake=run / "lake").commits == (0, 1, 3, 4, 6)


def test_nothing_goes_while_a_checkpoint_cannot_be_read(run, tmp_path):
    url = f"file://{tmp_path}/bucket/demo"
    push_run(run, lp.Cloud(url))
    state = tmp_path / "bucket" / "demo" / "checkpoints" / "00000005" / "state.json"
    state.write_text('{"state": ')
    with pytest.raises(lp.CloudCorrupt, match=r"00000005/state.json of .* nothing is deleted"):
        lp.gc(f"{url}/lake", keep_last=1, older_than=0, dry_run=False)


def test_the_command_of_a_run_takes_the_run_or_its_lake(run, tmp_path, capsys):
    url = f"file://{tmp_path}/bucket/demo"
    push_run(run, lp.Cloud(url))
    for place in (url, f"{url}/lake"):
        assert main(["gc", place, "--keep-last", "1", "--older-than", "0", "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["commits"] == [0, 1, 3, 4, 6]
