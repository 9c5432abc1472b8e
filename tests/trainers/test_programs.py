"""JAX's cache of compiled programs, as the trainers set it up."""

import os
import signal
import subprocess
import sys

PROGRAM = """
import os, signal, sys
from jax._src import path
from lakepond.trainers import programs

programs.prepare_jax()
programs.prepare_jax()
if sys.argv[1:]:
    Path = type(path.Path("/"))
    write = Path.write_bytes
    def write_half(path, data):
        write(path, data[: len(data) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    Path.write_bytes = write_half
import jax
print(jax.jit(lambda x: x + 1)(jax.numpy.arange(3)).tolist())
"""


def test_a_process_that_is_killed_leaves_no_half_of_a_compiled_program(tmp_path):
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
        return subprocess.run(
            [sys.executable, "-c", PROGRAM, *words], env=env, capture_output=True, text=True, check=False
        )

    assert run("killed").returncode == -signal.SIGKILL
    assert len(list(tmp_path.glob("*.tmp"))) == 1
    assert not list(tmp_path.glob("*-cache"))
    for _ in range(2):  # compiled and stored, then read
        done = run()
        assert (done.stdout, done.stderr) == ("[1, 2, 3]\n", "")
    assert list(tmp_path.glob("*-cache"))
