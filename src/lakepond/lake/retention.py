"""Which commits are kept, and which files leave with those that are not."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from lakepond.errors import LakeCorrupt, SpecError
from lakepond.lake import commits, writers
from lakepond.lake.files import sync_folder


def check_kept(keep_last: int | None, keep_every: int | None) -> None:
    """`SpecError` unless these can be asked for."""
    for name, value in (("keep_last", keep_last), ("keep_every", keep_every)):
        if value is not None and value < 1:
            raise SpecError(f"{name} must be at least 1, but is {value!r}.")
    if keep_every is not None and keep_last is None:
        raise SpecError(f"keep_every={keep_every} keeps some of the older commits: give keep_last as well.")


class Retention:
    """Lets go of old commits, and of the files that no commit names any more.

    The newest `keep_last` are kept, and every `keep_every`-th by number, for ever; without `keep_last`, all.
    Only the commits of one writer go, and no file that a commit of any writer names. To be called while
    nobody writes (`writers.alone`).
    """

    def __init__(
        self, lake: Path, writer: str, keep_last: int | None = None, keep_every: int | None = None
    ) -> None:
        check_kept(keep_last, keep_every)
        self._lake, self._segments = lake, lake / "segments"
        self._commits = writers.home(lake, writer) / "commits"
        self.keep_last, self.keep_every = keep_last, keep_every
        self._named: dict[Path, frozenset[str]] = {}

    def let_go(self) -> None:
        """Delete the commits that are kept no longer, and then the files that no commit names any more."""
        if self.keep_last is None:
            return
        old = commits.numbers(self._commits)[: -self.keep_last]
        gone: set[str] = set()
        for number in old:
            if self.keep_every is None or number % self.keep_every:
                with suppress(LakeCorrupt):  # a broken commit is for `repair`
                    gone |= self._names(self._commits, number)
                    (self._commits / commits.file_name(number)).unlink()
                    del self._named[self._commits / commits.file_name(number)]
        if gone:
            sync_folder(self._commits)  # a commit must not come back after its files have gone
            self.delete(gone)

    def delete(self, names: set[str]) -> None:
        """Delete those of these files that no commit names."""
        for name in names - self._kept() if names else ():
            (self._segments / name).unlink(missing_ok=True)

    def unnamed(self) -> set[str]:
        """Files that no commit names: left behind by a process that was killed before it could say so.

        `LakeCorrupt` if a commit is broken: nobody knows then what it named.
        """
        named: set[str] = set()
        for folder, number in self._all():
            named |= self._names(folder, number)
        return {file.name for file in self._segments.iterdir()} - named

    def _kept(self) -> set[str]:
        kept: set[str] = set()
        for folder, number in self._all():
            with suppress(LakeCorrupt):
                kept |= self._names(folder, number)
        return kept

    def _all(self) -> list[tuple[Path, int]]:
        """The commits of all writers."""
        folders = [writers.home(self._lake, writer) / "commits" for writer in writers.names(self._lake)]
        return [(folder, number) for folder in folders for number in commits.numbers(folder)]

    def _names(self, folder: Path, number: int) -> frozenset[str]:
        file = folder / commits.file_name(number)
        if file not in self._named:
            self._named[file] = frozenset(commits.read(folder, number).files())
        return self._named[file]
