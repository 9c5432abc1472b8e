"""End the processes of a Ray that was started on this machine, when the program that started it ends.

    python reaper.py FOLDER        # the parent holds the other end of its standard input

Some processes of Ray outlive a driver that is killed. All that Ray's node process has started inherit the
open file of its log, below the folder that Ray was given, which is how they are found. The driver and its
own children do not have that file open. Runs as a program of its own, which imports nothing of lakepond.
"""

import os
import select
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

LOGS = ("/logs/raylet.out", "/logs/raylet.err")
POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 30.0


def main(folder: str) -> None:
    """Wait until standard input is closed or the parent is dead, end what is left, delete the folder."""
    parent = os.getppid()
    while os.getppid() == parent:
        if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
            break
    until = time.monotonic() + GIVE_UP_SECONDS
    while (found := users_of(folder)) and time.monotonic() < until:
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    shutil.rmtree(folder, ignore_errors=True)


def users_of(folder: str) -> list[int]:
    """The processes that the node process with this folder has started, and itself."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):  # of another user, or ended meanwhile
                files = (os.readlink(file) for file in Path(entry.path, "fd").iterdir())
                if any(file.startswith(f"{folder}/") and file.endswith(LOGS) for file in files):
                    found.append(int(entry.name))
    return found


if __name__ == "__main__":
    main(sys.argv[1])
