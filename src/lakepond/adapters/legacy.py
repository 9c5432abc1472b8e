"""Pickled deques of dicts, as eigen2 wrote them: read and written one transition at a time.

The content, plain or gzip (determined by the first two bytes)::

    {"capacity": int,
     "buffer": deque of {"state": array, "action": array, "reward": float, "next_state": array, "done": bool}}

`pickle.load` would need 187 GB of memory, and would run whatever a file asks for. Here a file of any size is
read within 60 MB beside the current transition, and can build only numbers and arrays. `import_legacy` makes
a lake of such a file, `export_legacy` such a file of a lake.
"""

from __future__ import annotations

import gzip
import os
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakepond import untrusted
from lakepond.adapters.episodes import Imported, Progress, batches, recording, totals
from lakepond.adapters.legacy_source import LegacyPickleError, ReplayFile
from lakepond.adapters.legacy_unpickler import DTYPES, MAX_ARRAY_BYTES, Transition, Unpickler
from lakepond.adapters.staging import refuse_existing
from lakepond.errors import SpecError
from lakepond.lake.files import write_path
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.types import Array, Field, Spec

__all__ = [
    "LegacyPickleError",
    "Transition",
    "Written",
    "export_legacy",
    "import_legacy",
    "legacy_capacity",
    "read_legacy",
    "write_legacy",
]

GZIP_LEVEL = 6
PathLike = str | os.PathLike[str]


class Written(NamedTuple):
    """What `write_legacy` wrote."""

    transitions: int
    file_bytes: int


def read_legacy(path: PathLike, *, progress: Progress | None = None) -> Iterator[Transition]:
    """Yield each transition of a replay file, oldest first; its arrays belong to the caller.

    `progress(done, total)` counts bytes of the file. A damaged, incomplete or hostile file raises
    `LegacyPickleError`, at the latest at its end; all transitions before that are correct.
    """
    progress = progress or (lambda done, total: None)
    with closing(Unpickler(ReplayFile(path))) as unpickler:
        source = unpickler.source
        for transition in unpickler.transitions():
            yield transition
            progress(source.position(), source.size)
        progress(source.size, source.size)


def legacy_capacity(path: PathLike) -> int:
    """The capacity in a replay file; it comes first, so only the beginning is read."""
    with closing(Unpickler(ReplayFile(path))) as unpickler:
        return unpickler.capacity()


