"""How functions are compiled by numba, where the machine code is cached, and how it is called.

numba caches machine code by the file of a function and does not notice when a file that is compiled into it
changes. Here the digest of every file that is compiled is part of the name under which code is cached, so
stale code is never found.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import tempfile
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import njit, typeof

from lakepond import stopping
from lakepond.rows import memory
from lakepond.types import Array

log = logging.getLogger("lakepond")
NOTICE_SECONDS = 2.0
"""compiling that takes longer is announced on stderr"""
FOLDER = Path(__file__).parent
SOURCES = [*sorted(FOLDER.glob("*.py")), FOLDER.parent / "sampling" / "priority_tree.py"]
"""every file with compiled functions, or constants that they use"""
DIGEST = hashlib.sha256(b"".join(file.read_bytes() for file in SOURCES)).hexdigest()[:12]


def native(function: Any = None, *, cache: bool = False) -> Any:
    """Compile a function, without the interpreter lock and without reference counts.

    Callers own all arrays and compiled code creates none, so numba need not count references to the dozen
    arrays of a store by atomic instructions, a sixth of its time (`_nrt=False`, an option that numba uses
    itself but does not document; pyproject.toml therefore bounds numba's version).
    """
    if function is None:
        return lambda function: native(function, cache=cache)
    if cache:
        function.__qualname__ = f"{function.__qualname__}_{DIGEST}"
    return njit(nogil=True, error_model="numpy", _nrt=False, cache=cache)(function)


def _choose_cache_folder() -> None:
    """Cache in a private temporary folder where neither the package nor the home directory is writable.

    numba raises `no locator available` there. Cached code is executed, so the folder must be our own.
    """
    if numba.config.CACHE_DIR:
        return
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    for folder in (FOLDER / "__pycache__", home / "numba"):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                return
        except OSError:
            continue
    folder = Path(tempfile.gettempdir()) / f"lakepond-numba-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if found.st_uid != os.getuid() or found.st_mode & 0o077 or folder.is_symlink():
            raise PermissionError(f"{folder} is not private to this user")
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="lakepond-numba-"))
    log.warning("compiled code is cached in %s; set NUMBA_CACHE_DIR to keep it elsewhere.", folder)
    numba.config.CACHE_DIR = str(folder)


_choose_cache_folder()


class Announced:
    """Announces on stderr, once per process, that something has been compiling for two seconds."""

    _lock = threading.Lock()
    _printed = False

    def __enter__(self) -> None:
        self._timer = threading.Timer(NOTICE_SECONDS, self._print_notice)
        self._timer.daemon = True
        self._timer.start()

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()

    @classmethod
    def _print_notice(cls) -> None:
        with cls._lock:
            printed, cls._printed = cls._printed, True
        if not printed:
            sys.stderr.write(
                "lakepond: compiling for this machine, about ten seconds, once "
                "(`lakepond doctor --warm-up` does it ahead of time)\n"
            )


def compiled(function: Any, *like: Any) -> Callable[..., Any]:
    """The machine code of `function` for arguments like these; later calls do not check their types.

    numba checks the type of every argument of every call, which takes 4 µs for the arrays of a store.
    Arguments of another dtype or layout would be misread: for callers that always pass the same.
    """
    types = tuple(typeof(argument) for argument in like)
    known = function.overloads.get(types)
    if known is not None:  # a thread and signal handlers, as below, take longer than a store needs
        return known.entry_point
    with Announced(), stopping.deferring("compilation"):  # an exception inside of numba can end the process
        entry: Callable[..., Any] = function.compile(types)
    return entry


@native(cache=True)
def address_of(array: Array) -> int:
    """The address of an array; compiled once for each kind of array, then five times faster than NumPy."""
    address: int = array.ctypes.data
    return address


def knows(dtype: np.dtype[Any]) -> bool:
    """Whether numba supports that dtype."""
    return dtype.char in "?bBhHiIlLqQfdFD" and dtype.isnative and dtype.isbuiltin == 1


@cache
def address_taker(dtype: np.dtype[Any], ndim: int) -> Callable[[Array], int]:
    """`address_of` for contiguous arrays of that dtype and number of axes, and no others: twice as fast."""
    if not knows(dtype):
        return memory.address_of
    return compiled(address_of, np.empty((0,) * ndim, dtype))
