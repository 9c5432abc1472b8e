"""Checkpoints: folders that appear complete or not at all.

    checkpoints/
      00000011/  population.safetensors  best.safetensors  state.json
      00000012/  ...
      00000013.aside/                    being written, or left by a process that was killed

A pytree of arrays becomes one safetensors file whose names are the paths of its leaves, so torch, JAX and
NumPy read it alike. It is written and read one array at a time: beyond the arrays themselves, saving takes
memory for one of them at most, on a CPU for none.

`state.json` holds the caller's own counters and the size and SHA-256 of each file. It is strict JSON: a
number that is not finite is written as the string "NaN", "Infinity" or "-Infinity", and these three strings
are numbers again when the state is read.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakepond import untrusted
from lakepond.errors import RunCorrupt, RunError, RunMismatch, RunNotFound
from lakepond.formats import ranges
from lakepond.lake.files import TEMPORARY_SUFFIX, make_folders, sync_folder
from lakepond.lake.format.sealed import NOT_FINITE, check_levels, strict

STATE = "state.json"
RETIRED = frozenset({"pond.span", "pond.rows"})
"""leaves that earlier versions saved; they are skipped where they are no longer needed"""
DTYPES = {
    **{"BOOL": "bool", "C64": "complex64", "BF16": "bfloat16", "F16": "float16", "F32": "float32"},
    **{"F64": "float64", "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64"},
    **{"U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64"},
}
"""the dtypes of arrays, by their names in safetensors"""
DROPPED = ".dropped"
"""suffix of checkpoints later than the one that a run was resumed from"""


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, its arrays read and checked."""

    number: int
    folder: Path
    state: dict[str, Any]
    """what the trainer noted: counters, random keys, the lake's commit"""
    arrays: dict[str, Any]
    """the requested pytrees, by name"""


