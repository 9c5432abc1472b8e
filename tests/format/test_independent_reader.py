"""A reader written from docs/format.md alone reads what lakepond writes, bit for bit, and detects damage."""

from __future__ import annotations

import ast
import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import independent_reader as independent
import numpy as np
import pyarrow as pa
import pytest
from golden_lakes import GOLDEN, LAKES, as_format, write

import lakepond as lp
from lakepond.lake.format.steps import write_steps
from lakepond.lake.read.weights import read_weights
from lakepond.types import leaves
from reference import WORLDS


def commits_of(lake: Path) -> Iterator[tuple[str, int]]:
    for name in independent.writer_names(lake):
        folder = (lake / "writers" / name if name else lake) / "commits"
        yield from ((name, number) for number in independent.commit_numbers(folder))


def assert_same_steps(path: Path, name: str, number: int) -> None:
    """All that the two readers return for one commit is equal."""
    other = independent.open_writer(path, name, number)
    assert other.verify() >= 1
    found = list(other.steps())
    with lp.Lake.open(path, number, writer=name) as lake:
        assert [step.id for step in found] == list(range(lake.commit.oldest, lake.commit.recorded))
        assert_same_batch(found, lake)
        head = lake.reader.heads[0]
        ids, weights = read_weights(lake.commit, head.segments)
        live = ids >= lake.commit.oldest
        assert other.weights() == dict(zip(ids[live].tolist(), weights[live].tolist(), strict=True))


def assert_same_batch(found: list[independent.Step], lake: lp.Lake) -> None:
    batch = lake.steps(lake.reader.oldest, lake.reader.recorded)
    follows = [columns["follows_previous"] for _, _, columns in lake.reader.scan(["follows_previous"])]
    columns = {
        **dict(leaves(batch.action, "action")),
        **{name: getattr(batch, name) for name in ("reward", "terminated", "truncated", "stream")},
        **{name: batch.extras[name].astype(field.dtype) for name, field in lake.spec.extras.items()},
        "follows_previous": np.concatenate(follows),
    }
    obs, next_obs = ([leaf for _, leaf in leaves(tree)] for tree in (batch.obs, batch.next_obs))
    assert len(found) == len(batch.reward)
    for i, step in enumerate(found):
        assert step.columns == {name: column[i : i + 1].tobytes() for name, column in columns.items()}
        assert step.obs == [leaf[i : i + 1].tobytes() for leaf in obs]
        assert step.next_obs == [leaf[i : i + 1].tobytes() for leaf in next_obs]


@pytest.mark.parametrize("lake", LAKES, ids=str)
def test_it_reads_every_commit_of_every_golden_lake(lake):
    path = LAKES[lake]
    for name, number in commits_of(path):
        assert_same_steps(path, name, number)


@pytest.mark.parametrize("lake", [name for name in LAKES if name.endswith("writers")])
def test_it_reads_the_writers_of_a_lake_in_the_order_of_their_names(lake):
    found = [step for writer in independent.open_lake(LAKES[lake]) for step in writer.steps()]
    with lp.Lake.open(LAKES[lake]) as together:
        assert len(together.heads) == 3
        assert_same_batch(found, together)


