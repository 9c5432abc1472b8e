"""Lake: all experience on disk, read at one commit while its writer goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, SampleError, TooFewSteps, UnknownStream
from lakepond.lake import commits, description
from lakepond.lake.checksum import new_digest
from lakepond.lake.commits import Commit
from lakepond.lake.reader import LakeReader, LeafPart, Part
from lakepond.lake.shard import Shard
from lakepond.lake.steps import read_steps
from lakepond.types import Array, Batch, Field, Spec, Tree, leaves, rebuild

log = logging.getLogger("lakepond")
PART_STEPS = 1024
"""steps read at a time"""


@dataclass(frozen=True)
class LakeStats:
    """What a lake holds and what it takes."""

    commit: int
    steps: int
    recorded: int
    rows: int
    """distinct rows"""
    files: int
    bytes_on_disk: int
    bytes_plain: int
    """what the live steps would take plainly"""

    @property
    def ratio(self) -> float:
        """How many times smaller it is than in plain form."""
        return self.bytes_plain / self.bytes_on_disk if self.bytes_on_disk else 1.0


class Lake:
    """One commit of a lake, read-only."""

    def __init__(self, path: Path, spec: Spec, commit: Commit) -> None:
        self.path, self.spec, self.commit = path, spec, commit
        self._fields: list[tuple[str, Field]] = list(leaves(spec.obs, "obs"))
        self.reader = LakeReader(path, commit, len(self._fields))

    @classmethod
    def open(cls, path: str | Path, commit: int | None = None) -> Self:
        """The newest commit that is whole, or the one with that number."""
        path = Path(path)
        spec = description.read(path)
        folder = path / "commits"
        if commit is not None:
            if commit not in commits.numbers(folder):
                kept = commits.numbers(folder)
                raise LakeNotFound(f"{path} has no commit {commit}; it has {kept[-8:] or 'none'}.")
            found = commits.read(folder, commit)
            check_files(path, found)
            return cls(path, spec, found)
        newest = newest_whole(path)
        if newest is None:
            raise LakeNotFound(f"{path} has no commit yet; `replay.commit()` makes one.")
        return cls(path, spec, newest)

    # --- steps -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return self.commit.recorded - self.commit.oldest

    def ids(self) -> Array:
        """The ids of all live steps."""
        return np.arange(self.commit.oldest, self.commit.recorded)

    def steps(self, start: int, stop: int) -> Batch:
        """Steps [start, stop) by id."""
        if not self.commit.oldest <= start < stop <= self.commit.recorded:
            raise TooFewSteps(
                f"steps [{start}, {stop}) were asked for, commit {self.commit.number} of {self.path} holds "
                f"[{self.commit.oldest}, {self.commit.recorded})."
            )
        return self._batch(np.arange(start, stop))

    def sample(self, batch_size: int, *, rng: np.random.Generator) -> Batch:
        """Live steps at random, uniformly, with replacement."""
        if batch_size < 1 or not isinstance(rng, np.random.Generator):
            raise SampleError(
                f"sample takes a size of at least 1 and a Generator, not {batch_size!r}, {rng!r}."
            )
        if not len(self):
            raise TooFewSteps(f"{self.path} holds no step yet.")
        return self._batch(self.commit.oldest + rng.integers(len(self), size=batch_size))

    def query(self, *, stream: int | None = None, since_commit: int | None = None) -> Array:
        """The ids of live steps: of one stream, and recorded after a commit."""
        start = self.commit.oldest
        if since_commit is not None:
            start = max(start, commits.read(self.path / "commits", since_commit).recorded)
        ids = np.arange(start, self.commit.recorded)
        if stream is None or not len(ids):
            return ids
        streams = np.concatenate(
            [
                read_steps(self.path / "segments" / s.name, ["stream"], max(0, start - s.first))["stream"]
                for s in self.commit.segments
                if s.stop > start
            ]
        )
        found: Array = ids[streams == stream]
        if not len(found) and since_commit is None:
            raise UnknownStream(f"no live step of {self.path} belongs to stream {stream!r}.")
        return found

    def parts(self, ids: Array) -> Iterator[Part]:
        """Steps by sorted ids, a bounded number at a time, in the order of the disk."""
        for segment, some in self.reader.parts(ids, PART_STEPS):
            yield self.reader.read(segment, some)

    def _batch(self, ids: Array) -> Batch:
        known, inverse = np.unique(ids, return_inverse=True)
        columns: dict[str, list[Array]] = {}
        observed: list[list[list[Array]]] = [[[] for _ in self._fields] for _ in range(2)]
        for part in self.parts(known):
            for name, values in part.columns.items():
                columns.setdefault(name, []).append(values)
            for i, leaf in enumerate(part.leaves):
                for which in range(2):
                    observed[which][i].append(self.observations(i, leaf, which))
        whole = {name: np.concatenate(values)[inverse] for name, values in columns.items()}
        obs, next_obs = (
            _tree(self.spec.obs, [np.concatenate(some)[inverse] for some in both]) for both in observed
        )
        return Batch(
            obs=obs,
            action=_tree(self.spec.action, [whole[path] for path, _ in leaves(self.spec.action, "action")]),
            reward=whole["reward"],
            next_obs=next_obs,
            terminated=whole["terminated"],
            truncated=whole["truncated"],
            discount=(~whole["terminated"]).astype(np.float32),
            weight=np.ones(len(ids), np.float32),
            step_id=ids,
            stream=whole["stream"],
            extras={name: whole[name] for name in self.spec.extras},
        )

    def observations(self, i: int, leaf: LeafPart | Array, which: int) -> Array:
        """The obs (0) or next_obs (1) of a part's steps, of one leaf, as arrays."""
        field = self._fields[i][1]
        if not isinstance(leaf, LeafPart):
            return leaf[:, which]
        numbers = leaf.track[leaf.starts[:, which, None] + np.arange(leaf.layout.length)]
        known, place = np.unique(numbers, return_inverse=True)
        rows = self.reader.rows(i, known, leaf.layout.row_bytes)
        plain = rows[place.reshape(-1)].reshape(-1).view(field.dtype)
        if leaf.layout.axis == -1:
            shape = (len(numbers), field.shape[-1], *field.shape[:-1])
            return np.moveaxis(plain.reshape(shape), 1, -1)
        return plain.reshape(len(numbers), *field.shape)

    # --- the lake itself -------------------------------------------------------------------------

    def commits(self) -> list[int]:
        """The numbers of all commits that are kept, oldest first."""
        return commits.numbers(self.path / "commits")

    def verify(self) -> None:
        """Read and check every byte that this commit names; `LakeCorrupt` names the first that is wrong."""
        folder = self.path / "segments"
        with ThreadPoolExecutor(2) as pool:
            for file in self.commit.rows:
                with Shard(folder / file.name, file.shard) as shard:
                    shard.verify(pool)
        for segment in self.commit.segments:
            check_digest(folder / segment.name, segment.steps.digest)
            part = self.reader.read(segment, np.arange(segment.first, segment.stop))
            for i, leaf in enumerate(part.leaves):
                if isinstance(leaf, LeafPart):
                    self.reader.check_rows(i, leaf.track, leaf.layout.row_bytes)
        if self.commit.priorities is not None:
            digest = self.commit.priorities.digest
            check_digest(folder / f"{digest}.steps", digest)

    def stats(self) -> LakeStats:
        """What it holds and what it takes."""
        files = self.commit.files()
        return LakeStats(
            commit=self.commit.number,
            steps=len(self),
            recorded=self.commit.recorded,
            rows=sum(file.shard.rows for file in self.commit.rows),
            files=len(files),
            bytes_on_disk=sum(files.values()),
            bytes_plain=len(self) * self.spec.step_nbytes,
        )

    def close(self) -> None:
        """Close all files."""
        self.reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _tree(spec: Tree, values: list[Array]) -> Tree:
    ordered = iter(values)
    return rebuild(spec, lambda: next(ordered))


