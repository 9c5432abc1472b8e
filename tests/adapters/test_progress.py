"""Progress is printed to a terminal and not to a log file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys

SCRIPT = """
import sys, numpy as np
from lakepond.adapters.trading import ReplayBuffer
from lakepond.adapters.legacy import Transition, write_legacy
state = np.arange(600, dtype=np.float32).reshape(30, 20)
old = [Transition(state + i, np.zeros(2, np.float32), float(i), state + i + 1, False) for i in range(40)]
write_legacy(sys.argv[1] + "/old.pkl", old, capacity=100)
buffer = ReplayBuffer.load(sys.argv[1] + "/old.pkl")
saved = buffer.save(sys.argv[1] + "/new")
buffer.close()
ReplayBuffer.load(sys.argv[1] + "/new").close()
assert saved.transitions == 40
"""


def test_a_terminal_sees_the_ratio(tmp_path):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-c", SCRIPT, str(tmp_path)]
    process = subprocess.Popen(
        command, stderr=theirs, stdout=theirs, env={**os.environ, "TERM": "xterm", "COLUMNS": "300"}
    )
    os.close(theirs)
    seen = b""
    while True:
        try:
            piece = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        seen += piece
    os.close(ours)
    assert process.wait() == 0, seen
    text = seen.decode()
    assert text.count("loaded from") == 2
    assert "saved to" in text
    assert "x smaller" in text


def test_a_log_file_sees_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
