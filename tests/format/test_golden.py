"""Golden lakes, of every version of the format, open, verify, sample and continue."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import independent_reader as independent
import numpy as np
import pytest
from golden_lakes import GOLDEN, LAKES

import lakepond as lp
from lakepond.lake import writers
from lakepond.types import Tree, leaves, rebuild
from reference import same_bytes

PAGE = Path(__file__).parents[2] / "docs" / "format.md"
EXAMPLE = LAKES["v2/example"]
KNOWN = [lake for lake in LAKES if lake.split("/")[-1] in GOLDEN]


def item(tree: Tree, i: int) -> Tree:
    values = iter([leaf for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values)[i])


def step_in(batch: lp.Batch, i: int, spec: lp.Spec) -> dict[str, Any]:
    """A step of a batch as `record` takes it, in the dtypes of the spec."""
    step = {name: item(getattr(batch, name), i) for name in ("obs", "next_obs", "action")}
    step |= {name: getattr(batch, name)[i] for name in ("reward", "terminated", "truncated")}
    step |= {name: batch.extras[name].astype(field.dtype)[i, ...] for name, field in spec.extras.items()}
    return {**step, "stream": int(batch.stream[i])}


def writers_of(path: Path) -> list[str]:
    return [name for name in writers.names(path) if list(writers.home(path, name).glob("commits/*.json"))]


@pytest.mark.parametrize("lake", KNOWN)
def test_they_hold_what_was_recorded(lake):
    golden = GOLDEN[lake.split("/")[-1]]
    for writer in golden.writers:
        with lp.Lake.open(LAKES[lake], writer=writer) as opened:
            assert opened.spec == golden.spec
            start, stop = opened.commit.oldest, opened.commit.recorded
            assert stop == golden.stops[-1]
            batch = opened.steps(start, stop)
            for n in range(start, stop):
                found, expected = step_in(batch, n - start, golden.spec), golden.step(n, writer)
                reward = expected["reward"] = np.asarray(expected["reward"], golden.spec.reward.dtype)
                assert found["reward"] == reward
                for name, field in leaves(golden.spec.action, "action"):
                    wanted = dict(leaves(expected["action"], "action"))[name]
                    assert same_bytes(
                        dict(leaves(found["action"], "action"))[name], np.asarray(wanted, field.dtype)
                    )
                assert same_bytes(found["obs"], expected["obs"])
                assert same_bytes(found["next_obs"], expected["next_obs"])
                for name in ("terminated", "truncated", "stream", *golden.spec.extras):
                    wanted = np.asarray(expected[name])
                    assert np.asarray(found[name], wanted.dtype).tobytes() == wanted.tobytes(), name


@pytest.mark.parametrize("lake", LAKES)
def test_they_open_verify_and_sample(lake):
    with lp.Lake.open(LAKES[lake]) as opened:
        opened.verify()
        batch = opened.sample(16, rng=np.random.default_rng(0))
        again = opened.steps(batch.step_id)
        assert same_bytes(batch.obs, again.obs)
        assert same_bytes(batch.next_obs, again.next_obs)
        assert opened.sample(4, n_step=3, gamma=0.9, rng=np.random.default_rng(0)).reward.shape == (4,)
        replay = lp.Replay(opened.spec, 200)
        replay.fill_from(opened, len(opened), rng=np.random.default_rng(0))
        assert len(replay) == len(opened)
        assert opened.stats().steps == len(opened)


@pytest.mark.parametrize("lake", LAKES)
def test_they_continue_and_are_upgraded(tmp_path, lake):
    path = tmp_path / "lake"
    shutil.copytree(LAKES[lake], path)
    before = {
        (name, number): len(lp.Lake.open(path, number, writer=name))
        for name in writers_of(path)
        for number in independent.commit_numbers(writers.home(path, name) / "commits")
    }
    for name in writers_of(path):
        with lp.Lake.open(path, writer=name) as opened:
            spec, commit = opened.spec, opened.commit
            batch = opened.steps(commit.oldest, commit.recorded)
        alpha = commit.alpha
        with lp.Replay.open(path, capacity=200, writer=name, alpha=alpha) as replay:
            assert len(replay) == commit.recorded - commit.oldest
            for i in range(3):
                assert replay.record(**step_in(batch, i, spec)) == commit.recorded + i
            new = replay.commit()
        assert (new.number, new.parent) == (commit.number + 1, commit.number)
        with lp.Lake.open(path, writer=name) as opened:
            opened.verify()
            after = opened.steps(commit.oldest, commit.recorded + 3)
            for i in range(-3, len(batch.reward)):
                a, b = (
                    step_in(after, i, spec),
                    step_in(batch, i % len(batch.reward) if i >= 0 else i + 3, spec),
                )
                assert all(same_bytes(a[key], b[key]) for key in a)
        (found,) = [each for each in independent.open_lake(path) if each.name == name]
        assert found.verify()
        assert found.commit.content["format"] == 2
        assert sum(1 for _ in found.steps()) == len(after.reward)
    assert json.loads((path / "lake.json").read_bytes())["format"] == 2
    for (name, number), steps in before.items():
        with lp.Lake.open(path, number, writer=name) as opened:
            opened.verify()
            assert len(opened) == steps
    with lp.Lake.open(path) as opened:
        steps = opened.steps(opened.reader.oldest, opened.reader.recorded)
        opened.compact(keep_last=1)
        opened.verify()
        assert same_bytes(opened.steps(opened.reader.oldest, opened.reader.recorded).obs, steps.obs)
    assert sum(1 for each in independent.open_lake(path) for _ in each.steps()) == len(steps.reward)


def test_the_upgrade_keeps_what_lake_json_says(tmp_path):
    path = tmp_path / "lake"
    shutil.copytree(LAKES["v1-more/types"], path)
    before = json.loads((path / "lake.json").read_bytes())
    with lp.Replay.open(path, capacity=200) as replay:
        replay.record(**GOLDEN["types"].step(11))
    after = json.loads((path / "lake.json").read_bytes())
    assert (before.pop("format"), after.pop("format"), after.pop("requires")) == (1, 2, [])
    assert before.pop("checksum") != after.pop("checksum")
    assert after == before


def test_a_note_with_numbers_that_are_not_finite_is_strict_json_since_format_2():
    newest = "commits/0000000001.json"

    def constant(name: str) -> None:
        raise ValueError(name)

    note = json.loads((LAKES["v2/types"] / newest).read_bytes(), parse_constant=constant)["note"]
    assert note == {"loss": "NaN", "bounds": ["Infinity", "-Infinity"], "größe": "Ω😀", "n": 1}
    with pytest.raises(ValueError, match="NaN"):
        json.loads((LAKES["v1-more/types"] / newest).read_bytes(), parse_constant=constant)
    with lp.Lake.open(LAKES["v1-more/types"]) as lake:
        assert np.isnan(lake.commit.note["loss"])


# --- the worked example of docs/format.md ----------------------------------------------------------


def test_the_commands_of_the_worked_example_print_what_the_page_shows():
    """Each `$ command` of the page's console blocks runs in the golden lake `example`."""
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(blocks) >= 5
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for block in blocks:
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=EXAMPLE,
                env=environment,
                capture_output=True,
                text=True,
                check=True,
            )
            assert done.stdout == shown, command
