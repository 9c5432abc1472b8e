"""Fault drills: crashes, full disks, signals, clock jumps, forks and hostile inputs, against a perfect model.

`python -m faults` (from `tests/`, or `make soak`) runs them at length; `test_*.py` here are the fast parts.
"""

import signal


def heed_signals() -> None:
    """Undo that a shell ignores SIGINT and SIGHUP for what it starts in the background.

    Otherwise this process and all that it starts ignore them as well, and a drill sends them in vain.
    """
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
