"""A folder that ends with its process, and so does the Ray that was started in it, even after `kill -9`.

    with reaper.folder("lakepond-ray-") as folder:      # in the process that uses it
    python reaper.py FOLDER                             # what that starts: waits for the end of its parent

Some processes of Ray outlive a driver that is killed. All that Ray's node process has started inherit the
open file of its log, below the folder that Ray was given, which is how they are found. The driver and its
own children do not have that file open. The program imports nothing of lakepond.
"""

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOGS = ("/logs/raylet.out", "/logs/raylet.err")
POLL_SECONDS = 0.5
GIVE_UP_SECONDS = 30.0


@contextmanager
def folder(prefix: str, parent: str | None = None) -> Iterator[Path]:
    """A new folder in `parent` (default: that of temporary files) during a block.

    After the block, or the death of this process, no process of a Ray in it runs, and it is gone.
    """
    made, owner = tempfile.mkdtemp(prefix=prefix, dir=parent), os.getpid()
    command = [sys.executable, "-I", "-S", __file__, made]
    reaper = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    try:
        yield Path(made)
    finally:
        if os.getpid() == owner:  # a forked child that leaves the block ends nothing
            assert reaper.stdin is not None
            with suppress(BrokenPipeError), reaper.stdin as pipe:
                pipe.write(b"\n")  # closing is not enough: forked children of this process have the pipe open
            reaper.wait()


def main(folder: str) -> None:
    """Wait for a byte or the end of standard input, or of the parent; end what is left, delete the folder."""
    parent = os.getppid()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    if child := os.fork():  # a worker of Ray that ends kills its children, but not theirs
        while os.getppid() == parent and not os.waitpid(child, os.WNOHANG)[0]:
            signal.sigtimedwait([signal.SIGCHLD], POLL_SECONDS)
        return
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
