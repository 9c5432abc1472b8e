"""Lists of files that stay short: older files move to manifests, eight manifests become a larger one.

    level 1: 16 files    level 2: 128    level 3: 1,024    level 4: 8 manifests of level 3    ...

    [3 3 2 1 1 1 1 1 1 · · · · ·]    manifests, then 16 to 31 files, the newest last

Each file is listed again once per level, so the cost of a commit follows its new files, and a list has at
most seven manifests of each level. Only manifests that change are written.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence

from lakepond.lake.format.entries import Entries, Entry, File, Manifest
from lakepond.lake.format.manifests import FLAT_LEVEL
from lakepond.lake.write.merge import Merged

LOOSE = 16
"""files that stay in the commit itself, at least"""
FAN = 8
"""manifests of one level that are joined"""

Read = Callable[[Manifest], Entries]
"""returns what a manifest lists"""
TryRead = Callable[[Manifest], Entries | None]
"""returns what a manifest lists; None if it cannot be read now"""
Write = Callable[[Sequence[Entry], int], Manifest]
"""writes a manifest of some entries, of a level"""
Live = Callable[[Entry], bool]
"""whether an entry belongs to the commit"""


def pack(entries: Iterable[Entry], read: TryRead, write: Write, live: Live) -> Entries:
    """A list with files at its end, packed. Entries that are not live are left out where that is free.

    An unreadable manifest is left unchanged. Memory: the resulting entries, and 1,040 files.
    """
    packed: list[Entry] = []
    files: list[Entry] = []
    for entry in filter(live, entries):
        if isinstance(entry, Manifest):
            packed.append(entry)
            continue
        files.append(entry)
        if len(files) == size_of(FLAT_LEVEL) + LOOSE:
            packed, files = _shortened(packed, files, read, write, live)
    while len(files) >= 2 * LOOSE:
        packed, files = _shortened(packed, files, read, write, live)
    return (*packed, *files)


def _shortened(
    packed: list[Entry], files: list[Entry], read: TryRead, write: Write, live: Live
) -> tuple[list[Entry], list[Entry]]:
    """The same manifests and files with the oldest files in the largest manifest that they fill."""
    level = max(lv for lv in range(1, FLAT_LEVEL + 1) if size_of(lv) <= len(files) - LOOSE)
    packed = [*packed, write(files[: size_of(level)], level)]
    return _joined(packed, read, write, live), files[size_of(level) :]


def size_of(level: int) -> int:
    """The files in a manifest of a level that lists files."""
    size: int = LOOSE * FAN ** (level - 1)
    return size


def _joined(packed: list[Entry], read: TryRead, write: Write, live: Live) -> list[Entry]:
    """The same list with eight manifests of one level at its end replaced by one of the next."""
    while len(packed) >= FAN:
        last = [entry for entry in packed[-FAN:] if isinstance(entry, Manifest)]
        level = last[-1].level
        if any(entry.level != level for entry in last):
            break
        below: list[Entry] = list(last)
        if level < FLAT_LEVEL:
            lists = [found for manifest in last if (found := read(manifest)) is not None]
            if len(lists) < len(last):
                break
            below = [file for listed in lists for file in listed if live(file)]
        packed = [*packed[:-FAN], *([write(below, level + 1)] if below else [])]
    return packed


def spliced(entries: Sequence[Entry], merged: Iterable[Merged], read: Read, live: Live) -> Iterator[Entry]:
    """The list with merged files in place of those they replace, read once; to be packed.

    A merged file whose old files are not all listed any more is left out. Manifests from the first of them on
    are replaced by what they list and is live.
    """
    wanted = sorted(merged, key=lambda each: each.new.first)
    first = wanted[0].new.first if wanted else sys.maxsize
    at = next((i for i, entry in enumerate(entries) if entry.stop > first), len(entries))
    yield from entries[:at]
    files = unpacked(entries[at:], read, live)
    file = next(files, None)
    for each in wanted:
        while file is not None and file.stop <= each.new.first:
            yield file
            file = next(files, None)
        old: list[File] = []
        while file is not None and file.first < each.new.stop:
            old.append(file)
            file = next(files, None)
        yield from [each.new] if each.replaces(old) else old
    if file is not None:
        yield file
        yield from files


def unpacked(entries: Iterable[Entry], read: Read, live: Live) -> Iterator[File]:
    """All files of some entries that are live; others may have been deleted, and their manifests too."""
    for entry in filter(live, entries):
        if isinstance(entry, Manifest):
            yield from unpacked(read(entry), read, live)
        else:
            yield entry
