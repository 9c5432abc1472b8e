"""A model of a disk: applies recorded changes and says what is left after a kill or a power cut.

After SIGKILL everything that was written is there: the page cache survives the process. After a power cut
only what was synced is certain: the content of a file up to its last fsync, and the names that a folder had
at its last fsync. Anything newer may be there or not, in any combination; `content` makes some of the worst:

    kill          everything
    torn          everything, but only half of the last write
    data lost     all names; of each file the content at its last fsync, or zeros in place of what is newer
    names lost    names as of each folder's last fsync; all content
    both lost     the two together
    mixed         every change of a name and every file's newer content there or not, at random
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from faults.journal import Change, Journal

MODES = ("kill", "torn", "data lost", "names lost", "both lost", "mixed")
ROOT = 0


@dataclass(frozen=True)
class NameChange:
    """One atomic change of names: entries that go, and one that comes; `folder` makes it durable."""

    folder: int
    removed: tuple[tuple[int, str], ...]
    added: tuple[int, str, int] | None


class Disk:
    """Folders and files by number, as the changes so far left them, and what of it is durable."""

    def __init__(self, before: dict[str, bytes | None]) -> None:
        self._folders: dict[int, dict[str, int]] = {ROOT: {}}
        self._files: dict[int, bytes] = {}
        self._handles: dict[int, int] = {}
        self._next = ROOT + 1
        for path, content in before.items():
            self._apply(self._create(path, is_folder=content is None))
            if content is not None:
                self._files[self._node(path)] = content
        self._synced = dict(self._files)  # content
        self._names = {number: dict(names) for number, names in self._folders.items()}  # durable ones
        self._pending: list[NameChange] = []
        self._last_write: tuple[int, bytes] | None = None  # its file, and that file with half of the write

    @classmethod
    def after(cls, journal: Journal) -> Disk:
        """The disk after all changes."""
        disk = cls(journal.before)
        for change in journal.changes:
            disk.apply(change)
        return disk

    # --- changes -------------------------------------------------------------------------------------

    def apply(self, change: Change) -> None:
        """Do what was recorded."""
        self._last_write = None
        kind = change.kind
        if kind == "open":
            if change.to == "created":
                self._do(self._create(change.path, is_folder=False))
            self._handles[change.handle] = self._node(change.path)
        elif kind == "write":
            node = self._handles[change.handle]
            old, data = self._files[node].ljust(change.offset, b"\0"), change.data
            half = data[: len(data) // 2]
            self._last_write = node, old[: change.offset] + half + old[change.offset + len(half) :]
            self._files[node] = old[: change.offset] + data + old[change.offset + len(data) :]
        elif kind == "truncate":
            node = self._handles[change.handle]
            self._files[node] = self._files[node][: change.offset].ljust(change.offset, b"\0")
        elif kind == "fsync":
            self._sync(self._handles[change.handle])
        elif kind == "mkdir":
            self._do(self._create(change.path, is_folder=True))
        elif kind in ("unlink", "rmdir"):
            at = self._place(change.path)
            self._do(NameChange(at[0], (at,), None))
        elif kind in ("rename", "link"):
            source, (folder, name) = self._place(change.path), self._place(change.to)
            gone = (source,) if kind == "rename" else ()
            self._do(NameChange(folder, gone, (folder, name, self._node(change.path))))
        else:
            assert kind == "mark", kind

    def _sync(self, node: int) -> None:
        if node in self._files:
            self._synced[node] = self._files[node]
            return
        for change in [each for each in self._pending if each.folder == node]:
            self._pending.remove(change)
            _rename(self._names, change)

    def _do(self, change: NameChange) -> None:
        self._apply(change)
        self._pending.append(change)

    def _apply(self, change: NameChange) -> None:
        _rename(self._folders, change)

    def _create(self, path: str, *, is_folder: bool) -> NameChange:
        node, self._next = self._next, self._next + 1
        if is_folder:
            self._folders[node] = {}
        else:
            self._files[node] = b""
        folder, name = self._place(path)
        return NameChange(folder, (), (folder, name, node))

    def _place(self, path: str) -> tuple[int, str]:
        parent = PurePosixPath(path).parent
        return (ROOT if parent == PurePosixPath(".") else self._node(str(parent))), PurePosixPath(path).name

    def _node(self, path: str) -> int:
        node = ROOT
        for name in PurePosixPath(path).parts:
            node = self._folders[node][name]
        return node

    # --- what is left --------------------------------------------------------------------------------

    def content(self, mode: str = "kill", chance: random.Random | None = None) -> dict[str, bytes | None]:
        """Every path that is left and its content, None for a folder."""
        chance = chance or random.Random(0)
        names = self._folders
        if mode in ("names lost", "both lost", "mixed"):
            names = {number: dict(entries) for number, entries in self._names.items()}
            for change in self._pending:
                if mode == "mixed" and chance.random() < 0.5 and _reachable(change, names):
                    _rename(names, change)
        found: dict[str, bytes | None] = {}
        self._collect(ROOT, "", names, mode, chance, found)
        return found

    def _collect(
        self,
        folder: int,
        path: str,
        names: dict[int, dict[str, int]],
        mode: str,
        chance: random.Random,
        found: dict[str, bytes | None],
    ) -> None:
        for name, node in sorted(names.get(folder, {}).items()):
            here = f"{path}/{name}" if path else name
            if node in self._files:
                found[here] = self._left_of(node, mode, chance)
            else:
                found[here] = None
                self._collect(node, here, names, mode, chance, found)

    def _left_of(self, node: int, mode: str, chance: random.Random) -> bytes:
        now, synced = self._files[node], self._synced.get(node, b"")
        if mode == "torn" and self._last_write is not None and self._last_write[0] == node:
            return self._last_write[1]
        if mode in ("kill", "torn", "names lost") or now == synced:
            return now
        if synced.startswith(now):  # it was cut shorter
            return chance.choice([synced, now] if mode == "mixed" else [synced])
        zeros = synced[: len(now)] + bytes(max(0, len(now) - len(synced)))
        least = len(synced) if now.startswith(synced) else 0  # what was appended to is safe
        part = now[: chance.randint(least, len(now))]
        return chance.choice([synced, zeros, now, part] if mode == "mixed" else [synced, zeros])


def _reachable(change: NameChange, names: dict[int, dict[str, int]]) -> bool:
    """Whether the folder that takes the new name is there: no file system has a name without its folder."""
    return change.added is None or change.added[0] in {
        ROOT,
        *(n for entries in names.values() for n in entries.values()),
    }


def _rename(folders: dict[int, dict[str, int]], change: NameChange) -> None:
    for folder, name in change.removed:
        folders.get(folder, {}).pop(name, None)
    if change.added is not None:
        folder, name, node = change.added
        folders.setdefault(folder, {})[name] = node


def write(content: dict[str, bytes | None], folder: Path) -> None:
    """Make a real folder of it."""
    folder.mkdir(parents=True)
    for path, data in content.items():
        if data is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(data)
