"""Whatever a file of the lake is turned into: what is read is right, or a LakepondError says why not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_lake import record, same_batch, spec_of

import lakepond as lp
from lakepond.lake.format.sealed import seal, unseal

STEPS = 24
damage = st.lists(
    st.one_of(
        st.tuples(st.just("flip"), st.floats(0, 1), st.integers(1, 255)),
        st.tuples(st.just("cut"), st.floats(0, 1), st.just(0)),
        st.tuples(st.just("copy"), st.floats(0, 1), st.floats(0, 1)),
        st.tuples(st.just("put"), st.floats(0, 1), st.binary(max_size=12)),
        st.tuples(st.just("zero"), st.floats(0, 1), st.integers(1, 64)),
    ),
    min_size=1,
    max_size=4,
)


def damaged(data: bytes, what: list[tuple[str, float, Any]]) -> bytes:
    for kind, at, how in what:
        place = int(at * max(0, len(data) - 1))
        if kind == "flip" and data:
            data = data[:place] + bytes([data[place] ^ how]) + data[place + 1 :]
        elif kind == "cut":
            data = data[:place]
        elif kind == "copy":  # a stretch from elsewhere in the file
            source = int(how * max(0, len(data) - 1))
            data = data[:place] + data[source : source + 40] + data[place + 40 :]
        elif kind == "put":
            data = data[:place] + how + data[place:]
        elif kind == "zero":
            data = data[:place] + bytes(min(how, len(data) - place)) + data[place + how :]
    return data


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One commit of a lake that has everything: rows, plain leaves, extras, priorities."""
    path = tmp_path_factory.mktemp("fuzz") / "lake"
    with lp.Replay.open(path, spec_of("dict and tuple"), capacity=100, alpha=0.6) as replay:
        record(replay, "dict and tuple", 0, STEPS)
        replay.commit()
    return path


@contextmanager
def with_file(file: Path, data: bytes) -> Iterator[None]:
    whole = file.read_bytes()
    file.write_bytes(data)
    try:
        yield
    finally:
        file.write_bytes(whole)


def read_all(path: Path, folder: Path) -> lp.Batch | None:
    """All that can be done with a lake; None if it was refused, as it has to be."""
    try:
        with lp.Lake.open(path) as opened:
            batch = opened.steps(opened.commit.oldest, opened.commit.recorded)
            opened.sample(5, rng=np.random.default_rng(0))
            opened.query(stream=1)
            opened.stats()
    except lp.LakepondError:
        batch = None
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path, copy)
    try:
        lp.repair(copy)
        with lp.Replay.open(copy, capacity=100, alpha=0.6) as replay:
            replay.sample(5, rng=np.random.default_rng(0))
    except lp.LakepondError:
        pass
    return batch


@pytest.mark.parametrize("kind", ["lake.json", "commits/*", "segments/*.steps", "segments/*.rows"])
@settings(max_examples=40)
@given(data=st.data(), what=damage)
def test_damaged_bytes(lake, tmp_path_factory, kind, data, what):
    file = data.draw(st.sampled_from(sorted(lake.glob(kind))))
    with lp.Lake.open(lake) as opened:
        right = opened.steps(0, STEPS)
    with with_file(file, damaged(file.read_bytes(), what)):
        got = read_all(lake, tmp_path_factory.getbasetemp())
    assert got is None or same_batch(got, right)


json_values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**31, 2**62, 2**63, 2**70, -(2**63), 10**18]),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["../../lake", "0" * 40, "zstd", "none"]),
    st.lists(st.integers(-1, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def places(tree: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield from places(value, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Any:
    if not path:
        return change(tree)
    copy = dict(tree) if isinstance(tree, dict) else list(tree)
    copy[path[0]] = changed(copy[path[0]], path[1:], change)
    return copy


@pytest.mark.parametrize("kind", ["lake.json", "commits/*"])
@settings(max_examples=80)
@given(data=st.data())
def test_sealed_nonsense(lake, tmp_path_factory, kind, data):
    """As if a program had written it: the checksum holds, but a value is another, missing or repeated."""
    file = sorted(lake.glob(kind))[0]
    content = json.loads(json.dumps(unseal(file.read_bytes())))
    for _ in range(data.draw(st.integers(1, 2))):
        place = data.draw(st.sampled_from(list(places(content))[1:]))
        how = data.draw(st.sampled_from(["other", "drop", "repeat"]))
        if how == "other":
            content = changed(content, place, lambda _: data.draw(json_values))
        else:
            inner = place[:-1]

            def drop(node: Any, key: Any = place[-1]) -> Any:
                if isinstance(node, dict):
                    return {k: v for k, v in node.items() if k != key}
                return node[:key] + node[key + 1 :]

            def repeat(node: Any, key: Any = place[-1]) -> Any:
                return {**node, f"{key}2": node[key]} if isinstance(node, dict) else [*node, node[key]]

            content = changed(content, inner, drop if how == "drop" else repeat)
    with with_file(file, seal(content)):
        read_all(lake, tmp_path_factory.getbasetemp())  # raises nothing but LakepondError


def test_files_of_one_lake_in_the_place_of_anothers(lake, tmp_path):
    """Every file of a lake is replaced by one of the same kind and size from another run."""
    other = tmp_path / "lake"
    shutil.copytree(lake, other)
    with lp.Lake.open(lake) as opened:
        right = opened.steps(0, STEPS)
    steps = sorted(other.glob("segments/*.steps"))
    rows = sorted(other.glob("segments/*.rows"))
    for files in (steps, rows):
        for file in files:
            for stranger in files:
                if file != stranger:
                    size = file.stat().st_size
                    forged = stranger.read_bytes().ljust(size, b"\0")[:size]
                    with with_file(file, forged):
                        got = read_all(other, tmp_path)
                        assert got is None or same_batch(got, right)
