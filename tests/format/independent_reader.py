"""A reader of lakes, written from docs/format.md alone. It imports nothing of lakepond, and no NumPy.

    python tests/format/independent_reader.py LAKE      verify the current state, print what it holds

It exists to prove that the specification is sufficient, so it follows the page section by section and prefers
clarity to speed. Every file is checked as a whole (its digest), and every part of it again (sums of blocks
and columns), before its content is used.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import re
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import xxhash
import zstandard

FORMAT = 2
FEATURES = {"sources"}


class Damaged(Exception):
    """A file is missing, or not as the specification says."""


class TooNew(Exception):
    """A later version wrote the file, which is not damage."""


def need(holds: bool, what: str) -> None:
    if not holds:
        raise Damaged(what)


# --- Names -----------------------------------------------------------------------------------------

COMMIT = re.compile(r"([0-9]{10}|[1-9][0-9]{10,})\.json")
WRITER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
SEGMENT = re.compile(r"[0-9a-f]{40}\.(rows|steps|manifest|source)")
PLACE = re.compile(r"[0-9a-f]{12}\.txt")


def digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:40]


# --- Sealed JSON -----------------------------------------------------------------------------------


def unseal(data: bytes, name: str) -> dict[str, Any]:
    try:
        content = json.loads(data)
    except ValueError as error:
        raise Damaged(f"{name} is not JSON") from error
    need(isinstance(content, dict), f"{name} is not a JSON object")
    version, requires = content.get("format", 1), content.get("requires", [])
    need(type(version) is int and version >= 1 and isinstance(requires, list), f"{name} has no valid version")
    if version > FORMAT:
        raise TooNew(f"{name} has format {version}; this reader knows {FORMAT}")
    if unknown := [feature for feature in requires if feature not in FEATURES]:
        raise TooNew(f"{name} requires {unknown}")
    seal = b', "checksum": "' + digest(data[:-57] + b"}").encode() + b'"}'
    need(data[-57:] == seal, f"the checksum of {name} does not match")
    return content


# --- lake.json -------------------------------------------------------------------------------------


class Dtype(NamedTuple):
    name: str
    kind: str
    size: int

    @classmethod
    def parse(cls, name: str) -> Dtype:
        found = re.fullmatch(r"([<>|])([biufcmMSUV])([0-9]+)(\[[^]]*\])?", name)
        need(found is not None, f"{name!r} is not a dtype")
        assert found is not None
        kind, number = found[2], int(found[3])
        return cls(name, kind, 4 * number if kind == "U" else number)

    @property
    def arrow(self) -> pa.DataType | None:
        """The Arrow type of one value; None: bytes."""
        return {
            "|b1": pa.bool_(),
            "|i1": pa.int8(),
            "<i2": pa.int16(),
            "<i4": pa.int32(),
            "<i8": pa.int64(),
            "|u1": pa.uint8(),
            "<u2": pa.uint16(),
            "<u4": pa.uint32(),
            "<u8": pa.uint64(),
            "<f2": pa.float16(),
            "<f4": pa.float32(),
            "<f8": pa.float64(),
        }.get(self.name)


class Field(NamedTuple):
    dtype: Dtype
    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.size


def leaves(tree: Any, path: str = "") -> Iterator[tuple[str, Field]]:
    if "dict" in tree:
        for key, sub in tree["dict"]:
            yield from leaves(sub, f"{path}[{key!r}]")
    elif "tuple" in tree:
        for i, sub in enumerate(tree["tuple"]):
            yield from leaves(sub, f"{path}[{i}]")
    else:
        yield path, Field(Dtype.parse(tree["dtype"]), tuple(tree["shape"]))


class Spec:
    def __init__(self, spec: dict[str, Any]) -> None:
        self.obs = [field for _, field in leaves(spec["obs"])]
        flag = Field(Dtype.parse("|b1"), ())
        self.columns = dict(leaves(spec["action"], "action"))
        self.columns |= {"reward": dict(leaves(spec["reward"]))[""], "terminated": flag, "truncated": flag}
        self.columns |= {name: dict(leaves(extra))[""] for name, extra in spec["extras"].items()}
        self.columns["stream"] = Field(Dtype.parse("<i4"), ())
        self.follows = {"follows_previous": flag}


# --- Commits and manifests -------------------------------------------------------------------------

Ranges = list[list[int]]


@dataclass(frozen=True)
class Entry:
    """Of a list of steps (leaf None) or of rows."""

    leaf: int | None
    first: int
    stop: int
    bytes: int
    """of the files"""
    files: int
    count: int
    digest: str
    needs: list[Ranges] = field(default_factory=list)
    level: int = 0
    """0: a file"""
    size: int = 0
    """of the entry's own file"""
    row_bytes: int = 0
    block_rows: int = 0
    codec: str = ""
    source: bool = False

    @property
    def name(self) -> str:
        rows = "source" if self.source else "rows"
        return f"{self.digest}.{'manifest' if self.level else 'steps' if self.leaf is None else rows}"


