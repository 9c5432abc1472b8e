"""Fixtures: small lakes and runs."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.cli import main
from lakepond.runs import Run

SPEC = lp.Spec(obs=lp.Field((4, 8, 8), "uint8", rows=0), action=lp.Field((), "int64"))
FRAMES = np.random.default_rng(3).integers(0, 255, (400, 8, 8), dtype=np.uint8)


def record(replay: lp.Replay, start: int, stop: int) -> None:
    """Each reward is its own step id."""
    for t in range(start, stop):
        replay.record(
            obs=FRAMES[t : t + 4],
            action=t % 3,
            reward=float(t),
            next_obs=FRAMES[t + 1 : t + 5],
            terminated=t % 50 == 49,
            truncated=False,
        )


@pytest.fixture(scope="session")
def made_lake(tmp_path_factory) -> Path:
    """Three commits of 50 steps each; tests change copies."""
    path = tmp_path_factory.mktemp("made") / "lake"
    with lp.Replay.open(path, SPEC, capacity=200) as replay:
        for commit in range(3):
            record(replay, 50 * commit, 50 * commit + 50)
            replay.commit({"generation": commit + 1})
    return path


@pytest.fixture
def lake(made_lake, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made_lake, tmp_path / "lake"))


@dataclass(frozen=True)
class Config:
    generations: int = 4


@pytest.fixture
def make_run(made_lake, tmp_path: Path) -> Callable[..., Path]:
    """A run with a lake, some lines of metrics and no checkpoint; `done` of its 4 generations are logged."""

    def make(name: str = "run", done: int = 3) -> Path:
        folder = tmp_path / name
        with Run.create(folder, "erl", Config()) as run:
            shutil.copytree(made_lake, run.lake_folder)
            for generation in range(1, done + 1):
                run.log(generation, {"fitness_best": 2.5 * generation, "rss_bytes": 123_000_000})
        return folder

    return make


@pytest.fixture
def damage() -> Callable[[Path], Path]:
    """Flip a byte in the middle of a file of rows that the newest commit names."""

    def flip(lake: Path) -> Path:
        with lp.Lake.open(lake) as opened:
            name = [file.name for _, file in opened.reader.row_files(0)][-1]
        file = lake / "segments" / name
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 0xFF
        file.write_bytes(data)
        return file

    return flip


@pytest.fixture
def json_of(capsys) -> Callable[..., dict]:
    """What a command prints with --json: one line on stdout and nothing else there."""

    def tell(*words: object, code: int = 0) -> dict:
        capsys.readouterr()
        assert main([*map(str, words), "--json"]) == code
        out = capsys.readouterr().out
        assert out.count("\n") == 1
        return json.loads(out)

    return tell