def import_legacy(path: PathLike, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import every transition of a pickle, uncompressed or gzip, to a new lake; `progress` counts its bytes.

    The file does not distinguish agents, so all transitions belong to one stream; it is cut where a
    transition does not continue the one before it. The file's capacity is noted in the commit, so that it
    can be written back. An import that fails or is killed leaves nothing at `lake`.
    """
    refuse_existing(lake)
    capacity = legacy_capacity(path)
    transitions = read_legacy(path, progress=progress)
    first = next(transitions, None)
    if first is None:
        raise SpecError(f"{os.fspath(path)} holds no transition; there is nothing to import.")
    action = np.asarray(first.action)
    spec = Spec(Field(first.state.shape, first.state.dtype), Field(action.shape, action.dtype))
    before: Array | None = None
    episodes = 0
    with recording(lake, spec) as replay:
        for old in chain([first], transitions):
            with untrusted.blaming(path, LegacyPickleError, "restore it"):
                action, reward, done = np.asarray(old.action), np.float32(old.reward), bool(old.done)
                if np.shape(old.state) != np.shape(old.next_state) or np.shape(reward):
                    raise ValueError("a transition whose states or reward have another shape")
            if before is None or before.tobytes() != old.state.tobytes():
                if before is not None:
                    replay.cut(0)
                episodes += 1
            replay.record(
                obs=old.state,
                action=action,
                reward=reward,
                next_obs=old.next_state,
                terminated=done,
                truncated=False,
                stream=0,
            )
            before = None if done else old.next_state
        return totals(replay, episodes, capacity=capacity)


def export_legacy(
    lake: Lake, path: str | Path, *, compress: bool = True, progress: Progress | None = None
) -> Written:
    """The live steps of a lake as a file that `pickle.load` in the old project reads; counts steps.

    It knows one state array, one action array and `done`: what was truncated is not done there. Extras and
    streams are not written.
    """
    for name in ("obs", "action"):
        if not isinstance(getattr(lake.spec, name), Field):
            raise SpecError(f"this pickle has one array as {name}; export the lake in another format.")
    if on_disk(path).exists():
        raise SpecError(f"{path} already exists; name another file.")
    capacity = max(int(lake.commit.note.get("capacity", 0)), len(lake))
    return write_legacy(path, _transitions(lake, progress), capacity=capacity, compress=compress)


def _transitions(lake: Lake, progress: Progress | None) -> Iterator[Transition]:
    for batch in batches(lake, progress):
        for k in range(len(batch.reward)):
            reward, done = float(batch.reward[k]), bool(batch.terminated[k])
            yield Transition(batch.obs[k], batch.action[k], reward, batch.next_obs[k], done)


def write_legacy(
    path: PathLike, transitions: Iterable[Transition], *, capacity: int, compress: bool = True
) -> Written:
    """Write transitions so that `pickle.load` reads them as a deque of dicts, one at a time; atomic."""
    if isinstance(capacity, bool) or capacity < 0:
        raise LegacyPickleError(f"a capacity of {capacity} is not a number of transitions")
    stream = _Streamed(transitions, capacity)

    def write(temporary: Path) -> None:
        with open(temporary, "wb") as raw:
            packed = gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) if compress else nullcontext(raw)
            with packed as out:
                Pickler(out, 4).dump({"capacity": capacity, "buffer": stream})

    write_path(on_disk(path), write)
    return Written(stream.count, os.stat(path).st_size)


class _Streamed:
    """Pickled as the deque of the transitions that it iterates over."""

    def __init__(self, transitions: Iterable[Transition], capacity: int) -> None:
        self.count = 0
        self._transitions, self._capacity = transitions, capacity

    def __reduce__(self) -> Any:
        return deque, ((), self._capacity), None, self._dicts()

    def _dicts(self) -> Iterator[dict[str, Any]]:
        for transition in self._transitions:
            if self.count == self._capacity:
                raise LegacyPickleError(
                    f"there are more transitions than the capacity of {self._capacity}, so loading the file"
                    " would drop the oldest; write the newest, or set a larger capacity"
                )
            fields = dict(zip(Transition._fields, transition, strict=True))
            for key, value in fields.items():
                _check(value, f"{key} of transition {self.count}")
            yield fields
            self.count += 1


def _check(value: Any, name: str) -> None:
    """Refuse what `read_legacy` would refuse."""
    if not isinstance(value, np.ndarray | np.generic | bool | int | float):
        raise LegacyPickleError(f"{name} is a {type(value).__name__}, neither an array nor a number")
    array = np.asarray(value)
    if array.dtype.str[1:] not in DTYPES:
        raise LegacyPickleError(f"{name} has dtype {array.dtype}; only numbers and bools can be written")
    if array.nbytes > MAX_ARRAY_BYTES:
        raise LegacyPickleError(f"{name} has {array.nbytes} bytes, more than the {MAX_ARRAY_BYTES} we read")


PythonPickler: Any = pickle._Pickler


class Pickler(PythonPickler):  # type: ignore[misc]
    """Numbers only keys, names and dtypes, so that no transition stays in memory.

    Uses the module names that NumPy 1 and 2 both know.
    """

    _BATCHSIZE = 1

    def memoize(self, obj: Any) -> None:
        """Number what occurs in every transition and nothing else."""
        key = isinstance(obj, str) and obj in Transition._fields
        if key or callable(obj) or (isinstance(obj, np.dtype) and obj.isbuiltin == 1):
            super().memoize(obj)

    def save_global(self, obj: Any, name: str | None = None) -> None:
        """Write `numpy._core`, the name in NumPy 2, as `numpy.core`."""
        if not obj.__module__.startswith("numpy._core."):
            super().save_global(obj, name)
            return
        self.save(obj.__module__.replace("numpy._core.", "numpy.core."))
        self.save(obj.__name__)
        self.write(pickle.STACK_GLOBAL)
        self.memoize(obj)
