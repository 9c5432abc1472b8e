"""Why something failed, so that a failure that repeats is logged once."""

from __future__ import annotations

MOST = 100
"""reasons that are known at a time: messages may contain a number that differs each time"""


class Reasons:
    """The reasons of the failures since the last success, and at most `MOST`: then all are forgotten."""

    def __init__(self) -> None:
        self._known: set[tuple[type[BaseException], int | str]] = set()

    def is_new(self, error: BaseException) -> bool:
        """Whether an error has another reason than those before it.

        Two system errors of one type and errno have the same reason: the name of a temporary file is random.
        """
        code = error.errno if isinstance(error, OSError) else None
        reason = (type(error), str(error) if code is None else code)
        if reason in self._known:
            return False
        if len(self._known) >= MOST:
            self._known.clear()
        self._known.add(reason)
        return True

    def clear(self) -> None:
        """Note a success: the next failure is new."""
        self._known.clear()
