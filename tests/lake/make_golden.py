"""Writes the golden lakes of the present format: what it wrote once must stay readable.

    python tests/lake/make_golden.py               tests/lake/golden/v2
    PYTHONPATH=<src of commit acfdc9f> python tests/lake/make_golden.py tests/lake/golden/v1-more

Run it once for each version of the format. `golden/v1` is older and is not written by this script.
Every value is a function of its name and its number (`values`), so the tests know what each step holds. The
lakes are the same bytes whenever they are written, apart from `time` and `seconds` in the commits.
"""

from __future__ import annotations

import hashlib
import math
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import lakepond as lp
from lakepond.flow import known_sources
from lakepond.lake.format import blocks, description
from lakepond.lake.write import new_files, sources

FOLDER = Path(__file__).parent / "golden"
BLOCK_BYTES = 256
"""uncompressed bytes of a block of rows in these lakes, so that small files have several blocks"""
STREAMS = 2


def values(name: str, number: int, shape: tuple[int, ...] = (), dtype: Any = "uint8") -> np.ndarray:
    """An array that no other name and number has: all bits are used, so floats may be NaN."""
    kind = np.dtype(dtype)
    size = math.prod(shape)
    if kind.kind == "b":
        bits = np.frombuffer(hashlib.shake_128(f"{name} {number}".encode()).digest(size), np.uint8)
        return (bits & 1).astype(bool).reshape(shape)
    if kind.kind == "S":
        return np.full(shape, f"{number:03d}".encode(), kind)
    if kind.kind == "U":
        return np.full(shape, f"é{number}", kind)
    data = hashlib.shake_128(f"{name} {number}".encode()).digest(size * kind.itemsize)
    return np.frombuffer(data, kind).reshape(shape)


def window(name: str, n: int, length: int, row: tuple[int, ...], dtype: str = "uint8") -> np.ndarray:
    """Rows [n, n + length) of a history."""
    return np.stack([values(name, n + k, row, dtype) for k in range(length)])


Step = Callable[[int], dict[str, Any]]


@dataclass(frozen=True)
class Golden:
    """A lake: its spec, what step n of a writer is, and how it is written."""

    spec: lp.Spec
    observe: Callable[[int, int], Any]
    """the observation of a stream at a time"""
    stops: tuple[int, ...]
    """the steps recorded at each commit"""
    rest: Step = lambda n: {"action": n}
    """action and extras of a step"""
    note: Callable[[int], dict[str, Any]] = lambda number: {"commit": number}
    options: dict[str, Any] = field(default_factory=dict)
    """of `Replay.open`"""
    writers: tuple[str, ...] = ("",)
    refer: Callable[[int, int], lp.WindowRef] | None = None
    """the same observation as a window of a row source, to be recorded in its place"""
    loose: int | None = None
    """`packing.LOOSE`, with `FAN` 2, so that a few files fill several levels of manifests; None: unchanged"""
    formats: tuple[int, ...] = (1, 2)

    def step(self, n: int, writer: str = "") -> dict[str, Any]:
        """Step n of a writer: streams take turns, episodes have 7 steps, the reward is the id."""
        stream, t = n % STREAMS, n // STREAMS
        base = 1000 * self.writers.index(writer) + 100 * stream
        return {
            "obs": self.observe(base, t),
            "next_obs": self.observe(base, t + 1),
            "reward": float(n),
            "terminated": t % 7 == 6 and stream == 0,
            "truncated": t % 7 == 6 and stream == 1,
            "stream": stream,
            **self.rest(n),
        }

    def recorded(self, n: int, writer: str = "") -> dict[str, Any]:
        """Step n as it is recorded."""
        step, (t, stream) = self.step(n, writer), divmod(n, STREAMS)
        if self.refer is None:
            return step
        base = 1000 * self.writers.index(writer) + 100 * stream
        return {**step, "obs": self.refer(base, t), "next_obs": self.refer(base, t + 1)}


def _axes(base: int, t: int) -> dict[str, Any]:
    n = base + t
    frames = window("frame", n, 4, (3, 5))
    colours = np.concatenate([values("colour", n + k, (3, 5, 3)) for k in range(3)], -1)
    days = window("day", n, 5, (4, 3), "float32")
    return {
        "first": frames,
        "last": np.moveaxis(frames, 0, -1).copy(),
        "colours last": colours,
        "colours first": np.moveaxis(colours, -1, 0).copy(),
        "rest": (np.moveaxis(days, 0, 1).copy(), values("image", n, (17, 16))),
        "vector": values("vector", n, (5,), "float64"),
        "number": np.int64(n),
    }


_TYPES = {
    "flag": lp.Field((), "bool"),
    "flags": lp.Field((3,), "bool"),
    "complex_": lp.Field((2,), "complex64"),
    "moment": lp.Field((), "datetime64[ns]"),
    "name": lp.Field((2,), "S5"),
    "text": lp.Field((), "U4"),
    "raw": lp.Field((), "V6"),
    "big_endian": lp.Field((2,), ">i4"),
    "half": lp.Field((2, 1), "float16"),
    "unsigned": lp.Field((), "uint64"),
    "größe": lp.Field((1,), "int16"),
}
_ODD_KEYS = ("x", "it's", 'say "it\'s"', "tab\tand \x7f", "Ω\N{FULLWIDTH LATIN SMALL LETTER A}😀")


def _types(n: int) -> dict[str, Any]:
    extras = {name: values(name, n, f.shape, f.dtype) for name, f in _TYPES.items()}
    action = {key: np.float32(n + k) for k, key in enumerate(_ODD_KEYS)}
    return {"action": (action, values("tuple", n, (2,), "int8")), **extras}


