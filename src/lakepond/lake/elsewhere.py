"""Which files of a lake are elsewhere, and which may therefore leave this disk.

    lake/elsewhere/<place>.txt      the place's URL, then a line for each file that is intact there
    lake/elsewhere/<place>.slots    the newest commits that were published there from this disk, or pulled

A file that a commit names may be missing on this disk if such a list names it: it is not lost, it is
elsewhere (`segments.py` fetches it when it is used).

A file is safe elsewhere once a commit that names it is published there: until then a `gc` may delete it.
Earlier versions listed files as soon as they were uploaded. So the files that are safe come after the line
`published`; those before it are there, but are not deleted here.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakepond import forks
from lakepond.lake.files import make_folders, write_all, write_bytes
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.names import (
    PLACE,
    SEGMENT,
    delete_temporary,
    entries,
)
from lakepond.lake.lock import FileLock

if TYPE_CHECKING:
    pass

FOLDER = "elsewhere"
WAIT_SECONDS = 60.0
"""for another process that changes the list, which takes moments"""
KEPT_SLOTS = 8
"""commits of a place whose content is noted"""
PUBLISHED = "published"


class Elsewhere:
    """The files of a lake that were found intact at one other place, listed durably beside the lake.

    Several processes may use one list. Every change is made under the lock `elsewhere/lock`, to what the list
    on disk holds at that moment.
    """

    def __init__(self, lake: Path, url: str) -> None:
        self.url = url.rstrip("/")
        self._file, with_slash = (
            lake / FOLDER / f"{Digest(each.encode()).hexdigest()[:12]}.txt"
            for each in (self.url, f"{self.url}/")
        )
        self._slots_file = self._file.with_suffix(".slots")
        self._slots_with_slash = with_slash.with_suffix(".slots")  # of earlier versions
        self._lock = threading.Lock()
        self._names, self._published = self._read() or (set(), set())
        forks.register(self)

    def restart_in_child(self) -> None:
        """No other thread is in here."""
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def names(self) -> list[str]:
        """The files that are there."""
        with self._lock:
            return list(self._names)

    def add(self, names: Iterable[str]) -> None:
        """Note, durably, that these files are there and that a commit which is published there names them."""
        with self._lock:
            new = {name: None for name in names if name not in self._published}
            if wrong := [name for name in new if not SEGMENT.fullmatch(name)]:
                raise AssertionError(f"{wrong[0]!r} is not the name of a segment; it is not listed.")
            if not new:
                return
            with self._locked():
                self._make_intact()
                with self._file.open("ab", buffering=0) as file:
                    write_all(file, "".join(f"{name}\n" for name in new).encode())
                    os.fsync(file.fileno())
            self._names |= new.keys()
            self._published |= new.keys()

    def doubt(self, names: Iterable[str]) -> None:
        """Treat these as missing there while this process runs; the list on disk is not changed."""
        with self._lock:
            self._forget(set(names))

    def drop(self, names: Iterable[str]) -> None:
        """Remove files from the list that are not there any more, durably."""
        with self._lock:
            gone = set(names)
            self._forget(gone)  # first: none of them may be deleted here, even if the list cannot be written
            with self._locked():
                listed = self._read()
                if listed is not None:
                    self._write(*(names - gone for names in listed))

    def _forget(self, gone: set[str]) -> None:
        self._names -= gone
        self._published -= gone

    def confirmed(self) -> set[str]:
        """The files that are safe there and that the list on disk names, synced: they may be deleted here."""
        with self._lock:
            if not self._published or not self._file.exists():
                return set()
            with self._locked(), self._file.open("rb") as file:
                os.fsync(file.fileno())  # a process that was killed may have written a line without a sync
                _, names, published = _parse(file.read())
            self._names &= names
            self._published &= published
            return set(self._published)

    # --- commits ---------------------------------------------------------------------------------

    def note_slot(self, number: int, data: bytes) -> None:
        """Note, durably, the content of a commit that is about to be published there, or was pulled.

        Of one number several may be noted: a request that was given up may still arrive.
        """
        with self._lock, self._locked():
            slots = self._slots()
            slots.setdefault(number, set()).add(Digest(data).hexdigest())
            kept = sorted(slots)[-KEPT_SLOTS:]
            lines = [f"{each} {digest}\n" for each in kept for digest in sorted(slots[each])]
            write_bytes(self._file.parent, self._slots_file.name, "".join(lines).encode())

    def knows_slot(self, number: int, data: bytes) -> bool | None:
        """Whether a commit there was published from this disk, or pulled.

        None if that is not known: an earlier version, which noted only files, has used the place.
        """
        if not self._slots_file.exists() and self._file.exists():
            return None
        return Digest(data).hexdigest() in self._slots().get(number, ())

    def _slots(self) -> dict[int, set[str]]:
        """The digests that were noted, by number."""
        found: dict[int, set[str]] = {}
        for file in (self._slots_file, self._slots_with_slash):
            text = file.read_text(errors="replace") if file.exists() else ""
            for match in re.finditer(r"^([0-9]+) ([0-9a-f]+)$", text, re.MULTILINE):
                found.setdefault(int(match[1]), set()).add(match[2])
        return found

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_folders(self._file.parent)
        with FileLock(self._file.parent / "lock", create=True) as lock:
            lock.wait(WAIT_SECONDS)
            yield

    def _make_intact(self) -> None:
        """Have a list to which complete lines of files that are safe there can be appended."""
        try:
            with self._file.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                if file.read() == b"\n" and self._published:  # else it may lack the line `published`
                    return
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL):  # EINVAL: it is empty
                raise
            if error.errno == errno.ENOENT and not self._slots_file.exists():
                write_bytes(self._file.parent, self._slots_file.name, b"")  # first: see `knows_slot`
        self._write(*(self._read() or (set(), set())))

    def _write(self, names: set[str], published: set[str]) -> None:
        delete_temporary(self._file.parent)  # of a process that was killed: this one holds the lock
        lines = [self.url, *sorted(names - published), PUBLISHED, *sorted(published), ""]
        write_bytes(self._file.parent, self._file.name, "\n".join(lines).encode())

    def _read(self) -> tuple[set[str], set[str]] | None:
        """The names in the list on disk, and those of files that are safe there; None if there is no list."""
        try:
            return _parse(self._file.read_bytes())[1:]
        except FileNotFoundError:
            return None


def known(lake: Path) -> dict[str, str]:
    """Every file of a lake that is known to be elsewhere, and where."""
    return {name: url for _, url, listed in places(lake) for name in listed}


def places(lake: Path) -> list[tuple[Path, str, set[str]]]:
    """The list of every other place: its file, the place's URL, and the names of the files that are there."""
    found = []
    for name in sorted(entry.name for entry in entries(lake / FOLDER, PLACE) if entry.is_file()):
        file = lake / FOLDER / name
        found.append((file, *_parse(file.read_bytes())[:2]))
    return found


def _parse(data: bytes) -> tuple[str, set[str], set[str]]:
    """The URL and the names in a list, and which of these files are safe there.

    A line that a crash cut short, or filled with zeros, is not a name.
    """
    url, _, rest = data.decode(errors="replace").partition("\n")
    lines = rest.split("\n")[:-1]
    start = lines.index(PUBLISHED) if PUBLISHED in lines else len(lines)
    published = {line for line in lines[start:] if SEGMENT.fullmatch(line)}
    return url, published.union(line for line in lines[:start] if SEGMENT.fullmatch(line)), published