def entry_of(content: dict[str, Any], leaf: int | None, leaves: int) -> Entry:
    first, size, needs = content["first"], content["bytes"], content.get("needs", [])
    if "manifest" in content:
        stop, count, files = content["stop"], content["count"], content["files"]
        found = Entry(leaf, first, stop, size, files, count, content["manifest"], needs)
        found = Entry(**{**vars(found), "level": content["level"], "size": content["size"]})
        need(1 <= found.level <= 16, "the level of a manifest")
    elif leaf is None:
        count = content["steps"]
        found = Entry(leaf, first, first + count, size, 1, count, content["digest"], needs, size=size)
    else:
        count = content["rows"]
        form = {key: content[key] for key in ("row_bytes", "block_rows", "codec")}
        form["source"] = content.get("source", False)
        need(type(form["source"]) is bool, "the source of an entry")
        found = Entry(leaf, first, first + count, size, 1, count, content["digest"], size=size, **form)
        block = found.row_bytes * found.block_rows
        need(found.row_bytes >= 1 and found.block_rows >= 1, "the size of a block")
        need(block <= 1 << 20 if found.block_rows > 1 else block < 1 << 31, "the size of a block")
        need(found.codec in ("zstd", "none"), f"the codec {found.codec!r}")
    counts = [found.first, found.stop, found.bytes, found.size, found.files, found.count]
    counts += [number for ranges in needs for pair in ranges for number in pair]
    need(all(type(n) is int and 0 <= n < 1 << 48 for n in counts), "a number that is not a count")
    need(1 <= found.count <= found.stop - found.first, "an entry without content")
    need(re.fullmatch("[0-9a-f]{40}", found.digest) is not None, "a digest")
    need(len(needs) == leaves or leaf is not None, "the needs of an entry")
    return found


def in_order(entries: list[Entry]) -> list[Entry]:
    stop = 0
    for entry in entries:
        need(entry.first >= stop, "entries that overlap")
        stop = entry.stop
    return entries


def contains(outer: Ranges, inner: Ranges) -> bool:
    return all(any(a <= start and stop <= b for a, b in outer) for start, stop in inner)


@dataclass(frozen=True)
class Commit:
    number: int
    oldest: int
    recorded: int
    steps: list[Entry]
    rows: list[list[Entry]]
    live_rows: list[Ranges]
    next_rows: list[int]
    weights: list[dict[str, Any]]
    content: dict[str, Any]

    def lists(self) -> list[list[Entry]]:
        return [self.steps, *self.rows]

    def has(self, entry: Entry) -> bool:
        """Whether an entry belongs to the commit."""
        if entry.leaf is None:
            return entry.stop > self.oldest
        return any(start < entry.stop and entry.first < stop for start, stop in self.live_rows[entry.leaf])