class Checkpoints:
    """The folder `checkpoints/` of a run."""

    def __init__(self, folder: Path, *, keep_last: int = 3, keep_every: int = 0) -> None:
        self.folder = folder
        self._keep_last = keep_last
        self._keep_every = keep_every

    def numbers(self) -> list[int]:
        """Numbers of the complete checkpoints, in order; `load` checks their bytes."""
        names = (path.parent.name for path in self.folder.glob(f"[0-9]*/{STATE}"))
        return sorted(int(name) for name in names if name.isdecimal())

    def save(self, number: int, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> Path:
        """Write checkpoint `number`, durable when this returns; then delete those no longer kept."""
        check_levels(state, "the state of a checkpoint")
        make_folders(self.folder)
        home = self._home(number)
        temporary = home.with_suffix(TEMPORARY_SUFFIX)
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            _fill(temporary, number, arrays, state)
        except BaseException:  # for example, a full disk: it needs the space
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        if home.exists():  # the same number again, after resuming from an earlier checkpoint
            self._drop(home)
        temporary.rename(home)
        sync_folder(self.folder)
        self._delete_old()
        return home

    def load(self, number: int | None, like: Mapping[str, Any]) -> Checkpoint:
        """Checkpoint `number`, or the newest intact one; `like` gives the shape of each pytree to be read."""
        known = self.numbers()
        if number is not None:
            if number not in known:
                raise RunNotFound(f"{self.folder} has no checkpoint {number}; it has {ranges(known)}.")
            return self._read(number, like)
        for candidate in reversed(known):
            try:
                return self._read(candidate, like)
            except RunCorrupt as broken:
                warnings.warn(f"{broken} Reading the checkpoint before it.", RuntimeWarning, stacklevel=3)
        raise RunNotFound(
            f"{self.folder} has no intact checkpoint (it has {ranges(known)}); train the run to create one."
        )

    def state(self, number: int) -> dict[str, Any]:
        """What the trainer noted in checkpoint `number`, without reading any array."""
        return dict(self._read_state(number)["state"])

    def drop_after(self, number: int) -> None:
        """Rename the checkpoints later than `number` to `*.dropped`, durably and the newest first."""
        for later in reversed(self.numbers()):
            if later > number:
                self._drop(self._home(later))
        if self.folder.is_dir():
            sync_folder(self.folder)
            for left in self.folder.glob(f"*{TEMPORARY_SUFFIX}"):
                shutil.rmtree(left)

    def _read(self, number: int, like: Mapping[str, Any]) -> Checkpoint:
        state = self._read_state(number)
        home = self._home(number)
        arrays = {}
        for name, tree in like.items():
            file = f"{name}.safetensors"
            if file not in state["files"]:
                raise RunNotFound(f"{home} has no {file}; it has {', '.join(state['files'])}.")
            noted, path = state["files"][file], home / file
            try:
                with path.open("rb") as opened:
                    size = os.fstat(opened.fileno()).st_size
                    if size != noted["bytes"]:
                        raise RunCorrupt(f"{path} has {size:,} bytes, but {noted['bytes']:,} were written.")
                    if hashlib.file_digest(opened, "sha256").hexdigest() != noted["sha256"]:
                        raise RunCorrupt(f"{path} is damaged (its SHA-256 does not match).")
            except FileNotFoundError:
                raise RunCorrupt(f"{path} is missing.") from None
            arrays[name] = _read_arrays(path, tree)
        return Checkpoint(number, home, dict(state["state"]), arrays)

    def _read_state(self, number: int) -> dict[str, Any]:
        path = self._home(number) / STATE
        with untrusted.blaming(path, RunCorrupt, "resume from another checkpoint"):
            state = untrusted.read_json(path)
            if not isinstance(state["state"], dict) or not isinstance(state["files"], dict):
                raise TypeError("it has no state and no files")
            for noted in state["files"].values():
                if type(noted["bytes"]) is not int or not isinstance(noted["sha256"], str):
                    raise TypeError("it lacks the size or the SHA-256 of a file")
            return {**state, "state": untrusted.with_fresh_stack(lambda: _with_numbers(state["state"]))}

    def _home(self, number: int) -> Path:
        return self.folder / f"{number:08d}"

    def _drop(self, home: Path) -> None:
        dropped = home.with_suffix(DROPPED)
        shutil.rmtree(dropped, ignore_errors=True)
        home.rename(dropped)

    def _delete_old(self) -> None:
        """Delete what `keep_last` and `keep_every` do not keep; checkpoint 0 is kept by `keep_last` alone."""
        known = self.numbers()
        for number in known[: -self._keep_last] if self._keep_last else []:
            if not (number and self._keep_every and number % self._keep_every == 0):
                unneeded = self._home(number).with_suffix(TEMPORARY_SUFFIX)
                shutil.rmtree(unneeded, ignore_errors=True)
                self._home(number).rename(unneeded)  # or a kill leaves a checkpoint without its arrays
                shutil.rmtree(unneeded)


def _fill(folder: Path, number: int, arrays: Mapping[str, Any], state: Mapping[str, Any]) -> None:
    """Write the files of a checkpoint to a new folder, durably."""
    folder.mkdir()
    files = {}
    for name, tree in arrays.items():
        file = f"{name}.safetensors"
        files[file] = _write(folder / file, _serialised(tree))
    about = {"number": number, "state": dict(state), "files": files}
    _write(folder / STATE, [strict(about, indent=1)])
    sync_folder(folder)


def _with_numbers(value: Any) -> Any:
    """A value from JSON with numbers in place of the strings that stand for those that are not finite."""
    if isinstance(value, dict):
        return {name: _with_numbers(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_numbers(each) for each in value]
    return float(value) if isinstance(value, str) and value in NOT_FINITE else value


def _write(path: Path, parts: Iterable[bytes | memoryview]) -> dict[str, Any]:
    """Write a new file, durably; returns its size and SHA-256."""
    sha256, size = hashlib.sha256(), 0
    with path.open("xb") as file:
        for part in parts:
            sha256.update(part)
            size += file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return {"bytes": size, "sha256": sha256.hexdigest()}


def _named_leaves(tree: Any) -> tuple[list[str], list[Any], Any]:
    import jax

    pairs, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") or "array" for path, _ in pairs]
    return names, [leaf for _, leaf in pairs], structure


def _serialised(tree: Any) -> Iterator[bytes | memoryview]:
    """A pytree as the parts of a safetensors file: the header, and the bytes of each array."""
    import numpy as np

    names, leaves, _ = _named_leaves(tree)
    codes = {name: code for code, name in DTYPES.items()}
    arrays: dict[str, Any] = {}
    for name, leaf in zip(names, leaves, strict=True):
        if name in arrays:
            raise RunError(f"two arrays of a checkpoint have the name {name!r}; rename one of them.")
        if _dtype(leaf).name not in codes:
            raise RunError(
                f"a checkpoint cannot hold {name}, which is {_dtype(leaf)}; save it as float32, say."
            )
        arrays[name] = leaf
    header: dict[str, Any] = {}
    stop = 0
    # the largest items first, so that each array starts at a multiple of its items' size
    for name in sorted(arrays, key=lambda name: (-_dtype(arrays[name]).itemsize, name)):
        start, shape = stop, np.shape(arrays[name])
        stop += math.prod(shape) * _dtype(arrays[name]).itemsize
        dtype = codes[_dtype(arrays[name]).name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in header:
        values = np.asarray(arrays[name], _dtype(arrays[name]).newbyteorder("="), order="C")
        yield values.reshape(-1).view(np.uint8).data


def _read_arrays(path: Path, like: Any) -> Any:
    """The arrays of a safetensors file in the form of `like`, each read into memory of its own."""
    import jax
    import numpy as np
    from safetensors import safe_open

    names, leaves, structure = _named_leaves(like)
    with (
        untrusted.blaming(path, RunCorrupt, "resume from another checkpoint"),
        safe_open(path, "numpy") as file,
    ):
        known = set(file.keys())
        if odd := sorted(set(names) ^ (known - (RETIRED - set(names)))):
            raise RunMismatch(
                f"{path} was saved by a different network: {odd[0]} and {len(odd) - 1} other arrays do not "
                "occur in both. Resume with the settings of config.json."
            )
        for name, leaf in zip(names, leaves, strict=True):
            saved = file.get_slice(name)
            for what, found, needed in (
                ("shape", tuple(saved.get_shape()), np.shape(leaf)),
                ("dtype", np.dtype(DTYPES[saved.get_dtype()]), _dtype(leaf).newbyteorder("=")),
            ):
                if found != needed:
                    raise RunMismatch(
                        f"{path}: {name} has {what} {found}, these settings need {needed}. "
                        "Resume with the settings of config.json."
                    )
        return jax.tree_util.tree_unflatten(structure, [file.get_tensor(name) for name in names])


def _dtype(leaf: Any) -> Any:
    """The NumPy dtype of an array, without copying it from its device."""
    import numpy as np

    return np.dtype(getattr(leaf, "dtype", None) or np.asarray(leaf).dtype)
