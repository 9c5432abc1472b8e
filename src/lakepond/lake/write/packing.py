"""Lists of files that stay short: older files move to manifests, eight manifests become a larger one.

    level 1: 16 files    level 2: 128    level 3: 1,024    level 4: 8 manifests of level 3    ...

    [3 3 2 1 1 1 1 1 1 · · · · ·]    manifests, then 16 to 31 files, the newest last

Each file is listed again once per level, so the cost of a commit follows its new files, and a list has at
most seven manifests of each level. Only manifests that change are written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakepond.lake.format.entries import Entries, Entry, File, Manifest
from lakepond.lake.format.manifests import FLAT_LEVEL

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


def pack(entries: Sequence[Entry], read: TryRead, write: Write, live: Live) -> Entries:
    """A list with files at its end, packed. Entries that are not live are left out where that is free.

    Manifests that cannot be read now are left as they are.
    """
    packed = [entry for entry in entries if live(entry)]
    loose = next((i for i, entry in enumerate(packed) if not isinstance(entry, Manifest)), len(packed))
    packed, files = packed[:loose], packed[loose:]
    while len(files) >= 2 * LOOSE:
        level = max(lv for lv in range(1, FLAT_LEVEL + 1) if size_of(lv) <= len(files) - LOOSE)
        packed.append(write(files[: size_of(level)], level))
        files = files[size_of(level) :]
        packed = _joined(packed, read, write, live)
    return (*packed, *files)


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


def spliced(
    entries: Sequence[Entry], old: Sequence[File], new: File, read: Read, live: Live
) -> list[Entry] | None:
    """The list with `new` in place of `old`, consecutive files in it; None if they are not in it.

    Manifests from the first of them on are replaced by what they list and is live: `pack` the result.
    """
    at = next((i for i, entry in enumerate(entries) if entry.stop > old[0].first), len(entries))
    files = unpacked(entries[at:], read, live)
    names = [(file.first, file.name) for file in files]
    wanted = [(file.first, file.name) for file in old]
    if wanted[0] not in names:
        return None
    start = names.index(wanted[0])
    if names[start : start + len(old)] != wanted:
        return None
    return [*entries[:at], *files[:start], new, *files[start + len(old) :]]


def unpacked(entries: Sequence[Entry], read: Read, live: Live) -> list[File]:
    """All files of some entries that are live; others may have been deleted, and their manifests too."""
    files: list[File] = []
    for entry in filter(live, entries):
        files += unpacked(read(entry), read, live) if isinstance(entry, Manifest) else [entry]
    return files
