"""Lakes that lie: every checksum holds, and a number in them is not what the files can hold."""

from __future__ import annotations

import atexit
import io
import shutil
import struct
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import lakepond as lp
from lakepond.arrow_sizes import read_footer
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.columns import StepFileLayout, _column
from lakepond.lake.format.sealed import seal, unseal
from lakepond.lake.format.steps import read_layout, read_steps, write_batches, write_steps

SPEC = lp.Spec(obs=lp.Field((4, 8, 8), "uint8", rows=0), action=lp.Field((), "int64"))
STEPS = 60
Json = dict[str, Any]


@cache
def base() -> Path:
    """A small honest lake: two commits, prioritised; each reward is its step id."""
    home = tempfile.mkdtemp(prefix="lakepond-hostile-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    path = Path(home) / "lake"
    frames = np.random.default_rng(3).integers(0, 255, (STEPS + 5, 8, 8), dtype=np.uint8)
    with lp.Replay.open(path, SPEC, capacity=200, alpha=0.6) as replay:
        for t in range(STEPS):
            replay.record(
                obs=frames[t : t + 4],
                action=t % 3,
                reward=float(t),
                next_obs=frames[t + 1 : t + 5],
                terminated=t % 20 == 19,
                truncated=False,
            )
            if t == STEPS // 2:
                replay.commit({"generation": 1})
        replay.update_priorities(np.arange(STEPS), np.arange(STEPS) + 1.0)
        replay.commit({"generation": 2})
    return path


def copied(folder: Path) -> Path:
    """A copy of the honest lake at `folder/lake`."""
    shutil.copytree(base(), folder / "lake")
    return folder / "lake"


def newest(lake: Path) -> Path:
    """The file of the newest commit."""
    return max((lake / "commits").glob("*.json"))


def resealed(file: Path, change: Callable[[Json], None]) -> None:
    """Change a sealed JSON file and seal it again."""
    value = unseal(file.read_bytes())
    change(value)
    file.write_bytes(seal(value))


def commit_says(change: Callable[[Json], None]) -> Callable[[Path], None]:
    """A lake whose newest commit lies; older commits are removed, so that none is stepped back to."""

    def build(folder: Path) -> None:
        lake = copied(folder)
        for older in sorted((lake / "commits").glob("*.json"))[:-1]:
            older.unlink()
        resealed(newest(lake), change)

    return build


def lake_says(change: Callable[[Json], None]) -> Callable[[Path], None]:
    """A lake whose lake.json lies."""

    def build(folder: Path) -> None:
        resealed(copied(folder) / "lake.json", change)

    return build


def stored(lake: Path, data: bytes, ending: str) -> dict[str, Any]:
    """Store a file of the lake under its digest; returns what a commit says of it."""
    digest = digest_of(data)
    (lake / "segments" / f"{digest}.{ending}").write_bytes(data)
    return {"bytes": len(data), "digest": digest}


def steps_say(change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> Callable[[Path], None]:
    """A lake whose segment has other columns or notes than it should, under valid checksums."""

    def build(folder: Path) -> None:
        lake = copied(folder)

        def lie(value: Json) -> None:
            file = lake / "segments" / f"{value['steps'][0]['digest']}.steps"
            columns, notes = read_steps(file), dict(read_layout(file).notes)
            change(columns, notes)
            out = io.BytesIO()
            steps = write_steps(out, columns, notes).steps
            value["steps"][0] |= {"steps": steps, **stored(lake, out.getvalue(), "steps")}

        commit_only(lake, lie)

    return build


def commit_only(lake: Path, change: Callable[[Json], None]) -> None:
    """Change the newest commit and remove the older ones."""
    for older in sorted((lake / "commits").glob("*.json"))[:-1]:
        older.unlink()
    resealed(newest(lake), change)


def steps_file(change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    """A lake whose first segment is another file, under valid digests."""

    def build(folder: Path) -> None:
        lake = copied(folder)

        def lie(value: Json) -> None:
            data = change((lake / "segments" / f"{value['steps'][0]['digest']}.steps").read_bytes())
            value["steps"][0] |= stored(lake, data, "steps")

        commit_only(lake, lie)

    return build


def lying_buffer(size: int) -> Callable[[bytes], bytes]:
    """An Arrow file whose compressed buffers say that they expand to `size` bytes each."""

    def change(data: bytes) -> bytes:
        changed = bytearray(data)
        for offset, metadata, body in read_footer(lambda n, at: data[at : at + n], len(data)).batches:
            for at in range(offset + metadata, offset + metadata + body - 12, 8):
                if data[at + 8 : at + 12] == b"\x28\xb5\x2f\xfd":  # a zstd frame follows the length
                    changed[at : at + 8] = struct.pack("<q", size)
        return bytes(changed)

    return change


def huge_batch(folder: Path) -> None:
    """A segment of 16 million steps in one batch: 700 MB of zeros in 60 kB."""
    lake, count = copied(folder), 1 << 24

    def lie(value: Json) -> None:
        layout = read_layout(lake / "segments" / f"{value['steps'][0]['digest']}.steps")
        huge = StepFileLayout(layout.columns, count, count, layout.notes)
        zeros = {c.name: np.zeros((count, *c.shape), c.dtype) for c in layout.columns}
        out = io.BytesIO()
        write_batches(out, huge, [zeros])
        value["steps"] = [{**value["steps"][0], "steps": count, **stored(lake, out.getvalue(), "steps")}]
        value["recorded"], value["oldest"], value["priorities"] = count, count - 1, None
        value.pop("priority_changes", None)

    commit_only(lake, lie)


def huge_priorities(folder: Path) -> None:
    """Priorities of 67 million steps in one batch: 512 MB of zeros in 20 kB."""
    lake, count = copied(folder), 1 << 26

    def lie(value: Json) -> None:
        layout = StepFileLayout((_column("weight", np.dtype("<f8"), ()),), count, count, (("first", b"0"),))
        out = io.BytesIO()
        write_batches(out, layout, [{"weight": np.zeros(count)}])
        value["priorities"] = {"steps": count, **stored(lake, out.getvalue(), "steps")}
        value.pop("priority_changes", None)

    commit_only(lake, lie)


def priorities_are(*weights: float) -> Callable[[Path], None]:
    """A lake with these priorities of its last steps."""

    def build(folder: Path) -> None:
        lake = copied(folder)

        def lie(value: Json) -> None:
            out = io.BytesIO()
            first = str(STEPS - len(weights)).encode()
            info = write_steps(out, {"weight": np.array(weights)}, {"first": first})
            value["priorities"] = {"steps": info.steps, **stored(lake, out.getvalue(), "steps")}
            value.pop("priority_changes", None)

        commit_only(lake, lie)

    return build


def rle_frame(size: int) -> bytes:
    """A valid zstd frame of `size` zeros: 4 bytes for each 128 KiB."""
    frame = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size)
    for at in range(0, size, 128 << 10):
        part = min(128 << 10, size - at)
        frame += struct.pack("<I", part << 3 | 1 << 1 | (at + part == size))[:3] + b"\0"
    return frame


def expanding_rows(row_bytes: int, block_rows: int) -> Callable[[Path], None]:
    """A file of rows with one block, a real zstd frame that expands to row_bytes * block_rows zeros."""

    def build(folder: Path) -> None:
        import xxhash

        from lakepond.lake.format.checksum import crc32c

        lake = copied(folder)
        frame = rle_frame(row_bytes * block_rows)
        index = struct.pack("<QQ", 0, len(frame))
        data = frame + struct.pack("<Q", xxhash.xxh3_64_intdigest(frame)) + index
        data += struct.pack("<I", crc32c(index))

        def lie(value: Json) -> None:
            shard = {"rows": block_rows, "row_bytes": row_bytes, "block_rows": block_rows, "codec": "zstd"}
            value["rows"] = [[{"first": 0, **shard, **stored(lake, data, "rows")}]]
            value["next_rows"] = [block_rows]
            value["live_rows"] = [[[0, block_rows]]]
            for segment in value["steps"]:
                segment["needs"] = [[[0, block_rows]]]

        commit_only(lake, lie)

    return build


def listed(change: Callable[[Json], None], level: int = 1, **more: Any) -> Callable[[Path], None]:
    """A lake whose files of steps are in a manifest that lies, or about which the commit does."""

    def build(folder: Path) -> None:
        lake = copied(folder)

        def lie(value: Json) -> None:
            manifest = {"format": 2, "requires": [], "leaf": None, "entries": value["steps"]}
            change(manifest)
            entries = manifest["entries"]
            file = stored(lake, seal(manifest), "manifest")
            value["steps"] = [
                {
                    "manifest": file["digest"],
                    "level": level,
                    "first": 0,
                    "stop": value["recorded"],
                    "files": len(entries),
                    "count": value["recorded"],
                    "bytes": sum(entry.get("bytes", 0) for entry in entries),
                    "size": file["bytes"],
                    "needs": [[[0, value["next_rows"][0]]]],
                    **more,
                }
            ]

        commit_only(lake, lie)

    return build


def nested(depth: int) -> Callable[[Path], None]:
    """A lake with a manifest of a manifest of a manifest ..., deeper than any level."""

    def build(folder: Path) -> None:
        lake = copied(folder)

        def lie(value: Json) -> None:
            entries = value["steps"]
            for _ in range(depth):
                file = stored(
                    lake, seal({"format": 2, "requires": [], "leaf": None, "entries": entries}), "manifest"
                )
                found = {
                    "manifest": file["digest"],
                    "level": 16,
                    "first": 0,
                    "stop": value["recorded"],
                    "files": len(value["steps"]),
                    "count": value["recorded"],
                    "bytes": sum(entry["bytes"] for entry in entries),
                    "size": file["bytes"],
                    "needs": [[[0, value["next_rows"][0]]]],
                }
                entries = [found]
            value["steps"] = entries

        commit_only(lake, lie)

    return build


def nothing(value: Json) -> None:
    """An honest manifest."""


def set_at(*path: Any, to: Any) -> Callable[[Json], None]:
    """Set one value of a JSON document."""

    def change(value: Any) -> None:
        for key in path[:-1]:
            value = value[key]
        value[path[-1]] = to

    return change


def both(*changes: Callable[[Json], None]) -> Callable[[Json], None]:
    """Several changes."""

    def change(value: Json) -> None:
        for one in changes:
            one(value)

    return change


def _tracks(*runs: tuple[int, int]) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def change(columns: dict[str, Any], notes: dict[str, bytes]) -> None:
        notes["track[0]"] = np.array(runs, "<i8").tobytes()

    return change


HUGE = 1 << 40
OBS = ("spec", "obs")
VERIFIED: dict[str, Callable[[Path], None]] = {
    "a row count of 2^40": commit_says(
        both(set_at("rows", 0, 0, "rows", to=HUGE), set_at("rows", 0, slice(1, None), to=[]))
    ),
    "a row number of 2^70": commit_says(
        both(set_at("rows", 0, 0, "first", to=1 << 70), set_at("next_rows", to=[1 << 71]))
    ),
    "blocks of 2^24 rows": commit_says(set_at("rows", 0, 0, "block_rows", to=1 << 24)),
    "rows of 2 GB": commit_says(set_at("rows", 0, 0, "row_bytes", to=(1 << 31) - 1)),
    "a step count of 2^40": commit_says(
        both(
            set_at("steps", slice(1, None), to=[]),
            set_at("steps", 0, "steps", to=HUGE),
            set_at("recorded", to=HUGE),
        )
    ),
    "more steps than the file can hold": commit_says(
        both(
            set_at("steps", slice(1, None), to=[]),
            set_at("steps", 0, "steps", to=1 << 20),
            set_at("recorded", to=1 << 20),
        )
    ),
    "a track of 2^39 rows": steps_say(_tracks((0, 1 << 39))),
    "a track of a thousand long runs": steps_say(_tracks(*[(0, 1 << 29)] * 1000)),
    "a track outside of the files": steps_say(_tracks((1 << 39, 100))),
    "windows of Python objects": steps_say(
        lambda columns, notes: notes.update({"layout[0]": b'["4", 64, 0]'})
    ),
    "an observation of 512 GB": lake_says(set_at(*OBS, "shape", to=[1 << 33, 8, 8])),
    "an observation of infinite length": lake_says(set_at(*OBS, "shape", to=[float("inf"), 8, 8])),
    "an observation of 100 axes": lake_says(set_at(*OBS, "shape", to=[1] * 100)),
    "an observation of Python objects": lake_says(set_at(*OBS, "dtype", to="O")),
    "a buffer that says 2^40 bytes": steps_file(lying_buffer(HUGE)),
    "a buffer that says 1 GB": steps_file(lying_buffer(1 << 30)),
    "an empty file of steps": steps_file(lambda data: b""),
    "a file of steps that is something else": steps_file(lambda data: b"ARROW1" * 40),
    "a batch that expands to 700 MB": huge_batch,
    "priorities that expand to 512 MB": huge_priorities,
    "rows that expand to 2 GB": expanding_rows((1 << 31) - 1, 1),
    "a block that expands to 1 GB": expanding_rows(64, 1 << 24),
    "a NaN priority": priorities_are(1.0, float("nan")),
    "a negative priority": priorities_are(1.0, -2.0),
    "an infinite priority": priorities_are(float("inf")),
    "a NaN largest priority": commit_says(set_at("largest_priority", to=float("nan"))),
    "an infinite alpha": commit_says(set_at("alpha", to=float("inf"))),
    "a time that is a number": commit_says(set_at("time", to=5)),
    "a time that is no date": commit_says(set_at("time", to="yesterday")),
    "a text for a duration": commit_says(set_at("seconds", to="fast")),
    "a note that is a list": commit_says(set_at("note", to=[1])),
    "a manifest of a thousand levels": nested(1000),
    "a manifest with fewer files than the commit says": listed(nothing, files=1000),
    "a manifest with other steps than the commit says": listed(
        both(set_at("entries", slice(1, None), to=[]), set_at("entries", 0, "steps", to=STEPS))
    ),
    "a manifest that does not say which rows its steps need": listed(nothing, needs=[]),
    "a manifest that needs fewer rows than its steps": listed(nothing, needs=[[[0, 1]]]),
    "a manifest of rows in the list of steps": listed(set_at("leaf", to=0)),
    "a manifest without entries": listed(set_at("entries", to=[])),
    "a manifest of 100,000 entries": listed(lambda value: value.update(entries=value["entries"] * 50_000)),
    "a manifest of 65 MB": listed(set_at("padding", to="x" * (65 << 20))),
    "a manifest of level 17": listed(nothing, level=17),
    "a manifest of 2^40 bytes": listed(nothing, size=1 << 40),
    "a manifest that is a number": listed(nothing, manifest=7),
    "a manifest that leaves the folder": listed(nothing, manifest="../../../etc/passwd"),
    "live rows in the wrong order": commit_says(set_at("live_rows", to=[[[50, 60], [0, 10]]])),
    "live rows of another leaf": commit_says(set_at("live_rows", to=[[], []])),
    "live rows of which none is": commit_says(set_at("live_rows", to=[[]])),
    "a list of steps that is a text": commit_says(set_at("steps", to="all")),
    "a digest that leaves the folder": commit_says(set_at("rows", 0, 0, "digest", to="../../../etc/passwd")),
}
OPENED = [name for name in VERIFIED if "priorit" in name]
"""lakes that are also refused when a replay resumes from them"""
WIDE = lake_says(set_at(*OBS, "shape", 1, to=(1 << 31) - 1))
"""a lake that says that its observations are wider than Arrow's lists"""
