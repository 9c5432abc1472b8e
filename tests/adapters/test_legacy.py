"""Pickled replay files: each reward is its transition's number, so any mix-up is visible."""

import copyreg
import gzip
import io
import os
import pickle
import pickletools
import struct
import subprocess
import sys
import tracemalloc
import zlib
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakepond.adapters import legacy_source, legacy_unpickler
from lakepond.adapters.legacy import (
    LegacyPickleError,
    Transition,
    legacy_capacity,
    read_legacy,
    write_legacy,
)
from lakepond.errors import LakepondError

KEYS = ("state", "action", "reward", "next_state", "done")
PROTOCOLS = [3, 4, 5]


def buffer_of(count: int, shape: tuple[int, ...] = (6, 5), *, shared: bool = True, limit: int = 5000) -> Any:
    """What the old project kept: next_state is the next state, by reference or by value."""
    rng = np.random.default_rng(count)
    buffer: deque[dict[str, Any]] = deque(maxlen=limit)
    state = rng.standard_normal(shape, np.float32)
    for i in range(count):
        after = rng.standard_normal(shape, np.float32)
        action = rng.standard_normal((3, 2), np.float32)
        buffer.append(dict(zip(KEYS, (state, action, np.float32(i), after, i % 7 == 6), strict=True)))
        state = after if shared else after.copy()
    return {"capacity": limit, "buffer": buffer}


def put(path: Path, data: bytes, packed: bool = False) -> Path:
    path.write_bytes(gzip.compress(data, 1) if packed else data)
    return path


def read(path: Path) -> list[Transition]:
    return list(read_legacy(path))


def assert_same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, np.ndarray):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.flags.f_contiguous == want.flags.f_contiguous
        assert got.tobytes() == want.tobytes()  # NaN by NaN
        assert got.flags.writeable
    elif isinstance(want, np.generic):
        assert got.tobytes() == want.tobytes()
    else:
        assert got == want or (got != got and want != want)


def assert_reads_as_pickle(path: Path, data: bytes) -> None:
    old = pickle.loads(data)
    assert legacy_capacity(path) == old["capacity"]
    new = read(path)
    assert len(new) == len(old["buffer"])
    for got, want in zip(new, old["buffer"], strict=True):
        for key in KEYS:
            assert_same(getattr(got, key), want[key])


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> None:
    """So little memory that everything is evicted and read again."""
    monkeypatch.setattr(legacy_source, "CACHE_BYTES", 40_000)
    monkeypatch.setattr(legacy_source, "BUFFER_BYTES", 700)
    monkeypatch.setattr(legacy_source, "RECENT_ENTRIES", 60)