def commit_of(data: bytes, number: int, leaves: int) -> Commit:
    name = f"commit {number}"
    content = unseal(data, name)
    try:
        if content.get("format", 1) == 1:
            content = from_format_1(content)
        steps = in_order([entry_of(each, None, leaves) for each in content["steps"]])
        rows = [
            in_order([entry_of(each, leaf, leaves) for each in listed])
            for leaf, listed in enumerate(content["rows"])
        ]
        weights = [content["priorities"]] if content["priorities"] else []
        weights += content.get("priority_changes", [])
        commit = Commit(
            content["number"],
            content["oldest"],
            content["recorded"],
            steps,
            rows,
            content["live_rows"],
            content["next_rows"],
            weights,
            content,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"{name}: {error!r}") from error
    need(commit.number == number, f"{name} has the number {commit.number}")
    need(0 <= commit.oldest <= commit.recorded, f"the live steps of {name}")
    need(len(rows) == len(commit.live_rows) == len(commit.next_rows) == leaves, f"the leaves of {name}")
    starts = [entry.first for entry in steps] or [commit.oldest]
    need(starts[0] <= commit.oldest, f"the first steps of {name}")
    need([entry.stop for entry in steps] == [*starts[1:], commit.recorded][: len(steps)], f"steps of {name}")
    need(bool(steps) or commit.oldest == commit.recorded, f"{name} has no steps")
    for listed, after in zip(rows, commit.next_rows, strict=True):
        need(not listed or listed[-1].stop <= after, f"rows of {name}")
    return commit


def from_format_1(content: dict[str, Any]) -> dict[str, Any]:
    rows: list[list[dict[str, Any]]] = [[] for _ in content["next_rows"]]
    where: dict[str, list[tuple[int, list[int]]]] = {}  # several entries may name one file
    for each in content["rows"]:
        shard, leaf, first = each["shard"], each["leaf"], each["first"]
        rows[leaf].append({"first": first, **shard})
        where.setdefault(f"{shard['digest']}.rows", []).append((leaf, [first, first + shard["rows"]]))
    steps = []
    for each in content["segments"]:
        found = [entry for name in each["needs"] for entry in where[name]]
        needs = [sorted(r for i, r in found if i == leaf) for leaf in range(len(rows))]
        steps.append({"first": each["first"], **each["steps"], "needs": needs})
    rows = [sorted(listed, key=lambda entry: entry["first"]) for listed in rows]
    live = [[[each["first"], each["first"] + each["rows"]] for each in listed] for listed in rows]
    return {**content, "steps": steps, "rows": rows, "live_rows": live}


# --- Row files -------------------------------------------------------------------------------------


@functools.cache
def crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ crc_table()[crc & 255 ^ byte]
    return crc ^ 0xFFFFFFFF


