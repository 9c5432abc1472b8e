"""The HDF5 file of a Minari dataset, read without following it out of itself.

HDF5 can name other files: external storage, external links, virtual datasets. A dataset can also declare any
shape without storing a byte, and a filter can be a library that is loaded to decode it. All of these are
refused, with the name of the dataset, before anything is read.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from lakepond.errors import SpecError

FILTERS = {1: 1032, 2: 1, 3: 1, 32000: 128}
"""deflate, shuffle, fletcher32 and LZF, by their numbers, and the most that each compresses"""
CHUNK_BYTES = 64 << 20
"""a chunk may always be this large, whatever its dataset declares"""
MOST_DEPTH = 16


def read_hdf5(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the episodes of `main_data.hdf5`: dicts of arrays; images stay a dataset of encoded frames."""
    path = data / "main_data.hdf5"
    with h5py.File(path, "r") as file:
        reader = _Reader(path)
        for name in sorted(reader.names(file), key=lambda name: int(name.removeprefix("episode_"))):
            found = reader.read(file[name], 0)
            if not isinstance(found, dict):
                raise SpecError(f"{name} of {path} is not a group with an episode; restore the dataset.")
            yield found


class _Reader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._size = os.stat(path).st_size
        self._seen: set[int] = set()

    def names(self, group: Any) -> list[str]:
        """The members of a group; a link to anything but a part of this file is refused."""
        names = list(group)
        for name in names:
            link = group.get(name, getlink=True)
            if not isinstance(link, h5py.HardLink):
                self._refuse(f"{group.name}/{name}", f"is a link ({type(link).__name__})")
        return names

    def read(self, node: Any, depth: int) -> Any:
        """A group as a dict, a dataset as an array; a dataset of another type than numbers is None."""
        address = h5py.h5o.get_info(node.id).addr
        if address in self._seen or depth > MOST_DEPTH:
            self._refuse(node.name, "is linked more than once or nested too deeply")
        self._seen.add(address)
        if isinstance(node, h5py.Group):
            return {name: self.read(node[name], depth + 1) for name in self.names(node)}
        if not isinstance(node, h5py.Dataset):
            self._refuse(node.name, "is neither a group nor a dataset")
        if node.shape is None:  # an empty dataset
            return None
        self._check(node)
        if h5py.check_vlen_dtype(node.dtype) == "uint8":
            return node  # images are read one at a time
        return node[()] if node.dtype.kind in "biufc" else None  # texts and the like are not imported

    def _check(self, dataset: Any) -> None:
        """Refuse a dataset that reads from another file, loads a library or declares more than it stores."""
        if dataset.external:
            self._refuse(dataset.name, f"is stored in another file ({dataset.external[0][0]})")
        if dataset.is_virtual:
            self._refuse(dataset.name, "is virtual: its values are in other datasets")
        plist = dataset.id.get_create_plist()
        filters = [plist.get_filter(i)[0] for i in range(plist.get_nfilters())]
        if len(set(filters)) < len(filters) or not set(filters) <= FILTERS.keys():
            self._refuse(dataset.name, f"has the filters {filters}; {sorted(FILTERS)}, each once, are read")
        declared = math.prod(dataset.shape) * dataset.dtype.itemsize
        stored = dataset.id.get_storage_size()
        ratio = max((FILTERS[number] for number in filters), default=1)
        if stored > self._size or declared > stored * ratio:
            self._refuse(
                dataset.name, f"declares {declared:,} bytes, its {stored:,} stored ones cannot hold them"
            )
        chunk = math.prod(dataset.chunks or ()) * dataset.dtype.itemsize
        if chunk > max(CHUNK_BYTES, declared):
            self._refuse(dataset.name, f"has chunks of {chunk:,} bytes for {declared:,} bytes of data")

    def _refuse(self, name: str, why: str) -> None:
        raise SpecError(f"{name} of {self._path} {why}; only data stored in this file is imported.")
