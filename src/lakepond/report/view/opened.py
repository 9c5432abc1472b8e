"""The commits of a lake that are being viewed, opened once and shared by the threads of the server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from lakepond.errors import CloudError, LakeCorrupt, LakeError, LakeNotFound
from lakepond.flow.following.chains import Chains
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.catalog import Catalog
from lakepond.lake.read.lake import Lake
from lakepond.report.commits import summarise
from lakepond.types import Spec

OPEN_COMMITS = 3
"""commits that are kept open"""
MOST_PROBLEMS = 50
"""damaged commits, after which the whole lake is taken for damaged"""
SUMMARIES = 20_000
"""summaries of commits that are cached"""


class OpenedLake:
    """One writer of a lake, any of its commits; thread-safe."""

    def __init__(self, chains: Chains, writer: str = "") -> None:
        self.chains, self.writer = chains, writer
        self.spec: Spec = chains.spec
        self._lock = threading.RLock()
        self._open: dict[int, Lake] = {}
        self._intact: Commit | None = None
        self._problems: list[dict[str, Any]] = []
        self._seen: list[int] = []
        self._summary = lru_cache(SUMMARIES)(lambda n: summarise(chains.commit(writer, n), chains.spec))

    def numbers(self) -> list[int]:
        """The numbers of all commits, oldest first, intact or not."""
        return self.chains.numbers(self.writer)

    def newest(self) -> tuple[Commit | None, list[dict[str, Any]]]:
        """The newest intact commit, and why later ones are damaged; searched again if there are others."""
        with self._lock:
            there = self.numbers()
            if there != self._seen or self._problems:
                self._intact, self._problems = self._search(there)
                self._seen = there
            return self._intact, self._problems

    def _search(self, there: list[int]) -> tuple[Commit | None, list[dict[str, Any]]]:
        problems: list[dict[str, Any]] = []
        for number in reversed(there):
            if self._intact is not None and number == self._intact.number and not problems:
                return self._intact, []
            try:
                commit = self.chains.commit(self.writer, number)
                self.chains.check(self.writer, commit)
                return commit, problems
            except CloudError:  # nothing is known of it
                raise
            except (LakeError, OSError) as error:
                problems.append({"number": number, "error": str(error)})
            if len(problems) >= MOST_PROBLEMS:
                break
        return None, problems

    def commit(self, number: int | None) -> Commit:
        """A commit by number, or the newest intact one."""
        if number is not None:
            with self._lock:
                if number in self._open:
                    return self._open[number].commit
            return self.chains.commit(self.writer, number)
        newest, problems = self.newest()
        if newest is None:
            why = f" that is intact: {problems[0]['error']}" if problems else " yet."
            raise LakeNotFound(f"{self.chains} has no commit{why}")
        return newest

    def catalog(self, number: int | None) -> Catalog:
        """The files of a commit."""
        return Catalog(self.commit(number), self.chains.segments(self.writer))

    def lake(self, commit: Commit) -> Lake:
        """The lake at a commit, to be closed by the caller."""
        return self.chains.lake({self.writer: commit})

    @contextmanager
    def reading(self, number: int | None) -> Iterator[Lake]:
        """An open commit, under a lock: use it for milliseconds only."""
        with self._lock:
            commit = self.commit(number)
            lake = self._open.pop(commit.number, None)
            lake = self.lake(commit) if lake is None else lake
            self._open[commit.number] = lake  # the one that was used last is the last
            if len(self._open) > OPEN_COMMITS:
                self._open.pop(next(iter(self._open))).close()
            yield lake

    def summary(self, number: int) -> dict[str, Any]:
        """A commit in a few numbers, cached; with `error` if it is damaged."""
        try:
            return self._summary(number)
        except LakeNotFound:
            return {"number": number, "error": f"commit {number} is no longer kept."}
        except (LakeCorrupt, OSError) as error:
            return {"number": number, "error": str(error)}

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            while self._open:
                self._open.popitem()[1].close()
