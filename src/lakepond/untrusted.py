"""Readers for untrusted files: JSON and NumPy archives.

Whatever is in such a file, reading it returns values or raises one of lakepond's own errors. Memory is
bounded by what the file can hold, nothing is unpickled and nothing is executed.
"""

from __future__ import annotations

import json
import math
import os
import zipfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.lib import format as npy

from lakepond.errors import LakepondError
from lakepond.types import Array

T = TypeVar("T")
JSON_BYTES = 64 << 20
"""size of the largest JSON document that is read"""
DEFLATE_RATIO = 1032
"""the most that deflate can compress"""
PIECE_BYTES = 1 << 20


@contextmanager
def blaming(what: object, error: type[LakepondError], advice: str) -> Iterator[None]:
    """Raise `error`, one sentence that names `what`, for any failure that the content of a file can cause.

    lakepond's own errors and failures of the operating system (no such file, no permission) pass unchanged.
    """
    try:
        yield
    except LakepondError:
        raise
    except MemoryError as short:
        raise error(f"{what} needs more memory than this machine has; {advice}.") from short
    except Exception as wrong:
        if isinstance(wrong, OSError) and wrong.errno:
            raise
        raise error(f"{what} cannot be read: {one_line(wrong)}; {advice}.") from wrong


def one_line(error: BaseException) -> str:
    """An error's own words on one line of at most 300 characters, without a full stop."""
    text = " ".join(str(error).split())
    text = f"{type(error).__name__} {text}" if isinstance(error, KeyError) or not text else text
    return (text if len(text) <= 300 else f"{text[:297]}...").rstrip(".")


def parse_json(data: bytes | str) -> Any:
    """The value of a JSON document; ValueError for anything else, however deeply it is nested."""
    return with_fresh_stack(lambda: json.loads(data))


def with_fresh_stack(read: Callable[[], T]) -> T:
    """What `read` returns; ValueError if it recurses too deeply even on an empty call stack.

    If the stack of the caller is too deep for it, it is called again on a thread: whether a file is damaged
    does not depend on its reader. RecursionError if the caller has no stack left for that.
    """
    try:
        return read()
    except RecursionError:
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(_on_an_empty_stack, read).result()


def _on_an_empty_stack(read: Callable[[], T]) -> T:
    try:
        return read()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file; ValueError if there is none, or if it is larger than any that is written."""
    with path.open("rb") as file:
        data = file.read(JSON_BYTES + 1)
    if len(data) > JSON_BYTES:
        raise ValueError(f"it is larger than {JSON_BYTES:,} bytes")
    value = parse_json(data)
    if not isinstance(value, dict):
        raise ValueError(f"it holds a JSON {type(value).__name__} where an object is expected")
    return value


def read_npz(path: str | os.PathLike[str], names: Collection[str] | None = None) -> dict[str, Array]:
    """The arrays of an .npz file, or those with these names, each checked against its CRC-32.

    Any exception but an OSError with an errno means that the file is damaged or not an .npz file.
    """
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        size = file.seek(0, 2)
        if sum(member.compress_size for member in members) > size:
            raise ValueError(f"its members claim more bytes than the {size:,} of the file")
        found: dict[str, Array] = {}
        for member in members:
            name = member.filename.removesuffix(".npy")
            if name in found:
                raise ValueError(f"it holds {name!r} twice")
            if names is None or name in names:
                found[name] = _read_member(archive, member)
        return found


def npz_names(path: str | os.PathLike[str]) -> list[str]:
    """The names of the arrays in an .npz file."""
    with zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_npy(path: str | os.PathLike[str]) -> Array:
    """The array of an .npy file."""
    with open(path, "rb") as file:
        size = file.seek(0, 2)
        file.seek(0)
        return _read_array(file, size, Path(path).name)


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> Array:
    most = {zipfile.ZIP_STORED: 1, zipfile.ZIP_DEFLATED: DEFLATE_RATIO}.get(member.compress_type)
    if most is None or member.flag_bits & 1:
        raise ValueError(
            f"{member.filename!r} is encrypted or compressed by a method that NumPy does not use"
        )
    if member.file_size > most * member.compress_size:
        raise ValueError(
            f"{member.filename!r} claims {member.file_size:,} bytes, its {member.compress_size:,} compressed "
            "bytes cannot hold them"
        )
    with archive.open(member) as file:
        array = _read_array(file, member.file_size, member.filename)
        if file.read(1):  # also compares the CRC-32
            raise ValueError(f"{member.filename!r} is longer than its array")
    return array


def _read_array(file: Any, size: int, name: str) -> Array:
    """The array in `file`, an .npy file of `size` bytes."""
    version = npy.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"{name!r} has version {version} of the .npy format; plain arrays have 1.0 or 2.0")
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, in_fortran_order, dtype = read_header(file)
    if dtype.hasobject:
        raise ValueError(f"{name!r} holds Python objects, which are never unpickled")
    count = math.prod(shape)
    if count * dtype.itemsize != size - file.tell():
        raise ValueError(
            f"{name!r} declares {dtype}{list(shape)}, {count * dtype.itemsize:,} bytes, and has "
            f"{size - file.tell():,}"
        )
    array = np.empty(count, dtype)
    if array.nbytes:
        _fill(file, array.view(np.uint8).data, name)
    return array.reshape(shape[::-1]).T if in_fortran_order else array.reshape(shape)


def _fill(file: BufferedIOBase, out: memoryview, name: str) -> None:
    done = 0
    while done < len(out):
        read = file.readinto(out[done : done + PIECE_BYTES])
        if not read:
            raise ValueError(f"{name!r} ends after {done:,} of {len(out):,} bytes")
        done += read
