"""What a drill reports: one line for each case."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """How often one case of a drill was tried, and what did not hold."""

    drill: str
    case: str
    tried: int = 0
    failures: list[str] = field(default_factory=list)
    skipped: str = ""
    """why it was not tried at all"""
    notes: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """One try: an exception in the block is a failure, and the drill continues."""
        self.tried += 1
        try:
            yield
        except Exception as error:
            self.failures.append(f"{what}: {type(error).__name__}: {error}"[:600])

    def count(self, name: str) -> None:
        """Add one to a note."""
        self.notes[name] = self.notes.get(name, 0) + 1


class Skipped(Exception):
    """This machine cannot run the drill; the message says what it lacks."""


Case = Callable[[], Outcome]
