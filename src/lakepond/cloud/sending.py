"""The uploads of one batch of commits, in order, a limited number at a time.

An `Upload` with its functions takes a kilobyte, so they are created when there is room for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import islice

import numpy as np

from lakepond.cloud.arrays import Files, name_of
from lakepond.cloud.layout import segment_name
from lakepond.cloud.slots import Changed
from lakepond.cloud.uploader import Upload, Uploader

MOST_WAITING = 1024
"""uploads that were submitted and have not finished"""


class Sending:
    """Uploads the files of an array whose `send` is set, in order."""

    def __init__(
        self,
        uploader: Uploader,
        files: Files,
        send: Callable[[int, str], int],
        arrived: Callable[[str], None],
    ) -> None:
        """`send` gets the position of a file and its name, and returns how many bytes were sent.

        `arrived` is called with the name of a file that is there.
        """
        self._uploader, self._files, self._send, self._arrive = uploader, files, send, arrived
        self._positions = (at for at, wanted in enumerate(files["send"]) if wanted)
        self._submitted = 0  # every file before this position was submitted
        self._left: dict[int, None] = {}  # positions of those that have not finished, in order
        self._errors: dict[int, Exception] = {}
        self._change = threading.Condition()
        self._stop = False
        self.pending_files = int(np.count_nonzero(files["send"]))
        self.pending_bytes = int(files["size"][files["send"]].sum())

    def wait(self, stop: int) -> bool:
        """Return True when all files before the position `stop` have arrived; False after `close`.

        Raises the error of the first one that was given up; `Changed` if it is not on this disk any more.
        """
        while True:
            with self._change:
                self._change.wait_for(lambda: self._stop or self._arrived(stop) or self._has_room())
                if self._arrived(stop):
                    break
                if self._stop:
                    return False
                next_uploads = self._next()
            self._uploader.submit(*next_uploads)
        with self._change:
            for at in sorted(self._errors):
                if at < stop:
                    error = self._errors[at]
                    raise Changed if isinstance(error, FileNotFoundError) else error
        return True

    def close(self) -> None:
        """End `wait`."""
        with self._change:
            self._stop = True
            self._change.notify_all()

    def _arrived(self, stop: int) -> bool:
        return self._submitted >= stop and next(iter(self._left), stop) >= stop

    def _has_room(self) -> bool:
        return self._submitted < len(self._files) and len(self._left) <= MOST_WAITING // 2

    def _next(self) -> list[Upload]:
        """The next files to submit, as many as there is room for."""
        room = MOST_WAITING - len(self._left)
        positions = list(islice(self._positions, room))
        self._left.update(dict.fromkeys(positions))
        self._submitted = len(self._files) if len(positions) < room else positions[-1] + 1
        return list(map(self._upload, positions))

    def _upload(self, at: int) -> Upload:
        key, size = self._files["key"][at], int(self._files["size"][at])

        def finish(error: Exception | None) -> None:
            if error is None:
                self._arrive(name_of(key))
            with self._change:
                del self._left[at]
                self.pending_files, self.pending_bytes = self.pending_files - 1, self.pending_bytes - size
                if error is not None:
                    self._errors[at] = error
                self._change.notify_all()

        return Upload(
            segment_name(name_of(key)),
            size,
            send=lambda: self._send(at, name_of(key)),  # a new `str`: `pathlib` interns what it gets
            done=lambda: finish(None),
            failed=finish,
        )
