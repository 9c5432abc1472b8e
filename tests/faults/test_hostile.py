"""Hostile inputs are refused in one sentence, before they take memory, and nothing in them is executed."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults import hostile, hostile_files, hostile_lakes, hostile_runs

KINDS = list(dict.fromkeys(case.name.partition(":")[0] for case in hostile.cases() if not case.heavy))


@pytest.mark.parametrize("kind", KINDS)
def test_a_hostile_input_is_refused_in_one_sentence(kind, tmp_path):
    cases = [c for c in hostile.cases() if not c.heavy and c.name.partition(":")[0] == kind]
    for number, case in enumerate(cases):
        (tmp_path / str(number)).mkdir()
        hostile.check(case, tmp_path / str(number))


def test_inputs_that_claim_gigabytes_are_refused_before_they_take_memory(tmp_path):
    assert hostile.build_heavy(tmp_path) > 30
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-m", "faults.hostile", str(tmp_path)],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]


def test_the_honest_inputs_that_the_corpus_is_made_of_are_accepted(tmp_path):
    hostile_files.npz()(tmp_path)
    assert hostile.run(["import", f"{tmp_path}/data", f"{tmp_path}/npz"]).code == 0
    shutil.rmtree(tmp_path / "data")
    hostile_files.hdf5(lambda group, folder: None)(tmp_path)
    assert hostile.run(["import", f"{tmp_path}/data", f"{tmp_path}/minari"]).code == 0
    for name in ("npz", "minari"):
        assert hostile.run(["verify", f"{tmp_path}/{name}"]).code == 0
    hostile_lakes.copied(tmp_path)
    assert hostile.run(["verify", f"{tmp_path}/lake"]).code == 0
    shutil.rmtree(tmp_path / "lake")
    hostile_lakes.listed(hostile_lakes.nothing)(tmp_path)
    assert hostile.run(["verify", f"{tmp_path}/lake"]).code == 0
    hostile_runs.checkpoint(hostile_runs.GOOD)(tmp_path)
    assert hostile.run(["load", f"{tmp_path}/run"]).code == 0
    large = {**hostile_runs.RESULT, "curve": [[1, 2], [2, 2**70]], "score": 2**70}
    hostile_runs.comparison(json.dumps(large))(tmp_path)
    assert hostile.run(["draw", f"{tmp_path}/comparison", f"{tmp_path}/page.md"]).code == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_lake_with_a_random_change_is_read_or_refused(seed, tmp_path):
    chance = random.Random(seed)
    for number in range(25):
        folder = tmp_path / str(number)
        folder.mkdir()
        hostile_lakes.copied(folder)
        what = [hostile.mutate(folder, chance) for _ in range(chance.randint(1, 3))]
        for command in ("verify", "show", "status", "open"):
            result = hostile.run([command, f"{folder}/lake"])
            assert "Traceback" not in result.err, (what, command)
