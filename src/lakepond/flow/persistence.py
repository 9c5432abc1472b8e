"""The methods of a replay that make its steps durable: commits, snapshots, uploads and pickling."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from lakepond.closing import close_after
from lakepond.errors import LakeError, LakepondError, ReplayClosed, SpecError
from lakepond.flow.sampler import Sampler
from lakepond.paths import lake_folder
from lakepond.pond import Pond
from lakepond.types import Spec

if TYPE_CHECKING:
    from lakepond.cloud.status import UploadStatus
    from lakepond.flow.lake_and_cloud import CloudCopy
    from lakepond.flow.pond_and_lake import Outflow
    from lakepond.lake.format.commits import Commit
    from lakepond.lake.read.lake import Lake

MERGE_AFTER = 32
"""number of small files of a lake after which they are merged in the background"""


class Persistent(Sampler):
    """A replay in memory, or one that writes its steps to a lake."""

    def __init__(self, pond: Pond, threads: int, seed: int | None) -> None:
        super().__init__(pond, threads, seed)
        self._threads = threads
        self._options: dict[str, Any] = {}  # further arguments that a copy is made with
        self._refused: tuple[type[LakepondError], str] | None = None  # why nothing can be recorded
        self._outflow: Outflow | None = None  # to the lake, if there is one
        self._cloud: CloudCopy | None = None

    def _background_failures(self) -> int:
        """Failed merges, deletions of files, pushes, and commits of `push_every`."""
        outflow = self._outflow
        found = 0 if outflow is None else outflow.background.background_failures + outflow.push_failures
        return found + (0 if self._cloud is None else self._cloud.failures)

    # --- on disk -----------------------------------------------------------------------------------

    def save(self, path: str | Path, *, codec: str = "zstd") -> Commit:
        """Save the live steps as a lake at `path` and return the commit, which is durable.

        Saving to the same path again writes only the steps recorded since. Steps that are evicted between two
        saves are not stored; use `Replay.open` to store all steps. `Replay.open_saved` resumes from a save.
        codec: "zstd", or "none" for uncompressed rows. Raises `SpecError` if the replay is already saved to
        another path, or if `path` contains something else.
        """
        from lakepond.flow.pond_and_lake import save_to

        path = lake_folder(path)
        self._check_open()
        if self._outflow is None:
            self._outflow = save_to(self._pond, path, codec, MERGE_AFTER, self._rng)
        elif self._outflow.path.resolve() != path.resolve():
            raise SpecError(
                f"this replay is saved to {self._outflow.path}, not to {path}; use "
                "`snapshot` to write a copy."
            )
        return self.commit(self._saved_note())

    def snapshot(self, path: str | Path, *, codec: str = "zstd") -> Commit:
        """Write the live steps to a new lake at `path` and return its only commit, which is durable.

        The replay is not bound to that path: it can have a lake of its own, and snapshots share no files.
        `Replay.open_saved` resumes from a snapshot, `Lake.open` reads it.
        codec: "zstd", or "none" for uncompressed rows. Memory: one copy of the columns, and rows in pieces of
        8 MB. Works in a forked child and on a closed replay. Raises `SpecError` if `path` already exists with
        other content.
        """
        from lakepond.flow.pond_and_lake import write_snapshot

        return write_snapshot(self._pond, lake_folder(path), codec, self._rng, self._saved_note())

    def _saved_note(self) -> dict[str, Any]:
        alpha = getattr(self._pond.priorities, "alpha", None)
        return {"saved": True, "capacity": self._pond.capacity, "alpha": alpha}

    @overload
    def commit(self, note: dict[str, Any] | None = None, *, wait: Literal[True] = True) -> Commit: ...
    @overload
    def commit(self, note: dict[str, Any] | None = None, *, wait: bool) -> Commit | Future[Commit]: ...
    def commit(self, note: dict[str, Any] | None = None, *, wait: bool = True) -> Commit | Future[Commit]:
        """Write all steps recorded since the last commit to the lake, and return the new commit.

        note: JSON-serialisable data that is stored with the commit. A number that is not finite is stored as
        the string "NaN", "Infinity" or "-Infinity", a NumPy scalar as a number and an array of up to 1,000
        values as a list; `Commit.note` has the stored form.
        wait: return when the commit is durable. With `wait=False` the call returns a future after a few
        milliseconds and the steps are written in the background. Steps that cannot be written, for example
        because the disk is full, stay in memory and are part of the next commit.

        Raises `LakeError` if the replay has no lake, `ReplayClosed` after `close()`, `SpecError` for a note
        of other types, that is nested deeper than 100 levels or that has a key that lakepond uses itself;
        with `wait`, `LakeFull` for a full disk or an exceeded quota.
        """
        from lakepond.lake.format.link_notes import stored_note

        stored = stored_note({} if note is None else note)  # raises now for what cannot be written later
        done = self._on_disk().commit(stored)
        return done.result() if wait else done

    def flush(self) -> Commit | None:
        """Wait until all commits are durable, retry failed ones, and return the newest commit, if any."""
        return self._on_disk().background.flush()

    def _on_disk(self) -> Outflow:
        if self._outflow is None:
            self._check_open()
            raise LakeError("this replay is in memory only; create it with Replay.open(path, ...).")
        return self._outflow

    def _check_open(self) -> None:
        """Raise unless steps can be recorded."""
        if self._refused is not None:
            kind, why = self._refused
            raise kind(why)

    # --- in the cloud ------------------------------------------------------------------------------

    def push(self, *, wait: bool = False, timeout: float = 600.0) -> UploadStatus:
        """Upload all commits that the cloud does not have, each file once, in the background.

        wait: return when all are uploaded, or after `timeout` seconds. Failed uploads are retried until they
        succeed or the process ends; they never block or stop recording. Raises `LakeError` if the replay was
        opened without `cloud`, or is in memory only.
        """
        cloud = self._in_cloud()
        cloud.push()
        return cloud.wait(timeout) if wait else cloud.status()

    def upload_status(self) -> UploadStatus:
        """Return the progress of uploads: pending bytes, lag, rate, last error."""
        return self._in_cloud().status()

    def wait_for_uploads(self, timeout: float = 600.0) -> UploadStatus:
        """Wait until all pushed commits are uploaded, at most `timeout` seconds; return the progress."""
        return self._in_cloud().wait(timeout)

    def lake(self, commit: int | None = None) -> Lake:
        """Open the lake of this replay for reading, at its newest commit or at the one with that number.

        Segments that are only in the cloud are downloaded when they are read.
        """
        return self._on_disk().lake(commit)

    def _in_cloud(self) -> CloudCopy:
        if self._cloud is None:
            path = self._on_disk().path
            raise LakeError(
                f"{path} was opened without a cloud; use Replay.open(path, ..., cloud='gs://bucket/demo')."
            )
        return self._cloud

    def close(self, *, discard: bool = False) -> None:
        """Commit the remaining steps and release the lake. The replay can then be sampled, not recorded to.

        If the commit fails, for example on a full disk, the replay stays open and intact: free some space and
        close it again, or pass `discard=True` to drop the uncommitted steps. With a cloud, the commit is also
        pushed, for at most 30 seconds. In a forked child, `close` does not affect the lake of the parent.
        """
        if self._outflow is not None:
            self._outflow.close(discard=discard)
        self._outflow = None
        if self._refused is None:
            self._refused = (
                ReplayClosed,
                "this replay is closed: it can be sampled, not recorded to.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        close_after(error, self.close)

    # --- copies ------------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle and deep-copy: in memory the content; with a lake its path and newest commit.

        See `Replay`. Steps that are not committed yet are committed first.
        """
        from lakepond.flow.pond_copies import content_of, lake_of
        from lakepond.sampling.generators import state_of

        pond = self._pond
        alpha = getattr(pond.priorities, "alpha", None)
        outflow = self._outflow
        content = content_of(pond) if outflow is None or not outflow.is_followed else lake_of(pond, outflow)
        with pond.reading():
            generator = state_of(self._rng)
        arguments = {"alpha": alpha, "threads": self._threads, **self._options}
        made = type(self), pond.spec, pond.capacity, arguments
        return _restored, (*made, generator, content, self._refused)

    def _restore(
        self, generator: dict[str, str], content: dict[str, Any], refused: tuple[Any, str] | None
    ) -> None:
        from lakepond.flow.pond_copies import restore
        from lakepond.sampling.generators import set_state

        set_state(self._rng, generator)
        self._refused = restore(self._pond, content) or refused
        with self._pond.reading():
            self._pond.catch_up()
        self._warned = self._pond.saw_nan  # the original has warned


def _restored(
    kind: Any,
    spec: Spec,
    capacity: int,
    arguments: dict[str, Any],
    generator: dict[str, str],
    content: dict[str, Any],
    refused: tuple[Any, str] | None,
) -> Any:
    """Rebuild a pickled replay."""
    replay = kind(spec, capacity, **arguments)
    replay._restore(generator, content, refused)
    return replay
