"""Files of a lake that are elsewhere: which they are, how they come back, and which may leave this disk.

    lake/elsewhere/<place>.txt      the place's URL, then a line for each file that is intact there
    lake/elsewhere/<place>.slots    the newest commits that were published there from this disk, or pulled

A file that a commit names may be missing on this disk if such a list names it: it is not lost, it is
elsewhere. `fetch` fetches it when it is used. With a budget, files that are safe elsewhere are deleted here,
the least recently used first; never a file that is in use, or that the list on disk does not name.

A file is safe elsewhere once a commit that names it is published there: until then a `gc` may delete it.
Earlier versions listed files as soon as they were uploaded. So the files that are safe come after the line
`published`; those before it are there, but are not deleted here.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lakepond import background, forks
from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake.files import make_folders, write_all, write_bytes
from lakepond.lake.format.checksum import Digest
from lakepond.lake.format.names import (
    PLACE,
    SEGMENT,
    SOURCES,
    delete,
    delete_temporary,
    entries,
    is_shared,
    segment_files,
)
from lakepond.lake.lock import FileLock
from lakepond.lake.writers import home

if TYPE_CHECKING:
    from lakepond.lake.format.commits import Commit

FOLDER = "elsewhere"
FETCHED_AT_A_TIME = 4
WAIT_SECONDS = 60.0
"""for another process that changes the list, which takes moments"""
KEPT_SLOTS = 8
"""commits of a place whose content is noted"""
PUBLISHED = "published"
GONE = "is missing: if its commit was deleted, open the lake again; otherwise run `lakepond repair`."


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


class Segments:
    """The files in a lake's folder of segments, those that are elsewhere included."""

    def __init__(
        self,
        lake: Path,
        writer: str = "",
        *,
        fetch: Callable[[str], object] | None = None,
        budget: int | None = None,
        safe: Elsewhere | None = None,
        pin: Callable[[Commit, frozenset[str]], Callable[[float], None]] | None = None,
        confirm: Callable[[bool], bool] = lambda ask: True,
        commit: Callable[[int], Commit] | None = None,
        numbers: Callable[[], list[int]] | None = None,
        stop: threading.Event | None = None,
        intact: Container[Path] | None = None,
    ) -> None:
        """`fetch` fetches a file. `budget`: bytes on this disk; files that are `safe` elsewhere are deleted.

        `writer`: whose files. `pin` keeps a commit and its files at the other place, until what it returns is
        called with seconds to wait. `confirm` returns whether `safe` is up to date; with True it may ask the
        other place. `commit` returns a commit by its number, from the other place if it is not here, and
        `numbers` the numbers of all commits there. Once `stop` is set, no file is waited for. `intact`: given
        if the folder is a cache, whose files may be damaged and may leave: the files that `fetch` has fetched
        or checked; it is called for all others.
        """
        self._lake, self.folder = lake, home(lake, writer) / "segments"
        self._fetch, self.budget, self._safe = fetch, budget, safe
        self._pin, self._confirm = pin, confirm
        self._commit, self._numbers, self._stop = commit, numbers, stop
        self._intact = intact
        self._used: dict[str, int] = {}
        self._clock = 0
        self._complete_from: int | None = None  # see `continue_from`
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """No file is held; readers in a forked child open theirs again."""
        self._lock = threading.Lock()  # held for moments: commits take it
        self._evicting = threading.Lock()  # held while files are deleted, and while `safe` is read for that
        self._held: Counter[str] = Counter()

    @property
    def open_bytes(self) -> int | None:
        """How much a reader may keep open: an open file takes its space even when it has left."""
        return None if self.budget is None else self.budget // 4

    def reachable(self, name: str, elsewhere: Container[str] = ()) -> bool:
        """Whether it can be had, or has to be here and is lost; False only if it is elsewhere.

        `elsewhere`: names that are listed; the lists are read again for other names only.
        """
        here = self._fetch is not None or self.local(name) is not None
        return here or not (name in elsewhere or name in known(self._lake))

    @property
    def fetches(self) -> bool:
        """Whether files are fetched ahead: from elsewhere, and without a budget to keep to."""
        return self._fetch is not None and self.budget is None

    def place(self, name: str) -> Path:
        """Where a file belongs on this disk: in the writer's folder, or in that of all writers."""
        return self._lake / SOURCES / name if is_shared(name) else self.folder / name

    def local(self, name: str) -> Path | None:
        """Where a file is on this disk; None if it is not."""
        file = self.place(name)
        if file.exists():
            return file
        shared = self._lake / "segments" / name  # of other writers, in lakes of format 1
        return shared if shared != file and shared.exists() else None

    def commit(self, number: int) -> Commit:
        """The writer's commit with that number."""
        from lakepond.lake.format import commits  # which needs this module

        if self._commit is not None:
            return self._commit(number)
        try:
            return commits.read(self.folder.parent / "commits", number)
        except FileNotFoundError:
            raise LakeNotFound(f"{self.folder.parent} has no commit {number}.") from None

    def commits(self) -> list[int]:
        """The numbers of the writer's commits, oldest first."""
        from lakepond.lake.format import commits

        return commits.numbers(self.folder.parent / "commits") if self._numbers is None else self._numbers()

    def pin(self, commit: Commit, names: Iterable[str]) -> Callable[[float], None]:
        """Keep a commit and its files elsewhere while it is read, if it needs any from there."""
        complete = self._complete_from is not None and commit.number >= self._complete_from
        if self._pin is None or (complete and self._is_newest(commit)):
            return lambda _: None
        names = frozenset(names)
        return (lambda _: None) if self._all_stay(names) else self._pin(commit, names)

    def continue_from(self, commit: Commit, names: Iterable[str]) -> Callable[[float], None]:
        """`pin` the commit that the writer of these files continues, which has locked them.

        It adds only files that are here. So if all are here to stay, `pin` need not look for those of the
        newest commit again.
        """
        names = frozenset(names)
        if self._all_stay(names) and self._is_newest(commit):
            self._complete_from = commit.number
        return self.pin(commit, names)

    def _is_newest(self, commit: Commit) -> bool:
        from lakepond.lake.format import commits

        return commits.newest(self.folder.parent / "commits") == commit.number

    def _all_stay(self, names: frozenset[str]) -> bool:
        """Whether all files are on this disk, and none leaves because of a budget or with a cache."""
        stay = self.budget is None and self._intact is None
        return stay and all(self.place(name).exists() for name in names)

    def expect(self, names: Iterable[str]) -> None:
        """Have files here that are touched together, fetched some at a time; not with a budget to keep to."""
        if not self.fetches or self._fetch is None:
            return
        missing = [name for name in dict.fromkeys(names) if self.local(name) is None]
        if len(missing) > 1:
            self._fetch_all(self._fetch, missing)

    def _fetch_all(self, fetch: Callable[[str], object], names: list[str]) -> None:
        for _ in background.results(fetch, names, FETCHED_AT_A_TIME, "lakepond-fetch", self._stop):
            pass

    def hold(self, name: str) -> Path:
        """Where a file is, fetched if it has to be; it stays until it is released."""
        with self._lock:
            self._held[name] += 1
            self._clock += 1
            self._used[name] = self._clock
        try:
            file = self.local(name)
            if self._intact is not None and self.place(name) not in self._intact:
                file = None
            if file is None:
                if self._fetch is None:
                    raise self._missing(name)
                self._fetch_all(self._fetch, [name])
            return file or self.place(name)
        except BaseException:
            self.release(name)
            raise

    def data(self, name: str, most: int) -> bytes:
        """The bytes of a small file; `LakeCorrupt` if it has more than `most`."""
        with self.using(name) as file, file.open("rb") as opened:
            data = opened.read(most + 1)
        if len(data) > most:
            raise LakeCorrupt(f"{file} has more than {most:,} bytes; run `lakepond repair`.")
        return data

    def release(self, name: str) -> None:
        """A file that was held may leave."""
        with self._lock:
            self._held[name] -= 1
            if not self._held[name]:
                del self._held[name]

    @contextmanager
    def using(self, name: str) -> Iterator[Path]:
        """A file, held for as long as it is used."""
        file = self.hold(name)
        try:
            yield file
        except FileNotFoundError:
            raise self._missing(name) from None
        finally:
            self.release(name)

    def _missing(self, name: str) -> LakeCorrupt:
        url = known(self._lake).get(name)
        if url is None:
            return LakeCorrupt(f"{self.place(name)} {GONE}")
        return LakeCorrupt(
            f"{self.place(name)} is not on this disk but at {url}: pull it, or open the lake with that cloud."
        )

    def bytes_here(self) -> int:
        """What the segments take on this disk."""
        return sum(status.st_size for status in segment_files(self.folder).values())

    def unsafe_bytes(self) -> int:
        """What is on this disk and known to be nowhere else."""
        here = segment_files(self.folder).items()
        return sum(each.st_size for name, each in here if self._safe is None or name not in self._safe)

    def over_budget(self) -> int:
        """How much more than the budget is on this disk."""
        return 0 if self.budget is None else max(0, self.bytes_here() - self.budget)

    def make_room(self, size: int = 0, *, ask: bool = True) -> int:
        """Delete files that are safe elsewhere until `size` more bytes fit; returns how many do not fit.

        With `ask` the other place may be asked first whether it still has them. Slow: it looks at every file,
        and waits for other processes that change the list of those that are safe.
        """
        if self.budget is None:
            return 0
        over = self.bytes_here() + size - self.budget
        if over <= 0 or not self._confirm(ask):
            return max(0, over)
        with self._evicting:
            here = segment_files(self.folder)
            over = sum(status.st_size for status in here.values()) + size - self.budget
            safe = set() if self._safe is None or over <= 0 else self._safe.confirmed()
            for name in sorted(here, key=lambda name: (self._used.get(name, 0), here[name].st_mtime)):
                if over <= 0:
                    break
                if name not in safe or name.endswith(".manifest"):  # small, and needed to find all others
                    continue
                with self._lock:
                    if name not in self._held and delete(self.folder / name):
                        over -= here[name].st_size
        return max(0, over)
