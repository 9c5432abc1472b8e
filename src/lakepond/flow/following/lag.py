"""How far behind each writer a follower is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lakepond.flow.following.arrivals import Chain
from lakepond.formats import UNKNOWN, counted, duration, size
from lakepond.lake import writers

SILENT_INTERVALS = 5.0
"""a writer is alive until it has made no commit for this many of its usual intervals ..."""
SILENT_SECONDS = 60.0
"""... and for this many seconds"""
UNKNOWN_INTERVAL = 60.0
"""assumed while only one commit of a writer has been seen"""


@dataclass(frozen=True)
class WriterLag:
    """One writer, as a follower sees it."""

    writer: str
    """its name; "" is the writer without a name. In a bucket with its incarnation: "name.0123456789ab"."""
    commit: int | None
    """the newest commit that was read; None: none yet"""
    age: float | None
    """seconds since that commit was made"""
    steps: int
    """steps that were read from it"""
    steps_behind: int
    """steps of commits that were found and not read yet"""
    bytes_behind: int
    missed: int
    """steps that were dropped from the lake before they could be read, or exceeded the capacity at once"""
    alive: bool
    """whether its last commit is at most 5 of its usual intervals old, or less than a minute"""
    error: str | None
    """why it could not be read the last time; it is tried again"""


@dataclass(frozen=True)
class Lag:
    """All writers of a followed lake; `lag["collector-3"]` is one of them, `print(lag)` a table."""

    writers: tuple[WriterLag, ...]
    error: str | None
    """why writers could not be discovered the last time; it is tried again"""

    def __getitem__(self, writer: str) -> WriterLag:
        """One writer, by its name with or without incarnation."""
        known = {each.writer: each for each in self.writers}
        found = writers.find(writer, known)
        if len(found) != 1:
            raise KeyError(f"{len(found)} writers are called {writer!r}; name one of {sorted(known)}.")
        return known[found[0]]

    def __iter__(self) -> Iterator[WriterLag]:
        return iter(self.writers)

    def __len__(self) -> int:
        return len(self.writers)

    @property
    def steps_behind(self) -> int:
        """Steps that were found and not read yet, of all writers."""
        return sum(each.steps_behind for each in self.writers)

    @property
    def missed(self) -> int:
        """Steps that were dropped before they could be read, of all writers."""
        return sum(each.missed for each in self.writers)

    def __str__(self) -> str:
        head = ("writer", "commit", "age", "steps", "behind", "bytes", "missed", "state")
        rows = [head, *map(_row, self.writers)]
        widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
        widths[0] = min(widths[0], 79 - sum(widths[1:]) - len(widths) + 1)
        lines = []
        for name, *rest in rows:
            shown = name if len(name) <= widths[0] else name[: widths[0] - 1] + "…"
            cells = [shown.ljust(widths[0])]
            cells += [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
            lines.append(" ".join(cells).rstrip())
        errors = [f"{each.writer or '(unnamed)'}: {each.error}" for each in self.writers if each.error]
        lines += [*errors, *([f"discovery: {self.error}"] if self.error else [])]
        return "\n".join(lines)

    def __repr__(self) -> str:
        silent = sum(not each.alive for each in self.writers)
        return (
            f"Lag({counted(len(self.writers), 'writer')}, {silent} silent, {self.steps_behind:,} steps "
            f"behind, {self.missed:,} missed)"
        )


def is_alive(age: float, usual_interval: float | None) -> bool:
    """Whether a writer whose last commit is `age` seconds old is alive; None: its interval is unknown."""
    usual = UNKNOWN_INTERVAL if usual_interval is None else usual_interval
    return age <= max(SILENT_SECONDS, SILENT_INTERVALS * usual)


def lag_of(chain: Chain, now: float) -> WriterLag:
    """The lag of one chain; `now` by the monotonic clock."""
    known = max((commit.recorded for commit in chain.pending), default=chain.seen)
    age = None if chain.number is None else max(0.0, now - chain.arrived)
    return WriterLag(
        writer=chain.name,
        commit=chain.number,
        age=age,
        steps=chain.steps,
        steps_behind=max(0, known - chain.seen),
        bytes_behind=sum(commit.bytes_written for commit in chain.pending),
        missed=chain.missed,
        alive=age is not None and is_alive(age, chain.usual_interval),
        error=chain.error or chain.look_error,
    )


def _row(each: WriterLag) -> tuple[str, ...]:
    return (
        each.writer or "(unnamed)",
        UNKNOWN if each.commit is None else f"{each.commit}",
        duration(each.age).replace(" ", "") if each.age is not None else UNKNOWN,
        f"{each.steps}",
        f"{each.steps_behind}",
        size(each.bytes_behind).replace(" ", ""),
        f"{each.missed}",
        "error" if each.error else "alive" if each.alive else "silent",
    )
