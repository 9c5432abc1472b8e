"""Compiled code is kept on disk, by numba, which looks at one file only."""

from __future__ import annotations

import hashlib
from pathlib import Path

from lakepond.rows import kernel


def test_the_kernel_changes_with_the_files_that_are_compiled_into_it():
    folder = Path(kernel.__file__).parent
    names = ("books.py", "hashing.py", "instructions.py", "memory.py", "slots.py", "tracks.py")
    sources = b"".join((folder / name).read_bytes() for name in names)
    digest = hashlib.sha256(sources).hexdigest()[:16]
    assert digest == kernel.COMPILED_WITH, f'write COMPILED_WITH = "{digest}" to rows/kernel.py'
