"""The end of a `with` block: an error while closing does not hide the error that ended the block."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger("lakepond")


def close_after(error: BaseException | None, close: Callable[[], None]) -> None:
    """Call `close` for a block that ended with `error`, or with none; `error` stays the one that is raised.

    If both fail, the second is added to the first as a note, and logged.
    """
    try:
        close()
    except BaseException as failed:
        if error is None:
            raise
        text = f"closing failed as well, so it is still open: {type(failed).__name__}: {failed}"
        error.add_note(text)
        log.error("%s", text)