def rows_in(data: bytes, entry: Entry) -> bytes:
    """All rows of a file, end to end."""
    blocks = -(-entry.count // entry.block_rows)
    size = entry.block_rows * entry.row_bytes
    end = len(data) - 24 * blocks - 4
    need(end >= 0, f"{entry.name} is too short")
    sums, index = data[end : end + 8 * blocks], data[end + 8 * blocks : -4]
    need(crc32c(index) == int.from_bytes(data[-4:], "little"), f"the index of {entry.name}")
    found = []
    for block in range(blocks):
        offset, length = struct.unpack_from("<QQ", index, 16 * block)
        need(offset + length <= end, f"{entry.name} has a block outside of it")
        stored = data[offset : offset + length]
        (expected,) = struct.unpack_from("<Q", sums, 8 * block)
        need(xxhash.xxh3_64_intdigest(stored) == expected, f"block {block} of {entry.name}")
        if entry.codec == "zstd":
            need(zstandard.frame_content_size(stored) == size, f"block {block} of {entry.name}")
            stored = zstandard.ZstdDecompressor().decompress(stored)
        else:
            need(offset == block * size, f"block {block} of {entry.name}")
        need(len(stored) == size, f"block {block} of {entry.name}")
        found.append(stored)
    rows = b"".join(found)
    need(not any(rows[entry.count * entry.row_bytes :]), f"the padding of {entry.name}")
    return rows[: entry.count * entry.row_bytes]


# --- Steps files -----------------------------------------------------------------------------------


class StepsFile(NamedTuple):
    steps: int
    columns: dict[str, bytes]
    """the values of all steps, end to end; a bool is one byte"""
    fields: dict[str, Field]
    notes: dict[str, bytes]


def plain(array: pa.Array, form: Field) -> bytes:
    """The values of a column, uncompressed, in C order."""
    need(array.offset == 0 and array.null_count == 0, "a column with nulls")
    data, count = array.buffers()[-1], len(array) * form.count
    if not count:
        return b""
    if form.dtype.kind == "b":
        packed = data.to_pybytes()
        need(len(packed) * 8 >= count, "a column that is too short")
        return bytes(packed[j >> 3] >> (j & 7) & 1 for j in range(count))
    need(data.size >= count * form.dtype.size, "a column that is too short")
    return data.to_pybytes()[: count * form.dtype.size]


def steps_in(data: bytes, name: str) -> StepsFile:
    try:
        return _steps_in(data, name)
    except (pa.ArrowException, OSError, KeyError, ValueError, TypeError) as error:
        raise Damaged(f"{name}: {error!r}") from error


def _steps_in(data: bytes, name: str) -> StepsFile:
    reader = pa.ipc.open_file(pa.BufferReader(data))
    metadata = dict(reader.schema.metadata)
    about = json.loads(metadata.pop(b"lakepond.steps"))
    prefix = b"lakepond.note."
    need(all(key.startswith(prefix) for key in metadata), f"the metadata of {name}")
    notes = {key[len(prefix) :].decode(): note for key, note in metadata.items()}
    fields: dict[str, Field] = {}
    for each in reader.schema:
        need(set(each.metadata) == {b"lakepond.column"} and not each.nullable, f"{each.name!r} of {name}")
        dtype, shape = json.loads(each.metadata[b"lakepond.column"])
        form = fields[each.name] = Field(Dtype.parse(dtype), tuple(shape))
        expected = form.dtype.arrow
        if expected is None:
            expected = pa.binary(form.nbytes)
        elif form.shape:
            expected = pa.list_(pa.field("item", expected), form.count)
        need(each.type.equals(expected), f"the type of {each.name!r} in {name}")
    steps, batch = about["steps"], about["batch"]
    described = [[each, form.dtype.name, list(form.shape)] for each, form in fields.items()]
    sums = [[note, xxhash.xxh3_64_hexdigest(notes[note])] for note in sorted(notes)]
    sealed = json.dumps([{"steps": steps, "batch": batch}, *described, *sums]).encode()
    need(about == {"steps": steps, "batch": batch, "xxh3": xxhash.xxh3_64_hexdigest(sealed)}, f"{name}: xxh3")
    width = sum(form.nbytes for form in fields.values())
    need(1 <= batch <= 8192 and (batch == 1 or batch * width <= 2 << 20), f"the batches of {name}")
    need(reader.num_record_batches == max(1, -(-steps // batch)), f"the batches of {name}")
    columns: dict[str, list[bytes]] = {each: [] for each in fields}
    for number in range(reader.num_record_batches):
        found, own = reader.get_batch_with_custom_metadata(number)
        start = number * batch
        count = min(batch, steps - start)
        need(found.num_rows == count, f"batch {number} of {name}")
        expected = json.loads(own[b"lakepond.xxh3"])
        need(len(expected) == len(fields), f"the checksums of batch {number} of {name}")
        for (each, form), array, checksum in zip(fields.items(), found.columns, expected, strict=True):
            values = plain(array, form)
            about_it = [each, form.dtype.name, list(form.shape), start, count, steps]
            digest = xxhash.xxh3_64_hexdigest(json.dumps(about_it).encode() + values)
            need(digest == checksum, f"{each!r} in batch {number} of {name}")
            columns[each].append(values)
    return StepsFile(steps, {each: b"".join(parts) for each, parts in columns.items()}, fields, notes)


class Windows(NamedTuple):
    length: int
    row_bytes: int
    axis: int | None
    track: list[int]


def windows_of(file: StepsFile, i: int, form: Field, name: str) -> Windows | None:
    if f"values[{i}]" in file.columns:
        return None
    try:
        length, row_bytes, axis = json.loads(file.notes[f"layout[{i}]"])
        runs = list(struct.iter_unpack("<qq", file.notes[f"track[{i}]"]))
    except (KeyError, ValueError, struct.error) as error:
        raise Damaged(f"the notes of {name}: {error!r}") from error
    need(all(0 <= first < 1 << 40 and 0 <= count < 1 << 40 for first, count in runs), f"a track of {name}")
    slices = 1 if axis is None else form.shape[axis]
    need(length >= 1 and slices % length == 0 and length * row_bytes == form.nbytes, f"a layout of {name}")
    return Windows(length, row_bytes, axis, [first + k for first, count in runs for k in range(count)])


def moved_back(data: bytes, form: Field, axis: int | None) -> bytes:
    """An observation, of its rows end to end."""
    if not axis:
        return data
    axis %= len(form.shape)
    n, outer = form.shape[axis], math.prod(form.shape[:axis])
    inner = math.prod(form.shape[axis + 1 :]) * form.dtype.size
    starts = ((m * outer + j) * inner for j in range(outer) for m in range(n))
    return b"".join(data[start : start + inner] for start in starts)


# --- The lake --------------------------------------------------------------------------------------


class Step(NamedTuple):
    writer: str
    id: int
    """of the writer"""
    columns: dict[str, bytes]
    obs: list[bytes]
    """for each leaf"""
    next_obs: list[bytes]


@dataclass
class Writer:
    """One writer of a lake, at one of its commits."""

    lake: Path
    name: str
    spec: Spec
    commit: Commit
    check_digests: bool = True

    @property
    def home(self) -> Path:
        return self.lake / "writers" / self.name if self.name else self.lake

    # --- files ---

    def path(self, name: str) -> Path | None:
        places = [self.home / "segments" / name, self.lake / "segments" / name]
        if name.endswith(".source"):
            places = [self.lake / "sources" / name]
        return next((place for place in places if place.is_file()), None)

    def read(self, name: str, size: int) -> bytes:
        path = self.path(name)
        if path is None:
            raise Damaged(f"{name} is missing")
        data = path.read_bytes()
        need(len(data) == size, f"{name} has {len(data)} bytes, not {size}")
        need(not self.check_digests or digest(data) == name[:40], f"{name} does not match its name")
        return data

    def entries(self, manifest: Entry) -> list[Entry]:
        name = manifest.name
        content = unseal(self.read(name, manifest.size), name)
        leaves = len(self.spec.obs)
        try:
            found = in_order([entry_of(each, manifest.leaf, leaves) for each in content["entries"]])
            need(content["leaf"] == manifest.leaf and 1 <= len(found) <= 1024, f"what {name} lists")
        except (KeyError, TypeError) as error:
            raise Damaged(f"{name}: {error!r}") from error
        levels = {bool(entry.level) for entry in found}
        need(len(levels) == 1 and all(entry.level < manifest.level for entry in found), f"levels of {name}")
        need((found[0].first, found[-1].stop) == (manifest.first, manifest.stop), f"the range of {name}")
        totals = [sum(getattr(e, key) for e in found) for key in ("files", "count", "bytes")]
        need(totals == [manifest.files, manifest.count, manifest.bytes], f"the totals of {name}")
        for entry in found:
            for outer, inner in zip(manifest.needs, entry.needs, strict=True):
                need(contains(outer, inner), f"the needs of {name}")
        return found

    def files(self, entries: list[Entry]) -> Iterator[Entry]:
        """The files of a list that belong to the commit, in order."""
        for entry in entries:
            if self.commit.has(entry):
                if entry.level:
                    yield from self.files(self.entries(entry))
                else:
                    yield entry

    def find(self, entries: list[Entry], number: int) -> Entry:
        """The file with a step or row, found through manifests."""
        for entry in entries:
            if entry.first <= number < entry.stop:
                return self.find(self._read_manifest(entry), number) if entry.level else entry
        raise Damaged(f"number {number} is in no file")

    # --- what was read last: nothing here depends on it but the time it takes ---

    def _cached(self, key: str, make: Any) -> Any:
        kept = self.__dict__.setdefault("_kept", {})
        if key not in kept:
            kept[key] = make()
            while len(kept) > 64:
                del kept[next(iter(kept))]
        return kept[key]

    def _read_manifest(self, entry: Entry) -> list[Entry]:
        return self._cached(entry.name, lambda: self.entries(entry))

    def _read_rows(self, entry: Entry) -> bytes:
        return self._cached(entry.name, lambda: rows_in(self.read(entry.name, entry.bytes), entry))

    # --- steps ---

    def row(self, leaf: int, number: int, row_bytes: int) -> bytes:
        entry = self.find(self.commit.rows[leaf], number)
        need(entry.row_bytes == row_bytes, f"rows of {entry.name}")
        rows = self._read_rows(entry)
        return rows[(number - entry.first) * row_bytes : (number - entry.first + 1) * row_bytes]

    def open_steps(self, entry: Entry) -> tuple[StepsFile, list[Windows | None]]:
        file = steps_in(self.read(entry.name, entry.bytes), entry.name)
        need(file.steps == entry.count, f"the steps of {entry.name}")
        expected = dict(self.spec.columns)
        if "follows_previous" in file.fields:
            expected |= self.spec.follows
        windows = [windows_of(file, i, form, entry.name) for i, form in enumerate(self.spec.obs)]
        for i, (form, found) in enumerate(zip(self.spec.obs, windows, strict=True)):
            if found is None:
                expected[f"values[{i}]"] = Field(form.dtype, (2, *form.shape))
            else:
                expected[f"windows[{i}]"] = Field(Dtype.parse("<i8"), (2,))
                for what, ranges in ("needs", entry.needs[i]), ("live rows", self.commit.live_rows[i]):
                    inside = all(any(a <= row < b for a, b in ranges) for row in set(found.track))
                    need(inside, f"the {what} of {entry.name}")
        need(file.fields == expected, f"the columns of {entry.name}")
        return file, windows

    def steps(self, start: int | None = None) -> Iterator[Step]:
        """The live steps, from `start` on."""
        commit = self.commit
        at = commit.oldest if start is None else start
        while at < commit.recorded:
            entry = self.find(commit.steps, at)
            file, windows = self.open_steps(entry)
            for place in range(at - entry.first, entry.count):
                yield self._step(entry, file, windows, place)
            at = entry.stop

    def _step(self, entry: Entry, file: StepsFile, windows: list[Windows | None], place: int) -> Step:
        def value(name: str) -> bytes:
            size = file.fields[name].nbytes
            return file.columns[name][place * size : (place + 1) * size]

        both: tuple[list[bytes], list[bytes]] = ([], [])
        for i, (form, found) in enumerate(zip(self.spec.obs, windows, strict=True)):
            for k, target in enumerate(both):
                if found is None:
                    target.append(value(f"values[{i}]")[k * form.nbytes : (k + 1) * form.nbytes])
                    continue
                w = struct.unpack("<qq", value(f"windows[{i}]"))[k]
                need(0 <= w <= len(found.track) - found.length, f"a window of {entry.name}")
                numbers = found.track[w : w + found.length]
                rows = b"".join(self.row(i, number, found.row_bytes) for number in numbers)
                target.append(moved_back(rows, form, found.axis))
        columns = {name: value(name) for name in self.spec.columns}
        known = "follows_previous" in file.fields
        columns["follows_previous"] = value("follows_previous") if known else b"\1"
        return Step(self.name, entry.first + place, columns, *both)

    def weights(self) -> dict[int, float]:
        """The weight of each live step that has one."""
        found: dict[int, float] = {}
        for k, info in enumerate(self.commit.weights):
            name = f"{info['digest']}.steps"
            file = steps_in(self.read(name, info["bytes"]), name)
            need(file.steps == info["steps"], f"the steps of {name}")
            weights = [weight for (weight,) in struct.iter_unpack("<d", file.columns["weight"])]
            need(all(0 <= weight < math.inf for weight in weights), f"the weights of {name}")
            if k or self.commit.content["priorities"] is None:
                ids = [step for (step,) in struct.iter_unpack("<q", file.columns["step"])]
            else:
                first = int(file.notes.get("first", self.commit.recorded - len(weights)))
                ids = list(range(first, first + len(weights)))
            found.update(zip(ids, weights, strict=True))
        return {step: weight for step, weight in found.items() if step >= self.commit.oldest}

    def verify(self) -> int:
        """Read and check every file of the commit; returns the number of files."""
        count = len(self.commit.weights)
        for listed in self.commit.lists():
            for entry in self.files(listed):
                count += 1
                if entry.leaf is None:
                    self.open_steps(entry)
                else:
                    rows_in(self.read(entry.name, entry.bytes), entry)
        self.weights()
        for leaf, listed in enumerate(self.commit.content.get("sources", [])):
            for source in listed:
                self._verify_source(leaf, source)
        return count

    def _verify_source(self, leaf: int, source: dict[str, Any]) -> None:
        first, stop = source["first"], source["first"] + source["rows"]
        need(contains(self.commit.live_rows[leaf], [[first, stop]]), "live rows of a source")
        files = [each for each in self.files(self.commit.rows[leaf]) if first <= each.first < stop]
        need(all(each.source for each in files), "the files of a source")
        totals = [len(files), sum(each.bytes for each in files), sum(each.count for each in files)]
        need(totals == [source["files"], source["bytes"], source["rows"]], "the totals of a source")
        rows = b"".join(self._read_rows(each) for each in files)
        shape = json.dumps([source["rows"], files[0].row_bytes]).encode()
        need(digest(rows + shape) == source["digest"], "the digest of a source")


def elsewhere(lake: Path) -> set[str]:
    """The files that are known to be intact at another place."""
    found: set[str] = set()
    for file in (lake / "elsewhere").glob("*.txt"):
        if PLACE.fullmatch(file.name):
            *lines, _ = file.read_text().split("\n")
            found.update(line for line in lines[1:] if SEGMENT.fullmatch(line))
    return found


def commit_numbers(folder: Path) -> list[int]:
    """Newest first."""
    found = [path for path in folder.iterdir() if COMMIT.fullmatch(path.name) and path.is_file()]
    return sorted((int(path.stem) for path in found), reverse=True)


def newest(folder: Path) -> int | None:
    """The newest commit, intact or not, by the hint or by the folder."""
    hint = folder / "newest"
    if hint.is_file() and hint.read_text().strip().isdigit():
        number = int(hint.read_text())
        if (folder / f"{number:010d}.json").is_file():
            while (folder / f"{number + 1:010d}.json").is_file():
                number += 1
            return number
    return next(iter(commit_numbers(folder)), None)


def writer_names(lake: Path) -> list[str]:
    named = [path.name for path in (lake / "writers").glob("*") if (path / "commits").is_dir()]
    unnamed = [""] if (lake / "commits").is_dir() else []
    return unnamed + sorted(name for name in named if WRITER.fullmatch(name))


def read_spec(lake: Path) -> Spec:
    content = unseal((lake / "lake.json").read_bytes(), "lake.json")
    need(content["digest"] == "sha256-160", "how files are named")
    return Spec(content["spec"])


def open_writer(lake: Path, name: str, number: int, **options: Any) -> Writer:
    """A writer at one of its commits, which must be intact."""
    spec = read_spec(lake)
    home = lake / "writers" / name if name else lake
    commit = commit_of((home / "commits" / f"{number:010d}.json").read_bytes(), number, len(spec.obs))
    writer = Writer(lake, name, spec, commit, **options)
    entries = [entry for listed in commit.lists() for entry in listed if commit.has(entry)]
    named = {entry.name: entry.size for entry in entries}
    named |= {f"{info['digest']}.steps": info["bytes"] for info in commit.weights}
    for file, size in named.items():
        path = writer.path(file)
        if path is None:
            need(file in elsewhere(lake), f"{file} is missing")
        else:
            need(path.stat().st_size == size, f"the size of {file}")
    return writer


def open_newest(lake: Path, name: str) -> Writer | None:
    """A writer at its newest intact commit."""
    folder = (lake / "writers" / name if name else lake) / "commits"
    first = newest(folder)
    numbers = [] if first is None else [first, *(n for n in commit_numbers(folder) if n < first)]
    for number in numbers:
        try:
            return open_writer(lake, name, number)
        except Damaged as error:
            print(f"skipping commit {number} of {folder.parent}: {error}", file=sys.stderr)  # noqa: T201
    return None


def open_lake(lake: Path) -> list[Writer]:
    """The current state of a lake: all writers that have one."""
    found = [open_newest(lake, name) for name in writer_names(lake)]
    return [writer for writer in found if writer is not None]


if __name__ == "__main__":
    for each in open_lake(Path(sys.argv[1])):
        files, steps = each.verify(), sum(1 for _ in each.steps())
        print(f"writer {each.name!r}, commit {each.commit.number}: {files} files, {steps} steps")  # noqa: T201