def _frames(base: int, t: int) -> np.ndarray:
    return window("frame", base + t, 3, (2, 4))


def _day(base: int, t: int) -> int:
    return (base // 1000 * 7 + base % 1000 // 100 * 3 + t) % 25


def _days(base: int, t: int) -> np.ndarray:
    return window("day", _day(base, t), 3, (2, 4))


_HISTORY = lp.RowSource(window("day", 0, 30, (2, 4)))
_FRAMES = lp.Field((3, 2, 4), "uint8", rows=0)
_SPACE = {"type": "Box", "low": [None, 0.5, -1.0], "high": 2.0}


def _found_late(base: int, t: int) -> np.ndarray:
    """A screen that does not change before time 6: only then is it seen which rows it is made of."""
    return np.stack([values("screen", base + max(6, t + k), (8, 12)) for k in range(4)])


GOLDEN: dict[str, Golden] = {
    # the example of docs/format.md
    "example": Golden(lp.Spec(_FRAMES), _frames, (3, 5), loose=1, formats=(2,)),
    # rows along every axis, of one slice and of several; observations that are one row; values without rows
    "axes": Golden(
        lp.Spec(
            {
                "first": lp.Field((4, 3, 5), "uint8", rows=0),
                "last": lp.Field((3, 5, 4), "uint8", rows=-1),
                "colours last": lp.Field((3, 5, 9), "uint8", rows=(-1, 3)),
                "colours first": lp.Field((9, 3, 5), "uint8", rows=(0, 3)),
                "rest": (
                    lp.Field((4, 5, 3), "float32", rows=1),
                    lp.Field((17, 16), "uint8", rows=None),
                ),
                "vector": lp.Field((5,), "float64"),
                "number": lp.Field((), "int64"),
            }
        ),
        _axes,
        (9, 20),
    ),
    # every kind of column, names that have to be quoted, spaces, numbers that are not finite in a note
    "types": Golden(
        lp.Spec(
            lp.Field((3,), "float32", space=_SPACE),
            action=({key: lp.Field() for key in _ODD_KEYS}, lp.Field((2,), "int8")),
            reward=lp.Field((), "float64"),
            extras=_TYPES,
            env_spec='{"id": "Golden-v0"}',
        ),
        lambda base, t: values("small", base + t, (3,), "float32"),
        (4, 11),
        rest=_types,
        note=lambda number: {"loss": math.nan, "bounds": [math.inf, -math.inf], "größe": "Ω😀", "n": number},
    ),
    "uncompressed": Golden(lp.Spec(_FRAMES), _frames, (40, 60), options={"codec": "none"}),
    "writers": Golden(lp.Spec(_FRAMES), _frames, (4, 9), writers=("", "a", "worker-2.b")),
    # two writers over one history, which is stored once, in three files
    "sources": Golden(
        lp.Spec(_FRAMES),
        _days,
        tuple(range(2, 14, 2)),
        writers=("a", "b"),
        refer=lambda base, t: lp.WindowRef(_HISTORY, _day(base, t) + 3),
        loose=1,
        formats=(2,),
    ),
    # all priorities, then what changed, in files of their own
    "priorities": Golden(lp.Spec(_FRAMES), _frames, (24, 26, 28), options={"alpha": 0.6}),
    # steps before and after the rows were found
    "auto": Golden(lp.Spec(lp.Field((4, 8, 12), "uint8")), _found_late, (8, 40)),
    # manifests of the levels 1 to 4
    "manifests": Golden(
        lp.Spec(_FRAMES), _frames, tuple(range(2, 34, 2)), options={"keep_last": 1}, loose=1, formats=(2,)
    ),
    # manifests that list files without live steps or rows, which are not on the disk any more
    "dropped": Golden(
        lp.Spec(_FRAMES),
        _frames,
        tuple(range(2, 26, 2)),
        options={"keep_last": 2, "max_steps": 9, "capacity": 4},
        loose=1,
    ),
}


@contextmanager
def _small(golden: Golden) -> Iterator[None]:
    with (
        mock.patch.object(blocks, "BLOCK_BYTES", BLOCK_BYTES),
        mock.patch.object(known_sources, "LEAST_BYTES", 0),
        mock.patch.object(sources, "FILE_BYTES", 100),
    ):
        if golden.loose is None or description.FORMAT == 1:
            yield
            return
        from lakepond.lake.write import packing

        with mock.patch.multiple(packing, LOOSE=golden.loose, FAN=2):
            yield


def write(golden: Golden, path: Path) -> None:
    """Write a golden lake."""
    assert new_files.block_rows_for is blocks.block_rows_for
    options = {"capacity": 64, "seed": 0, "merge_after": None, **golden.options}
    with _small(golden):
        for writer in golden.writers:
            with lp.Replay.open(path, golden.spec, writer=writer, **options) as replay:
                for number, stop in enumerate(golden.stops):
                    for n in range(replay.stats().recorded, stop):
                        assert replay.record(**golden.recorded(n, writer)) == n
                    if "alpha" in options and number:
                        changed = np.arange(number, 20, 9)
                        replay.update_priorities(changed, 0.25 * changed + number)
                    assert replay.commit(note=golden.note(number)).number == number


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / f"v{description.FORMAT}"
    for name, each in GOLDEN.items():
        if description.FORMAT in each.formats:
            shutil.rmtree(target / name, ignore_errors=True)
            write(each, target / name)
