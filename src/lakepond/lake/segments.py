"""The files of a writer, wherever they are: fetched when they are used, deleted to keep to a budget.

With a budget, files that are safe elsewhere are deleted here, the least recently used first; never one that
is in use, in this process or another, or that the list on disk (`elsewhere.py`) does not
name.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lakepond import background, forks
from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake.elsewhere import Elsewhere, known
from lakepond.lake.format.names import GONE, SOURCES, is_shared, segment_files
from lakepond.lake.lock import FileLock, evict, pin
from lakepond.lake.writers import home

if TYPE_CHECKING:
    from lakepond.lake.format.commits import Commit

FETCHED_AT_A_TIME = 4
EVICTIONS = 100
"""how often a file may leave again, because another process has a budget, between being fetched and used"""


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
        self._pins: dict[str, list[FileLock]] = {}  # of files held that may be evicted through another object

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
            if self._fetch is None:
                if (file := self.local(name)) is None:
                    raise self._missing(name)
                return file
            return self._fetched(self._fetch, name)
        except BaseException:
            self._release(name)
            raise

    def _fetched(self, fetch: Callable[[str], object], name: str) -> Path:
        """Where a file is, fetched if it has to be, and pinned."""
        for _ in range(EVICTIONS):
            file = self.local(name)
            if file is None or (self._intact is not None and self.place(name) not in self._intact):
                file = self.place(name)
                self._fetch_all(fetch, [name])
            with suppress(FileNotFoundError):  # another process has evicted it before it was pinned
                lock = pin(file)
                if lock is not None:
                    with self._lock:
                        self._pins.setdefault(name, []).append(lock)
                return file
        raise self._missing(name)

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
            pins = self._pins.get(name)
            lock = pins.pop() if pins else None
            if not pins:
                self._pins.pop(name, None)
        if lock is not None:
            lock.close()
        self._release(name)

    def _release(self, name: str) -> None:
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
                    if name not in self._held and evict(self.folder / name):
                        over -= here[name].st_size
        return max(0, over)
