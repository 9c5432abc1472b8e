"""Files of a lake that are elsewhere: which they are, how they come back, and which may leave this disk.

    lake/elsewhere/<place>.txt    the place's URL, then a line for each file that was found whole there

A file that a commit names may be missing here if such a list names it: it is not lost, it is elsewhere. Who
knows the way there hands over `bring`, and a file that is touched comes back. With a budget, files that are
safe elsewhere leave, the least recently used first; a file that is in use, or safe nowhere else, never does.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lakepond.errors import LakeCorrupt
from lakepond.lake.checksum import Digest

FOLDER = "elsewhere"
BROUGHT_AT_A_TIME = 4
GONE = "is gone: its commit is kept no longer, then open the lake anew; or it is lost, then see `repair`."


class Elsewhere:
    """The files of a lake that were found whole at one other place; a file beside the lake remembers them."""

    def __init__(self, lake: Path, url: str) -> None:
        self.url = url
        self._file = lake / FOLDER / f"{Digest(url.encode()).hexdigest()[:12]}.txt"
        self._lock = threading.Lock()
        self._names = _read(self._file)[1] if self._file.exists() else set()

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def add(self, names: Iterable[str]) -> None:
        """Remember that these are there, durably."""
        with self._lock:
            new = [name for name in names if name not in self._names]
            if not new:
                return
            self._file.parent.mkdir(exist_ok=True)
            begin = "" if self._file.exists() else f"{self.url}\n"
            with self._file.open("a") as file:
                file.write(begin + "".join(f"{name}\n" for name in new))
                file.flush()
                os.fsync(file.fileno())
            self._names |= set(new)

    def drop(self, names: Iterable[str]) -> None:
        """Forget files that are not there any more."""
        with self._lock:
            self._names -= set(names)
            if self._file.exists():
                aside = self._file.with_suffix(".aside")
                with aside.open("w") as file:
                    file.write("\n".join([self.url, *sorted(self._names), ""]))
                    file.flush()
                    os.fsync(file.fileno())
                aside.replace(self._file)


def known(lake: Path) -> dict[str, str]:
    """Every file of a lake that is known to be elsewhere, and where."""
    found: dict[str, str] = {}
    for file in sorted((lake / FOLDER).glob("*.txt")):
        url, names = _read(file)
        found |= dict.fromkeys(names, url)
    return found


def _read(file: Path) -> tuple[str, set[str]]:
    url, *names = file.read_text(errors="replace").split("\n")
    return url, set(names[:-1])  # what follows the last newline was cut off by a crash


class Segments:
    """The files in a lake's folder of segments, those that are elsewhere included."""

    def __init__(
        self,
        lake: Path,
        *,
        bring: Callable[[str], None] | None = None,
        budget: int | None = None,
        safe: Elsewhere | None = None,
    ) -> None:
        """`bring` fetches a file. `budget`: bytes on this disk; what is `safe` elsewhere may leave."""
        self._lake, self.folder = lake, lake / "segments"
        self._bring, self.budget, self._safe = bring, budget, safe
        self._lock = threading.Lock()
        self._held: Counter[str] = Counter()
        self._used: dict[str, int] = {}
        self._clock = 0

    @property
    def open_bytes(self) -> int | None:
        """How much a reader may keep open: an open file takes its space even when it has left."""
        return None if self.budget is None else self.budget // 4

    def reachable(self, name: str) -> bool:
        """Whether it can be had, or has to be here and is lost; False only if it is elsewhere."""
        here = self._bring is not None or (self.folder / name).exists()
        return here or name not in known(self._lake)

    def expect(self, names: Iterable[str]) -> None:
        """Have files here that are touched together, brought some at a time; not with a budget to keep to."""
        if self._bring is None or self.budget is not None:
            return
        missing = [name for name in dict.fromkeys(names) if not (self.folder / name).exists()]
        if len(missing) > 1:
            with ThreadPoolExecutor(BROUGHT_AT_A_TIME, "lakepond-bring") as pool:
                try:
                    list(pool.map(self._bring, missing))
                except BaseException:
                    pool.shutdown(wait=False, cancel_futures=True)
                    raise

    def hold(self, name: str) -> Path:
        """Where a file is, brought here if it has to be; it stays until it is released."""
        with self._lock:
            self._held[name] += 1
            self._clock += 1
            self._used[name] = self._clock
        try:
            file = self.folder / name
            if not file.exists():
                if self._bring is None:
                    raise self._missing(name)
                self._bring(name)
            return file
        except BaseException:
            self.release(name)
            raise

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
            return LakeCorrupt(f"{self.folder / name} {GONE}")
        return LakeCorrupt(
            f"{self.folder / name} is not on this disk but at {url}: pull it, or open the lake with that "
            "cloud."
        )

    def bytes_here(self) -> int:
        """What the segments take on this disk."""
        return sum(size for _, size, _ in self._here())

    def unsafe_bytes(self) -> int:
        """What is on this disk and known to be nowhere else."""
        return sum(size for name, size, _ in self._here() if self._safe is None or name not in self._safe)

    def over_budget(self) -> int:
        """How much more than the budget is on this disk."""
        return 0 if self.budget is None else max(0, self.bytes_here() - self.budget)

    def make_room(self, size: int = 0) -> int:
        """Let files leave until so many bytes more fit the budget; returns how many are above it still."""
        if self.budget is None:
            return 0
        with self._lock:
            here = self._here()
            over = sum(bytes_ for _, bytes_, _ in here) + size - self.budget
            for name, bytes_, _ in sorted(here, key=lambda each: (self._used.get(each[0], 0), each[2])):
                if over <= 0:
                    break
                if self._safe is not None and name in self._safe and name not in self._held:
                    (self.folder / name).unlink(missing_ok=True)
                    over -= bytes_
        return max(0, over)

    def _here(self) -> list[tuple[str, int, float]]:
        found = []
        for entry in os.scandir(self.folder):
            try:
                told = entry.stat()
            except FileNotFoundError:
                continue
            found.append((entry.name, told.st_size, told.st_mtime))
        return found