class TestReading:
    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize(
        ("count", "shape", "shared"),
        [
            (0, (6, 5), True),
            (1, (6, 5), True),
            (2, (6, 5), False),
            (1001, (6, 5), True),
            (9, (60, 108, 9), True),
        ],
    )
    def test_reads_what_pickle_reads(
        self, tmp_path: Path, packed: bool, protocol: int, count: int, shape: tuple[int, ...], shared: bool
    ) -> None:
        data = pickle.dumps(buffer_of(count, shape, shared=shared), protocol)
        assert_reads_as_pickle(put(tmp_path / "replay_buffer.pkl", data, packed), data)

    @pytest.mark.parametrize("packed", [False, True])
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_what_was_dropped_is_found_again(
        self, tmp_path: Path, cramped: None, packed: bool, protocol: int
    ) -> None:
        rng = np.random.default_rng(1)
        states = [rng.standard_normal((20, 30), np.float32) for _ in range(60)]
        whole = buffer_of(0)
        for i in range(300):  # any state again at any distance, and whole transitions twice
            if i % 5 == 4:
                whole["buffer"].append(whole["buffer"][rng.integers(i)])
            else:
                a, b, c = (states[min(i, rng.integers(60))] for _ in range(3))
                whole["buffer"].append(dict(zip(KEYS, (a, b, float(i), c, False), strict=True)))
        data = pickle.dumps(whole, protocol)
        assert_reads_as_pickle(put(tmp_path / "b", data, packed), data)

    @pytest.mark.parametrize("packed", [False, True])
    def test_changing_a_transition_changes_no_other(self, tmp_path: Path, packed: bool) -> None:
        whole = buffer_of(5, (40, 40))
        path = put(tmp_path / "b", pickle.dumps(whole, 4), packed)
        for got, want in zip(read_legacy(path), whole["buffer"], strict=True):
            np.testing.assert_array_equal(got.state, want["state"])
            got.next_state[:] = 0

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_reads_every_kind_of_array_and_number(self, tmp_path: Path, protocol: int) -> None:
        cube = np.arange(1200, dtype=np.float64).reshape(10, 12, 10)
        frozen = cube.copy()
        frozen.flags.writeable = False
        arrays: list[Any] = [
            np.asfortranarray(cube),
            np.asfortranarray(cube[:2, :2, :2]),
            np.moveaxis(cube, 0, 1),
            cube[::2, 1:, ::-1],
            frozen,
            np.full((3, 2), np.nan, np.float16),
            np.array(3.5),
            np.zeros((0, 3), np.int8),
            np.zeros((30, 30), bool),
            np.arange(400, dtype=">i4"),
            np.arange(400, dtype=np.uint8),
            np.array([1 + 2j, np.nan]),
            np.broadcast_to(np.float32(1), (4, 4)),
        ]
        numbers: list[Any] = [0.5, float("nan"), 3, -(10**15), True, np.float64(0.1), np.float32("nan")]
        numbers += [np.bool_(True), np.int64(-7), np.uint8(200), np.array([2.0])]
        whole = buffer_of(0)
        for array in arrays:
            for number in numbers:
                whole["buffer"].append(dict(zip(KEYS, (array, number, number, array, number), strict=True)))
        data = pickle.dumps(whole, protocol)
        path = put(tmp_path / "b", data)
        for got, want in zip(read_legacy(path), whole["buffer"], strict=True):
            for key in KEYS:
                value = getattr(got, key)
                assert type(value) is type(want[key])
                np.testing.assert_array_equal(value, want[key])
                if isinstance(value, np.ndarray):
                    assert value.dtype == want[key].dtype

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_reads_what_numpy_1_wrote(self, tmp_path: Path, protocol: int) -> None:
        new = data = pickle.dumps(buffer_of(30), protocol)
        if protocol >= 4:
            data = data[:2] + data[11:]  # without the frame, whose length will not be right any more
        for module in (b"numpy._core.multiarray", b"numpy._core.numeric"):
            old = module.replace(b"_core", b"core")
            data = data.replace(bytes([len(module)]) + module, bytes([len(old)]) + old)
            data = data.replace(b"c" + module, b"c" + old)
        assert b"numpy.core" in data
        assert b"_core" not in data
        assert_reads_as_pickle(put(tmp_path / "b", data), new)

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_reads_optimized_pickles_and_deques_without_a_limit(self, tmp_path: Path, protocol: int) -> None:
        whole = buffer_of(20)
        whole["buffer"] = deque(whole["buffer"])
        data = pickletools.optimize(pickle.dumps(whole, protocol))
        assert_reads_as_pickle(put(tmp_path / "b", data), data)

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    def test_reads_what_the_python_pickler_wrote(self, tmp_path: Path, protocol: int) -> None:
        out = io.BytesIO()
        pickle._Pickler(out, protocol).dump(buffer_of(1100))  # type: ignore[attr-defined]
        assert_reads_as_pickle(put(tmp_path / "b", out.getvalue()), out.getvalue())

    def test_joined_and_padded_gzip_members_are_one_file(self, tmp_path: Path) -> None:
        data = pickle.dumps(buffer_of(40), 4)
        path = tmp_path / "b"
        path.write_bytes(gzip.compress(data[:999]) + gzip.compress(data[999:]) + bytes(20_000))
        assert_reads_as_pickle(path, data)

    def test_the_capacity_needs_only_the_beginning(self, tmp_path: Path) -> None:
        data = pickle.dumps(buffer_of(100, limit=123_456_789), 4)
        assert legacy_capacity(put(tmp_path / "b", data[:100])) == 123_456_789
        late = {key: buffer_of(3)[key] for key in ("buffer", "capacity")}
        assert legacy_capacity(put(tmp_path / "c", pickle.dumps(late, 4))) == 5000
        with pytest.raises(LegacyPickleError, match="without a buffer and a capacity"):
            legacy_capacity(put(tmp_path / "d", pickle.dumps({"buffer": deque()}, 4)))

    @pytest.mark.parametrize("packed", [False, True])
    def test_progress_counts_the_bytes_of_the_file(self, tmp_path: Path, packed: bool) -> None:
        path = put(tmp_path / "b", pickle.dumps(buffer_of(40, (300, 300)), 4), packed)
        seen: list[tuple[int, int]] = []
        assert len(list(read_legacy(path, progress=lambda *at: seen.append(at)))) == 40
        size = path.stat().st_size
        assert seen == sorted(seen)
        assert len(seen) > 5
        assert seen[-1] == (size, size)

    def test_a_transition_comes_before_its_batch_is_read(self, tmp_path: Path) -> None:
        data = pickle.dumps(buffer_of(900), 4)
        stream = read_legacy(put(tmp_path / "b", data[: len(data) // 2]))
        assert [float(next(stream).reward) for _ in range(400)] == list(range(400))  # type: ignore[arg-type]


class TestWriting:
    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("count", [0, 1, 1000, 2001])
    def test_the_old_project_loads_what_we_write(self, tmp_path: Path, compress: bool, count: int) -> None:
        whole = buffer_of(count)
        path = tmp_path / "replay_buffer.pkl"
        steps = (Transition(**each) for each in whole["buffer"])
        written = write_legacy(path, steps, capacity=5000, compress=compress)
        data = path.read_bytes()
        assert (data[:2] == b"\x1f\x8b") == compress
        assert written.file_bytes == len(data)
        plain = gzip.decompress(data) if compress else data
        assert written.transitions == count
        old = pickle.loads(plain)
        assert list(old) == ["capacity", "buffer"]
        assert type(old["buffer"]) is deque
        assert old["buffer"].maxlen == old["capacity"] == 5000
        for got, want in zip(old["buffer"], whole["buffer"], strict=True):
            assert list(got) == list(KEYS)
            for key in KEYS:
                assert_same(got[key], want[key])
        assert_reads_as_pickle(path, plain)
        assert os.listdir(tmp_path) == ["replay_buffer.pkl"]

    def test_every_kind_of_value_comes_back(self, tmp_path: Path) -> None:
        cube = np.arange(600, dtype=np.float64).reshape(10, 12, 5)
        arrays = [np.asfortranarray(cube), cube[::2], np.array(2.5), np.zeros((0, 3)), cube.astype(">f4")]
        arrays += [cube > 3, cube.astype(np.float16), cube.astype(np.longdouble)]
        numbers = [1.5, 3, -(1 << 40), False, np.float32(2), np.bool_(True), np.int64(9)]
        steps = [Transition(a, n, n, a, n) for a in arrays for n in numbers]
        write_legacy(tmp_path / "b", iter(steps), capacity=100, compress=False)
        old = pickle.loads((tmp_path / "b").read_bytes())["buffer"]
        for got, loaded, want in zip(read_legacy(tmp_path / "b"), old, steps, strict=True):
            np.testing.assert_array_equal(got.state, want.state)
            np.testing.assert_array_equal(loaded["state"], want.state)
            assert got.state.flags.f_contiguous == loaded["state"].flags.f_contiguous
            assert got.state.dtype == want.state.dtype
            assert (type(got.reward), got.reward) == (type(want.reward), want.reward)

    def test_a_failure_leaves_the_old_file_and_nothing_else(self, tmp_path: Path) -> None:
        path = tmp_path / "b"
        good = Transition(np.zeros(3), np.zeros(2), 0.0, np.zeros(3), False)
        write_legacy(path, [good] * 3, capacity=3)
        before = path.read_bytes()
        objects = np.array([None, "x"], object)
        for bad, message in [
            ([good] * 4, "more transitions than the capacity of 3"),
            ([good, good._replace(state=objects)], "state of transition 1 has dtype object"),
            ([good._replace(reward="much")], "reward of transition 0 is a str"),
        ]:
            with pytest.raises(LegacyPickleError, match=message):
                write_legacy(path, bad, capacity=3)
            assert path.read_bytes() == before
            assert os.listdir(tmp_path) == ["b"]


class Evil:
    def __reduce__(self) -> Any:
        return os.system, ("echo gotcha",)


class Registered:
    pass


def short(text: bytes) -> bytes:
    return pickle.SHORT_BINUNICODE + bytes([len(text)]) + text


def in_a_transition(opcodes: bytes) -> bytes:
    """A file whose first transition's state is made by these opcodes."""
    head = pickle.PROTO + b"\x04}(" + short(b"capacity") + b"K\x05" + short(b"buffer")
    return head + b"ccollections\ndeque\n)R(}(" + short(b"state") + opcodes + b"."


class TestHostile:
    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize("packed", [False, True])
    def test_a_class_that_runs_code_is_refused_by_name(
        self, tmp_path: Path, protocol: int, packed: bool, capfd: pytest.CaptureFixture[str]
    ) -> None:
        whole = buffer_of(3)
        whole["buffer"][1]["action"] = Evil()
        path = put(tmp_path / "b", pickle.dumps(whole, protocol), packed)
        with pytest.raises(LegacyPickleError, match=r"asks for posix\.system.*refused") as caught:
            read(path)
        assert isinstance(caught.value, LakepondError)
        assert isinstance(caught.value, ValueError)
        assert str(path) in str(caught.value)
        assert "gotcha" not in capfd.readouterr().out

    @pytest.mark.parametrize(
        "name",
        [
            "os system",
            "builtins eval",
            "__builtin__ eval",
            "builtins bytearray",
            "collections OrderedDict",
            "_codecs decode",
            "numpy load",
            "numpy._core.multiarray frombuffer",
            "numpy._coremultiarray scalar",
        ],
    )
    def test_any_other_global_is_refused_by_name(self, tmp_path: Path, name: str) -> None:
        module, attribute = name.encode().split()
        message = name.replace(" ", r"\.")
        by_line = b"c" + module + b"\n" + attribute + b"\n"
        by_stack = short(module) + short(attribute) + pickle.STACK_GLOBAL
        for asked in (by_line, by_stack):
            for data in (in_a_transition(asked), b"\x80\x04" + asked + b"."):
                with pytest.raises(LegacyPickleError, match=f"asks for {message};"):
                    read(put(tmp_path / "b", data))

    @pytest.mark.parametrize("protocol", PROTOCOLS)
    @pytest.mark.parametrize(
        ("array", "message"),
        [
            (np.array([1, "a", None], object), "'O8' .Python objects. is refused"),
            (np.array(["a"]), "'U1' is refused"),
            (np.array([b"a"]), "'S1' is refused"),
            (np.zeros(2, [("a", "f4")]), "'V4' is refused"),
            (np.zeros(2, "M8[s]"), "'M8' is refused"),
            ([1, 2], "not a valid replay file"),
            ("text", "neither an array nor a number"),
            (None, "neither an array nor a number"),
            ({"a": 1}, "a key 'a'"),
        ],
    )
    def test_what_is_no_number_is_refused(
        self, tmp_path: Path, protocol: int, array: Any, message: str
    ) -> None:
        whole = buffer_of(3)
        whole["buffer"][1]["next_state"] = array
        with pytest.raises(LegacyPickleError, match=message):
            read(put(tmp_path / "b", pickle.dumps(whole, protocol)))

    def test_extension_codes_and_persistent_ids_are_refused(self, tmp_path: Path) -> None:
        class Persistent(pickle.Pickler):
            def persistent_id(self, obj: Any) -> Any:
                return "somewhere" if isinstance(obj, np.ndarray) else None

        out = io.BytesIO()
        Persistent(out, 4).dump(buffer_of(2))
        with pytest.raises(LegacyPickleError, match="opcode BINPERSID is not used"):
            read(put(tmp_path / "b", out.getvalue()))
        for code, opcode in ((200, "EXT1"), (2000, "EXT2"), (200_000, "EXT4")):
            copyreg.add_extension(__name__, "Registered", code)
            try:
                data = pickle.dumps({"capacity": Registered, "buffer": deque()}, 4)
            finally:
                copyreg.remove_extension(__name__, "Registered", code)
            with pytest.raises(LegacyPickleError, match=f"opcode {opcode} is not used"):
                read(put(tmp_path / "b", data))

    @pytest.mark.parametrize(
        "opcodes",
        [
            pickle.BINBYTES8 + struct.pack("<Q", 1 << 62) + b"x",
            pickle.BINBYTES8 + struct.pack("<Q", 1 << 29) + b"x",
            pickle.BYTEARRAY8 + struct.pack("<q", -1),
            pickle.BINUNICODE + struct.pack("<I", 0xFFFFFFFF),
            pickle.LONG4 + struct.pack("<i", -5),
            pickle.LONG4 + struct.pack("<i", 1 << 30),
            pickle.LONG_BINPUT + struct.pack("<I", 1 << 31),
            pickle.LONG_BINGET + struct.pack("<I", 1 << 31),
            pickle.BINGET + b"\x00",
            pickle.MARK * 100_000,
            pickle.NONE * 100_000,
            pickle.FRAME + bytes(8) + (pickle.FRAME + bytes(8)) * 100_000,
            pickle.MEMOIZE * 100_000,
            pickle.EMPTY_TUPLE + pickle.TUPLE1 * 100_000,
            pickle.MARK + b"K\x01" * 3000 + pickle.TUPLE,
            pickle.NONE + (pickle.MEMOIZE + pickle.BINGET + b"\0" + pickle.TUPLE2) * 5000,
            b"c" + b"a" * 100_000,
            pickle.POP * 3,
            pickle.DUP * 3,
            pickle.STACK_GLOBAL,
            pickle.REDUCE * 3,
            pickle.BUILD * 3,
            pickle.TUPLE3 * 3,
            pickle.APPENDS * 5,
            pickle.SETITEMS * 5,
        ],
    )
    @pytest.mark.parametrize("packed", [False, True])
    def test_impossible_opcodes_are_refused(self, tmp_path: Path, opcodes: bytes, packed: bool) -> None:
        with pytest.raises(LegacyPickleError):
            read(put(tmp_path / "b", in_a_transition(opcodes), packed))

    @pytest.mark.parametrize("where", ["more", "fewer", "huge", "zero"])
    def test_a_shape_that_does_not_fit_its_bytes_is_refused(self, tmp_path: Path, where: str) -> None:
        shape = {"more": (7, 5), "fewer": (5, 5), "huge": (1 << 62, 1 << 62), "zero": (0, 1 << 62, 1 << 62)}
        state = (1, shape[where], np.dtype("f4"), False, b"" if where == "zero" else bytes(120))

        class Wrong:
            def __reduce__(self) -> Any:
                return *np.zeros(1).__reduce__()[:2], state

        whole = buffer_of(1)
        whole["buffer"][0]["state"] = Wrong()
        with pytest.raises(LegacyPickleError, match=r"an array .* where .* (are|is) needed"):
            read(put(tmp_path / "b", pickle.dumps(whole, 4)))

    @pytest.mark.parametrize(
        ("whole", "message"),
        [
            ({"capacity": 5}, "without a buffer"),
            ({"capacity": "many", "buffer": deque()}, "the capacity is not a number"),
            ({"capacity": True, "buffer": deque()}, "the capacity is not a number"),
            ({"capacity": -1, "buffer": deque()}, "the capacity is not a number"),
            ({"capacity": 5, "buffer": []}, "without a buffer"),
            ({"capacity": 5, "buffer": [1]}, "has no attribute .append|has no attribute .extend"),
            ({"capacity": 5, "buffer": deque([1, 2])}, "holds an object that is not a transition"),
            ({"capacity": 5, "buffer": deque([{}])}, "a transition without state, action"),
            ({"capacity": 5, "buffer": deque([{"info": 1}])}, "a key 'info'"),
            ({"capacity": 5, "buffer": deque([{7: 1}])}, "a key 7"),
            ({"capacity": 5, "buffer": deque([deque()])}, 'not the "buffer"'),
            ([1, 2, 3], "not a valid replay file.*must be.*docs/migrate/pickles.md"),
            (deque([{"state": 1.0}]), "must be.*docs/migrate/pickles.md"),
            ([{"reward": 2.0}], "must be.*docs/migrate/pickles.md"),
            (5, "without a buffer"),
        ],
    )
    def test_other_forms_are_refused(self, tmp_path: Path, whole: Any, message: str) -> None:
        for protocol in PROTOCOLS:
            with pytest.raises(LegacyPickleError, match=message):
                read(put(tmp_path / "b", pickle.dumps(whole, protocol)))

    def test_transitions_that_are_never_appended_are_refused_before_they_fill_the_memory(
        self, tmp_path: Path
    ) -> None:
        data = pickle.dumps(buffer_of(1), 4)
        names = [opcode.name for opcode, _, _ in pickletools.genops(data)]
        first = names.index("EMPTY_DICT", names.index("EMPTY_DICT") + 1)
        again = pickle.MARK + pickle.BINGET + bytes([names[:first].count("MEMOIZE")])
        with pytest.raises(LegacyPickleError, match="a dict outside of the buffer"):
            read(put(tmp_path / "b", data[:-3] + again * 20_000))

    def test_what_is_no_pickle_is_refused(self, tmp_path: Path) -> None:
        for data in (
            b"",
            b"\x80",
            b"\x80\x06.",
            b"\x80\x02}.",
            b"PK\x03\x04",
            b"\x1f\x8b",
            pickle.dumps(1, 0),
        ):
            with pytest.raises(LegacyPickleError):
                read(put(tmp_path / "b", data))
        with pytest.raises(FileNotFoundError):
            read(tmp_path / "missing")

    def test_a_small_gzip_file_that_swells_is_refused_in_little_memory(self, tmp_path: Path) -> None:
        packer = zlib.compressobj(9, wbits=31)
        swollen = packer.compress(in_a_transition(pickle.BINBYTES8 + struct.pack("<Q", 1 << 40))[:-1])
        swollen += b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
        path = tmp_path / "b"
        path.write_bytes(swollen)
        with pytest.raises(LegacyPickleError, match="a payload of 1099511627776 bytes"):
            read(path)


class TestDamage:
    @pytest.mark.parametrize(("protocol", "packed"), [(3, False), (4, False), (5, False), (5, True)])
    def test_every_truncation_raises(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, packed: bool
    ) -> None:
        monkeypatch.setattr(legacy_unpickler, "INLINE_BYTES", 64)  # small arrays are read as large ones
        data = pickle.dumps(buffer_of(2, (5, 4)), protocol)
        data = gzip.compress(data, 6) if packed else data
        path = tmp_path / "b"
        for length in range(len(data)):
            path.write_bytes(data[:length])
            with pytest.raises(LegacyPickleError):
                read(path)

    @pytest.mark.parametrize("packed", [False, True])
    def test_what_follows_the_end_is_not_overlooked(self, tmp_path: Path, packed: bool) -> None:
        data = pickle.dumps(buffer_of(2), 4)
        with pytest.raises(LegacyPickleError, match="the file continues"):
            read(put(tmp_path / "b", data + data, packed))

    def test_every_flipped_gzip_bit_is_noticed_or_harmless(self, tmp_path: Path) -> None:
        whole = buffer_of(2)
        data = gzip.compress(pickle.dumps(whole, 4), 6)
        for at in range(10, len(data)):  # after the header, whose name and time are not used
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            try:
                steps = read(put(tmp_path / "b", bytes(damaged)))
            except LegacyPickleError:
                continue
            assert at == len(data) - 9  # the bits between the end of the data and its checksum mean nothing
            for got, want in zip(steps, whole["buffer"], strict=True):
                assert_same(got.state, want["state"])

    @settings(max_examples=400)
    @given(
        protocol=st.sampled_from(PROTOCOLS),
        packed=st.booleans(),
        large=st.booleans(),
        edits=st.lists(
            st.tuples(st.integers(0, 1 << 30), st.sampled_from("=+-"), st.integers(0, 255)),
            min_size=1,
            max_size=6,
        ),
    )
    def test_random_damage_gives_values_or_a_clear_error(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        protocol: int,
        packed: bool,
        large: bool,
        edits: list[tuple[int, str, int]],
    ) -> None:
        data = bytearray(pickle.dumps(buffer_of(3, (15, 10) if large else (2, 2)), protocol))
        for at, kind, byte in edits:
            at %= len(data)
            data[at : at + (kind != "+")] = b"" if kind == "-" else bytes([byte])
        path = put(tmp_path_factory.getbasetemp() / "fuzzed", bytes(data), packed)
        try:
            for step in read_legacy(path):
                assert isinstance(step.state, np.ndarray)
        except LegacyPickleError:
            pass

    @settings(max_examples=300)
    @given(st.lists(st.sampled_from(sorted(legacy_unpickler.OPCODES)), max_size=60), st.binary(max_size=60))
    def test_random_opcodes_give_a_clear_error(
        self, tmp_path_factory: pytest.TempPathFactory, codes: list[int], junk: bytes
    ) -> None:
        woven = bytes(byte for pair in zip(codes, junk.ljust(60, b"\0"), strict=False) for byte in pair)
        path = tmp_path_factory.getbasetemp() / "fuzzed"
        for data in (in_a_transition(bytes(codes)), in_a_transition(woven), b"\x80\x04" + woven):
            with pytest.raises(LegacyPickleError):
                read(put(path, data))


MEASURE = """
import sys
from lakepond.adapters.legacy import read_legacy
def peak():  # not ru_maxrss, which a process inherits from the one that started it
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) // 1024
before, count, expected = peak(), 0, int(sys.argv[2])
for step in read_legacy(sys.argv[1]):
    assert step.reward == count, (step.reward, count)
    count += 1
assert count == expected, count
print(peak() - before)
"""


def extra_megabytes(path: Path, count: int) -> int:
    """How much the peak of a fresh process grew while it read the file."""
    run = [sys.executable, "-c", MEASURE, str(path), str(count)]
    return int(subprocess.run(run, check=True, capture_output=True, text=True).stdout)


class TestMemory:
    @pytest.mark.parametrize("packed", [False, True])
    def test_300_megabytes_are_read_within_60(self, tmp_path: Path, packed: bool) -> None:
        daily = np.full((504, 108, 9), 7, np.float32)
        buffer: deque[dict[str, Any]] = deque(maxlen=200)
        for i in range(80):  # views are pickled by value, each again
            values = (daily.view(), daily[0, :, :2].copy(), np.float32(i), daily.view(), False)
            buffer.append(dict(zip(KEYS, values, strict=True)))
        path = tmp_path / "b"
        with gzip.open(path, "wb", 1) if packed else open(path, "wb") as file:
            pickle.dump({"capacity": 200, "buffer": buffer}, file, 5)
            assert file.tell() > 300e6
        try:
            assert extra_megabytes(path, 80) < 60
        finally:
            path.unlink()

    def test_many_small_transitions_do_not_pile_up_in_the_memo(self, tmp_path: Path) -> None:
        path = put(tmp_path / "b", pickle.dumps(buffer_of(20_000, (2, 2), limit=50_000), 4))
        assert extra_megabytes(path, 20_000) < 10  # would be 22 if all were kept in memory

    def test_writing_keeps_nothing(self, tmp_path: Path) -> None:
        state = np.ones((504, 108, 9), np.float32)
        steps = (Transition(state, np.zeros((108, 2)), float(i), state, False) for i in range(80))
        tracemalloc.start()
        try:
            written = write_legacy(tmp_path / "b", steps, capacity=100, compress=False)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert written.file_bytes > 300e6
        assert peak < 5e6
        (tmp_path / "b").unlink()