def check_files(path: Path, commit: Commit) -> None:
    """Raise `LakeCorrupt` unless every file that a commit names is there and has its size."""
    for name, size in commit.files().items():
        file = path / "segments" / name
        try:
            there = file.stat().st_size
        except FileNotFoundError:
            raise LakeCorrupt(
                f"{file}, which commit {commit.number} needs, is missing; see `repair`."
            ) from None
        if there != size:
            raise LakeCorrupt(f"{file} has {there} bytes and should have {size}; see `repair`.")


def check_digest(file: Path, digest: str) -> None:
    """Raise `LakeCorrupt` unless a file's bytes are those it is named after."""
    found = new_digest()
    with file.open("rb") as opened:
        while piece := opened.read(1 << 20):
            found.update(piece)
    if found.hexdigest() != digest:
        raise LakeCorrupt(f"{file} is not what was written: its content has another name; see `repair`.")


def newest_whole(path: Path) -> Commit | None:
    """The newest commit that verifies; steps back, and says so, over those that do not."""
    for number in reversed(commits.numbers(path / "commits")):
        try:
            commit = commits.read(path / "commits", number)
            check_files(path, commit)
        except LakeCorrupt as error:
            log.warning("stepping back over commit %d of %s: %s", number, path, error)
            continue
        return commit
    return None