@pytest.mark.parametrize("world", WORLDS)
def test_it_reads_a_lake_that_was_just_written(tmp_path, world):
    observe = WORLDS[world].observe
    with lp.Replay.open(tmp_path, lp.Spec(WORLDS[world].fields), 40, alpha=0.5) as replay:
        for n in range(60):
            replay.record(
                obs=observe(n // 9, n % 9),
                next_obs=observe(n // 9, n % 9 + 1),
                action=n,
                reward=float(n),
                terminated=n % 9 == 8,
                truncated=False,
            )
            if n % 25 == 24:
                replay.update_priorities(np.arange(n - 10, n), np.arange(10) + 0.5)
                replay.commit()
    for name, number in commits_of(tmp_path):
        assert_same_steps(tmp_path, name, number)


def test_it_reads_a_lake_after_merging_and_with_batches_and_blocks_of_the_usual_size(tmp_path):
    """A steps file of several batches: a batch is 8,192 steps at most."""
    spec = lp.Spec(lp.Field((3, 4, 4), "uint8", rows=0))
    frames = np.random.default_rng(0).integers(0, 255, (20_010, 4, 4), dtype=np.uint8)
    windows = np.stack([frames[k : k + 20_001] for k in range(3)], axis=1)
    with lp.Replay.open(tmp_path, spec, 30_000) as replay:
        for start, stop in [(0, 18_000), (18_000, 18_001), (18_001, 20_000)]:
            replay.record(
                obs=windows[start:stop],
                next_obs=windows[start + 1 : stop + 1],
                action=np.arange(start, stop),
                reward=np.arange(start, stop, dtype=np.float32),
                terminated=np.zeros(stop - start, bool),
                truncated=np.arange(start, stop) % 100 == 99,
                stream=0,
            )
            replay.commit()
    with lp.Lake.open(tmp_path) as lake:
        lake.compact()
    for name, number in commits_of(tmp_path):
        assert_same_steps(tmp_path, name, number)


def test_it_runs_without_lakepond():
    """As a program, in a process that cannot import lakepond or anything but what the page allows."""
    path = Path(independent.__file__)
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else alias.name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    assert imported <= {*sys.stdlib_module_names, "pyarrow", "zstandard", "xxhash"}
    program = (
        f"import sys, runpy; sys.modules['lakepond'] = None; runpy.run_path({str(path)!r}, None, '__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(LAKES["v2/manifests"])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "writer '', commit 15: 32 files, 32 steps\n"


# --- damage ----------------------------------------------------------------------------------------


def read_all(path: Path, name: str, number: int, **options: bool) -> list[independent.Step]:
    writer = independent.open_writer(path, name, number, **options)
    writer.verify()
    return list(writer.steps())


def needed_files(path: Path, name: str, number: int) -> list[Path]:
    """The files of a commit: lake.json, the commit itself, manifests, steps, rows, priorities."""
    with lp.Lake.open(path, number, writer=name) as lake:
        segments = lake.reader.heads[0].segments
        found = {segments.local(file) for file, _ in lake.files()}
    home = path / "writers" / name if name else path
    return [path / "lake.json", home / "commits" / f"{number:010d}.json", *sorted(filter(None, found))]


def places(size: int, count: int) -> list[int]:
    """Both ends of a file, and places between."""
    return sorted({0, size - 1, *(size * k // count for k in range(count))})


@pytest.mark.parametrize("lake", LAKES, ids=str)
def test_a_flipped_bit_anywhere_is_detected(tmp_path, lake):
    path = tmp_path / "lake"
    shutil.copytree(LAKES[lake], path)
    name, number = max(commits_of(path), key=lambda found: found[1])
    files = needed_files(path, name, number)
    for file in files:
        data = file.read_bytes()
        for place in places(len(data), max(3, 200 // len(files))):
            bit = 1 << place % 8
            file.write_bytes(data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :])
            with pytest.raises((independent.Damaged, independent.TooNew)):
                read_all(path, name, number)
        for other in (data[: len(data) // 2], data + b"\0"):
            file.write_bytes(other)
            with pytest.raises(independent.Damaged):
                read_all(path, name, number)
        file.unlink()
        with pytest.raises((independent.Damaged, FileNotFoundError)):
            read_all(path, name, number)
        file.write_bytes(data)
    read_all(path, name, number)


@pytest.mark.parametrize("lake", ["v2/axes", "v2/uncompressed", "v1-more/axes"])
def test_blocks_of_rows_are_checked_without_the_digest_of_the_file(tmp_path, lake):
    """A reader of a few rows does not hash the file: the index and the sums of blocks have to be enough."""
    path = tmp_path / "lake"
    shutil.copytree(LAKES[lake], path)
    name, number = max(commits_of(path))
    for file in needed_files(path, name, number):
        if file.suffix != ".rows":
            continue
        data = file.read_bytes()
        for place in places(len(data), 60):
            file.write_bytes(data[:place] + bytes([data[place] ^ 16]) + data[place + 1 :])
            with pytest.raises(independent.Damaged):
                read_all(path, name, number, check_digests=False)
        file.write_bytes(data)


def test_columns_are_checked_without_the_digest_of_the_file(tmp_path):
    """Arrow has no checksums; another value, another order or another name is seen by those of the format."""
    file = tmp_path / "file.steps"
    columns = {
        "flags": np.arange(30).reshape(10, 3) % 2 == 0,
        "number": np.arange(10.0),
        "text": np.array([f"{n}" for n in range(10)], "U4"),
    }
    with file.open("wb") as opened:
        write_steps(opened, columns, {"layout[0]": b"[1, 2, null]", "other": b"\0"})
    data = file.read_bytes()
    assert independent.steps_in(data, "it").columns == {k: v.tobytes() for k, v in columns.items()}
    reader = pa.ipc.open_file(pa.BufferReader(data))
    batch, own = reader.get_batch_with_custom_metadata(0)
    schema, metadata = batch.schema, batch.schema.metadata

    def with_column(i: int, array: pa.Array) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(
            [array if j == i else c for j, c in enumerate(batch.columns)], schema=schema
        )

    def with_metadata(**changes: bytes) -> pa.RecordBatch:
        changed = {**metadata, **{k.encode(): v for k, v in changes.items()}}
        return batch.replace_schema_metadata(changed)

    steps = json.loads(metadata[b"lakepond.steps"])
    other_batch = json.dumps({**steps, "batch": 4096}).encode()
    damaged = {
        "another value": with_column(1, pa.array([*range(9), 10.5])),
        "another order": batch.take([1, 0, *range(2, 10)]),
        "one less": batch.slice(0, 9),
        "another note": with_metadata(**{"lakepond.note.other": b"\1"}),
        "another key": with_metadata(**{"other": b"\1"}),
        "another batch": with_metadata(**{"lakepond.steps": other_batch}),
        "another name": batch.rename_columns(["flags", "numbers", "text"]).replace_schema_metadata(metadata),
    }
    for what, changed in damaged.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_file(sink, changed.schema) as writer:
            writer.write_batch(changed, own)
        with pytest.raises(independent.Damaged):
            independent.steps_in(sink.getvalue().to_pybytes(), what)


# --- versions --------------------------------------------------------------------------------------


@pytest.mark.parametrize("lake", ["v2/manifests", "v1"])
def test_both_readers_ignore_unknown_keys_and_refuse_unknown_features(tmp_path, lake):
    from lakepond.errors import LakeTooNew

    path = tmp_path / "lake"
    shutil.copytree(LAKES[lake], path)
    file = max((path / "commits").glob("*.json"))
    content = json.loads(file.read_bytes())
    del content["checksum"]
    entries = content["steps" if "steps" in content else "segments"]
    entries[-1]["colour"] = "blue"
    file.write_bytes(as_format({**content, "colour": {"of": ["any", "kind"]}}))
    expected = content["recorded"] - content["oldest"]
    assert sum(1 for w in independent.open_lake(path) for _ in w.steps()) == expected
    with lp.Lake.open(path) as opened:
        opened.verify()
        assert len(opened) == expected
    for later in ({"requires": ["colour"]}, {"format": 3}):
        file.write_bytes(as_format({**content, **later}))
        with pytest.raises(independent.TooNew):
            independent.open_lake(path)
        with pytest.raises(LakeTooNew):
            lp.Lake.open(path)


# --- what an independent writer may do -------------------------------------------------------------


def test_a_manifest_may_need_more_than_its_entries_but_not_less():
    """How ranges are joined is the writer's choice, so it can change without making old lakes unreadable."""
    from dataclasses import replace

    from lakepond.errors import LakeCorrupt
    from lakepond.lake.format import manifests
    from lakepond.lake.format.entries import Segment
    from lakepond.lake.format.steps import StepsInfo

    info = StepsInfo(5, 4000, "0" * 40)
    entries = [Segment(0, info, (((0, 9),),)), Segment(5, info, (((5000, 5009),),))]
    manifest, data = manifests.encode(entries, 1, None)
    assert manifest.needs == (((0, 9), (5000, 5009)),)
    wider = replace(manifest, needs=(((0, 6000),),))
    assert manifests.decode(wider, data, None, 1) == tuple(entries)
    for needs in ((((0, 9),),), (((0, 8), (5000, 5009)),), ((),)):
        with pytest.raises(LakeCorrupt):
            manifests.decode(replace(manifest, needs=needs), data, None, 1)


@pytest.mark.parametrize("leaves", [1, 3, 12, 100])
def test_a_manifest_of_1024_files_stays_small_and_readable(tmp_path, leaves):
    """Also if each file refers to rows all over the lake, for many observations."""
    from lakepond.lake.format import manifests
    from lakepond.lake.format.entries import Segment
    from lakepond.lake.format.ranges import joined, most_ranges
    from lakepond.lake.format.steps import StepsInfo
    from lakepond.lake.segments import Segments

    starts = 10**9 + 1000 * np.arange(40)
    needs = tuple(
        joined(np.stack([starts, starts + 300], axis=1), most_ranges(leaves)) for _ in range(leaves)
    )
    info = StepsInfo(100, 30_000, "0" * 40)
    manifest, data = manifests.encode([Segment(100 * i, info, needs) for i in range(1024)], 3, None)
    assert len(data) < (1 << 20 if leaves <= 16 else 4 << 20)
    (tmp_path / "segments").mkdir()
    (tmp_path / "segments" / manifest.name).write_bytes(data)
    assert len(manifests.read(Segments(tmp_path), manifest, None, leaves)) == 1024


# --- the golden lakes are what they are meant to be ------------------------------------------------


def test_the_golden_lakes_cover_what_they_should():
    def entries(lake: str) -> list[list[independent.Entry]]:
        (writer,) = independent.open_lake(LAKES[lake])
        return writer.commit.lists()

    assert [[e.level for e in listed] for listed in entries("v2/manifests")] == [[4, 3, 2, 1, 0]] * 2
    (dropped,) = independent.open_lake(LAKES["v2/dropped"])
    listed = [entry for each in dropped.commit.lists() for entry in each]
    files = [entry for each in dropped.commit.lists() for entry in dropped.files(each)]
    assert sum(entry.files for entry in listed) > len(files)  # its manifests list files that are gone
    assert dropped.commit.steps[0].level == 3
    assert dropped.commit.steps[0].first < dropped.commit.oldest < dropped.commit.steps[0].stop
    for version in ("v1-more", "v2"):
        (axes,) = independent.open_lake(LAKES[f"{version}/axes"])
        _, windows = axes.open_steps(next(axes.files(axes.commit.steps)))
        layouts = [None if each is None else (each.length, each.axis) for each in windows]
        assert layouts == [(4, 0), (4, -1), (3, -1), (3, 0), (5, 1), (1, None), None, None]
        (plain,) = independent.open_lake(LAKES[f"{version}/uncompressed"])
        assert {e.codec for e in plain.files(plain.commit.rows[0])} == {"none"}
        (weighted,) = independent.open_lake(LAKES[f"{version}/priorities"])
        assert len(weighted.commit.weights) > 1
        (auto,) = independent.open_lake(LAKES[f"{version}/auto"])
        kinds = [auto.open_steps(entry)[1][0] for entry in auto.files(auto.commit.steps)]
        assert len({None if each is None else each.length for each in kinds}) == 2
    assert not list(LAKES["v1-more/writers"].glob("writers/*/segments"))
    assert len(list(LAKES["v2/writers"].glob("writers/*/segments"))) == 2
    first, second = independent.open_lake(LAKES["v2/sources"])
    shared = [[e.name for e in each.files(each.commit.rows[0])] for each in (first, second)]
    assert shared[0] == shared[1]
    assert len(shared[0]) == len(list(LAKES["v2/sources"].glob("sources/*.source"))) == 3
    assert not list(LAKES["v2/sources"].rglob("*.rows"))
    assert first.commit.rows[0][0].level > 0  # a manifest lists files of the source
    size = sum(file.stat().st_size for path in LAKES.values() for file in path.rglob("*") if file.is_file())
    assert size < 500_000


@pytest.mark.parametrize("name", GOLDEN)
def test_the_golden_lakes_can_be_written_again(tmp_path, name):
    """The same files with the same names: the writer is deterministic, apart from informative keys."""
    write(GOLDEN[name], tmp_path)
    for number, file in enumerate(sorted(LAKES[f"v2/{name}"].rglob("*.json"))):
        again = json.loads((tmp_path / file.relative_to(LAKES[f"v2/{name}"])).read_bytes())
        content = json.loads(file.read_bytes())
        for key in ("time", "seconds", "bytes_written", "checksum"):
            content.pop(key, None), again.pop(key, None)
        assert again == content, number


def test_crc32c_has_the_check_value_of_its_definition():
    assert independent.crc32c(b"123456789") == 0xE3069283
    assert struct.pack("<I", independent.crc32c(bytes(32))) == bytes.fromhex("aa36918a")
