"""The files of a chain as arrays: a first push handles every file of a lake, and a `str` takes 100 bytes.

An array of `FILE` takes 38 bytes per file, a `Listing` of what a LIST has shown 45 bytes per object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lakepond.cloud.bucket import Listed
from lakepond.cloud.layout import segment_name
from lakepond.lake.format.checksum import DIGEST_BYTES
from lakepond.lake.format.names import SEGMENT, is_shared

KEY = f"S{DIGEST_BYTES + 1}"
FILE = np.dtype([("key", KEY), ("size", "i8"), ("sent_at", "f8"), ("send", "?")])
"""a file that a commit needs: when it was sent, -inf if not by this process, and whether it has to be"""
_OBJECT = np.dtype([("key", KEY), ("size", "i8"), ("md5", "S16")])
_KINDS = ("rows", "steps", "manifest", "source")
Files = NDArray[Any]
"""of the type `FILE`"""


def key_of(name: str) -> bytes:
    """The name of a segment in 21 bytes. The last one is not 0: NumPy strips zeros."""
    digest, _, kind = name.partition(".")
    return bytes.fromhex(digest) + bytes([1 + _KINDS.index(kind)])


def name_of(key: bytes) -> str:
    """The name of a segment."""
    return f"{key[:-1].hex()}.{_KINDS[key[-1] - 1]}"


def names(files: Files) -> Iterator[str]:
    """The names of some files, created one by one."""
    return map(name_of, files["key"])


def sizes(files: Files) -> Iterator[tuple[str, int]]:
    """The names and sizes of some files."""
    return zip(names(files), map(int, files["size"]), strict=True)


def as_array(files: Iterable[tuple[str, int]]) -> Files:
    """Files as an array, each name once."""
    found = np.fromiter(((key_of(name), size, -np.inf, False) for name, size in files), FILE)
    return found if (first := first_of_each(found)).all() else found[first]


def first_of_each(files: Files) -> NDArray[np.bool_]:
    """Which files are the first of their name."""
    first = np.zeros(len(files), bool)
    first[np.unique(files["key"], return_index=True)[1]] = True
    return first


def shared(files: Files) -> NDArray[np.bool_]:
    """Which files all writers of a lake share."""
    return np.fromiter(map(is_shared, names(files)), bool, len(files))


class Listing:
    """The segments that a LIST has shown."""

    def __init__(self, listed: Iterable[Listed] = ()) -> None:
        """`listed`: objects, in any order; one may come twice, and other objects are ignored."""
        named = ((each.name.rpartition("/")[2], each) for each in listed)
        found = np.fromiter(
            (
                (key_of(name), each.size, bytes.fromhex(each.md5 or ""))
                for name, each in named
                if SEGMENT.fullmatch(name) and each.name == segment_name(name)
            ),
            _OBJECT,
        )
        order = np.argsort(found["key"])
        self._keys, self._sizes, self._md5s = (found[field][order] for field in ("key", "size", "md5"))

    def get(self, name: str) -> Listed | None:
        """The entry of a segment; None if it was not shown."""
        key = key_of(name)
        at = int(np.searchsorted(self._keys, np.bytes_(key)))
        if at == len(self._keys) or self._keys[at] != key:
            return None
        md5 = bytes(self._md5s[at])
        etag = md5.ljust(16, b"\0").hex() if md5 else None
        return Listed(segment_name(name), int(self._sizes[at]), etag, 0.0)
