"""The lock of a pond. Rows are copied without it, so growing, which moves rows, waits for those who copy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from lakepond import forks
from lakepond.pond.observations import Observations


class GrowthLock:
    """`reading` to look up steps, `finishing` after rows were copied, `unread` while rows move."""

    leaves: list[Observations]

    def _new_locks(self) -> None:
        self.lock = threading.RLock()
        self._change = threading.Condition(self.lock)
        self._grower: int | None = None  # the thread that is about to move rows
        forks.hold_still(self.lock)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Hold the lock, to choose and look up steps; rows are copied after it, by `Read.into`."""
        with self.lock:
            self.wait_for_growth()
            yield

    @contextmanager
    def finishing(self) -> Iterator[None]:
        """Hold the lock for `Read.done`, then wake a recorder that waits to grow."""
        with self.lock:
            yield
            self._change.notify_all()

    @contextmanager
    def unread(self) -> Iterator[None]:
        """Wait until there is no reader, because growing moves rows; later readers wait for it."""
        self._grower = threading.get_ident()
        try:
            self._change.wait_for(lambda: not any(leaf.store and leaf.store.readers for leaf in self.leaves))
            yield
        finally:
            self._grower = None
            self._change.notify_all()

    def wait_for_growth(self) -> None:
        """Wait until no other thread moves rows; the lock is held.

        Other threads record meanwhile: read nothing of the pond under the lock before this call.
        """
        if self._grower is None:
            return
        own = threading.get_ident()
        while self._grower not in (None, own):
            self._change.wait()
        self._grower = None  # one of its own may have been interrupted
        self._change.notify_all()
