"""Replay: record steps, sample batches; in memory, or with a lake on disk. Each distinct row once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, overload

import numpy as np
import numpy.typing as npt

from lakepond.closing import close_after
from lakepond.errors import RecordError, ReplayClosed, SampleError, SpecError, TooFewSteps, UnknownStream
from lakepond.flow.agents_to_pond import MISSING, Intake, check_length, joins_of
from lakepond.flow.sampler import Sampler
from lakepond.pond import Pond
from lakepond.pond.links import DERIVE
from lakepond.types import STREAM_MAX, Array, Spec, Stats, Tree

MERGE_AFTER = 32
"""files of a lake that gather before they are merged, in the background"""
if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud
    from lakepond.cloud.status import UploadStatus
    from lakepond.flow.lake_and_cloud import CloudCopy
    from lakepond.flow.pond_and_lake import Outflow
    from lakepond.lake.commits import Commit, Start
    from lakepond.lake.lake import Lake


class Replay(Sampler):
    """The newest `capacity` steps, sampled in every usual way.

    One thread may record while another samples; what a batch holds is never torn.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        *,
        alpha: float | None = None,
        threads: int = 2,
        seed: int | None = None,
    ) -> None:
        """`alpha`: sample by priority ** alpha. `threads`: how many copy a large batch.

        `seed`: of the generator that `sample` uses if none is given.
        """
        if not isinstance(spec, Spec):
            raise SpecError(f"Replay needs a Spec, not {type(spec).__name__}; see Spec.from_spaces.")
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise SpecError(f"capacity must be a whole number of steps, at least 1, but is {capacity!r}.")
        if alpha is not None and not 0 <= alpha < np.inf:
            raise SpecError(f"alpha must be at least 0 (0: uniform, 1: proportional), but is {alpha!r}.")
        self.spec = spec
        super().__init__(Pond(spec, int(capacity), alpha=alpha), threads, seed)
        self._intake = Intake(spec)
        self._closed = False
        self._outflow: Outflow | None = None  # to the lake, if there is one
        self._cloud: CloudCopy | None = None

    # --- on disk -----------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        path: str | Path,
        spec: Spec | None = None,
        capacity: int = 50_000,
        *,
        commit: int | Start | None = None,
        alpha: float | None = None,
        threads: int = 2,
        codec: str = "zstd",
        max_steps: int | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        merge_after: int | None = MERGE_AFTER,
        min_free: int | str = 0,
        cloud: str | Cloud | None = None,
        pull: Literal["lazy", "all"] | None = None,
        local_budget: int | str | None = None,
        writer: str = "",
    ) -> Self:
        """A replay whose steps are kept in a lake at `path`: a new one, or one that goes on where it stopped.

        The newest steps are in memory again, with their priorities; ids and streams go on. With `commit` it
        goes on from that one. `spec` may be left out where a lake is; `codec="none"` keeps rows plain.
        `max_steps` bounds the lake, whose oldest steps then leave; `keep_last` bounds the commits that are
        kept, but for every `keep_every`-th; `merge_after` small files are merged to a larger one; with less
        than `min_free` ("20GB") on the disk nothing more is written.

        `cloud` ("gs://bucket/demo") is where `push` sends it. `pull` goes on with the lake that is there, its
        segments "lazy", when they are touched, or "all" at once; where none is, a new one begins. With
        `local_budget` ("20GB") segments that are safe in the cloud leave this disk and come back when needed.

        Several processes write one lake, each under a name of its own: `writer="worker-3"`. Each has its own
        steps, commits and lock; `Lake.open` reads them together.
        """
        from lakepond.flow import pond_and_lake
        from lakepond.lake.commits import Start
        from lakepond.lake.guard import parse_bytes
        from lakepond.lake.retention import check_kept
        from lakepond.lake.writer import LakeWriter

        path = Path(path)
        if max_steps is not None and max_steps < capacity:
            raise SpecError(f"max_steps={max_steps:,} must be at least the capacity of {capacity:,} steps.")
        check_kept(keep_last, keep_every)
        copy = pond_and_lake.cloud_copy(
            path, cloud, pull, local_budget, None if isinstance(commit, Start) else commit, writer
        )
        spec = pond_and_lake.find_or_make(path, spec)
        replay = cls(spec, capacity, alpha=alpha, threads=threads)
        lake_writer = LakeWriter(
            path,
            len(replay._pond.leaves),
            codec=codec,
            max_steps=max_steps,
            keep_last=keep_last,
            keep_every=keep_every,
            merge_after=merge_after,
            min_free=parse_bytes(min_free),
            writer=writer,
        )
        replay._outflow = pond_and_lake.go_on(replay._pond, lake_writer, commit, copy)
        replay._cloud = copy
        return replay

    @classmethod
    def open_saved(cls, path: str | Path, capacity: int, *, alpha: float | None = None) -> Self:
        """What `save` saved, to go on with."""
        from lakepond.flow.pond_and_lake import KEPT_SAVES, check_saved

        check_saved(path)
        replay = cls.open(path, capacity=capacity, alpha=alpha, max_steps=capacity, keep_last=KEPT_SAVES)
        replay._on_disk().background.keeps_all = False
        return replay

    def save(self, path: str | Path, *, codec: str = "zstd") -> Commit:
        """Save the steps that are held now to a lake of their own; saving again writes only what is new.

        Steps that leave between two saves are not kept: for all experience, `Replay.open` a lake.
        """
        from lakepond.flow.pond_and_lake import save_to

        path = Path(path)
        if self._closed:
            raise ReplayClosed("this replay is closed; load what it saved to go on.")
        if self._outflow is None:
            self._outflow = save_to(self._pond, path, codec, MERGE_AFTER)
        elif self._outflow.path.resolve() != path.resolve():
            raise SpecError(f"this replay is saved to {self._outflow.path}, not to {path}.")
        alpha = getattr(self._pond.priorities, "alpha", None)
        return self.commit({"saved": True, "capacity": self.capacity, "alpha": alpha})

    @overload
    def commit(self, note: dict[str, Any] | None = None, *, wait: Literal[True] = True) -> Commit: ...
    @overload
    def commit(self, note: dict[str, Any] | None = None, *, wait: bool) -> Commit | Future[Commit]: ...
    def commit(self, note: dict[str, Any] | None = None, *, wait: bool = True) -> Commit | Future[Commit]:
        """Make all that was recorded durable; what is new is written, nothing else.

        `note`: JSON to find it by. With `wait=False` it is handed over in milliseconds, written in the
        background, and a future is returned. What cannot be written is kept and tried again with the next.
        """
        json.dumps(note)  # refuse now what cannot be written later
        done = self._on_disk().commit(note or {})
        return done.result() if wait else done

    def flush(self) -> Commit | None:
        """Return the newest commit, if any, once all are durable; failed ones are tried again."""
        return self._on_disk().background.flush()

    def _on_disk(self) -> Outflow:
        if self._outflow is None:
            raise ReplayClosed("this replay is in memory only, or closed; Replay.open keeps one on disk.")
        return self._outflow

    # --- in the cloud ------------------------------------------------------------------------------

    def push(self, *, wait: bool = False, timeout: float = 600.0) -> UploadStatus:
        """Send all commits that the cloud does not have, each file once, in the background.

        With `wait`, returns when they are there, or after `timeout` seconds. What fails is tried again until
        it works or the process ends; training never waits and never stops for it.
        """
        cloud = self._in_cloud()
        cloud.push()
        return cloud.wait(timeout) if wait else cloud.status()

    def upload_status(self) -> UploadStatus:
        """How far the uploads are: bytes to go, lag, rate, the last error."""
        return self._in_cloud().status()

    def wait_for_uploads(self, timeout: float = 600.0) -> UploadStatus:
        """Return when all that was pushed is in the cloud, or after `timeout` seconds, with how far it is."""
        return self._in_cloud().wait(timeout)

    def lake(self, commit: int | None = None) -> Lake:
        """The lake of this replay, to read: its newest commit, or the one with that number.

        Segments that are in the cloud alone come when they are touched.
        """
        return self._on_disk().lake(commit)

    def _in_cloud(self) -> CloudCopy:
        if self._cloud is None:
            raise SpecError(
                "this replay has no cloud; give one to Replay.open(..., cloud='gs://bucket/demo')."
            )
        return self._cloud

    # --- recording -------------------------------------------------------------------------------

    def record(
        self,
        *,
        obs: Tree = MISSING,
        action: Tree = MISSING,
        reward: npt.ArrayLike = MISSING,
        next_obs: Tree = MISSING,
        terminated: npt.ArrayLike = MISSING,
        truncated: npt.ArrayLike = MISSING,
        stream: int | Array | None = None,
        follows_previous: bool | Array | None = None,
        **extras: npt.ArrayLike,
    ) -> Array | int:
        """Record one step, or a batch with a leading axis; returns the step id, or the ids.

        `next_obs` is the observation that followed, also at an episode's end: the true last one. A batch
        without `stream` is one step of each member of a vector environment, numbered from 0; with one number
        it is consecutive steps of that stream; with an array, each step names its own.
        `follows_previous`: whether a step continues the previous one of its stream, for n-step returns and
        sequences. By default it does if its obs is, byte for byte, that step's next_obs; pass it where they
        differ, because observations are normalised or augmented as they are recorded, say.
        Everything is copied: the caller may overwrite its arrays at once.
        """
        if self._closed:
            raise ReplayClosed("this replay is closed; make a new one to record more.")
        pond, intake, outflow = self._pond, self._intake, self._outflow
        values = intake.values((obs, next_obs, action, reward, terminated, truncated), extras)
        join = DERIVE if follows_previous is None else joins_of(follows_previous)
        if outflow is not None:
            with outflow.lock:  # not the pond's: what is being committed needs that
                streams, checked, batched = intake.check(values, stream)
                check_length(join, len(streams))
                outflow.make_way(len(streams))
                first = pond.append(streams, checked, join=join)
        else:
            with pond.lock:
                if (
                    pond.plain
                    and type(join) is int
                    and (stream is None or type(stream) is int)
                    and intake.is_one_step(values)
                ):
                    return self._record_one(values, 0 if stream is None else stream, join)
                streams, checked, batched = intake.check(values, stream)
                check_length(join, len(streams))
                first = pond.append(streams, checked, join=join)
        if pond.saw_nan and not self._warned:
            self._warn_of_nan()
        return np.arange(first, first + len(streams)) if batched else first

    add = record

    def _record_one(self, values: Sequence[Any], stream: int, join: int) -> int:
        """Record one step of small observations; the lock is held."""
        pond = self._pond
        if not 0 <= stream <= STREAM_MAX:
            raise RecordError(f"stream must be in [0, {STREAM_MAX}], but is {stream!r}.")
        try:
            step = pond.append_one(values, stream, join)
        except OverflowError:
            self._intake.check(values, stream)  # says which value is out of range
            raise
        if pond.saw_nan and not self._warned:
            self._warn_of_nan()
        return step

    def fill_from(self, lake: Lake, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` of a lake's live steps, every choice and every order as likely as any other.

        The lake is read once, in the order of the disk. Steps that were neighbours are so no longer: n-step
        returns and sequences do not go across them.
        """
        from lakepond.flow import lake_to_pond

        if self._closed:
            raise ReplayClosed("this replay is closed; make a new one to fill.")
        if not isinstance(rng, np.random.Generator):
            raise SampleError(f"fill takes a numpy Generator, not {rng!r}; see np.random.default_rng.")
        if not 1 <= count <= len(lake):
            raise TooFewSteps(f"{count:,} steps were asked for, but {lake.path} holds {len(lake):,}.")
        if lake.spec != self.spec:
            raise SpecError(f"{lake.path} and the replay have different specs.")
        if self._outflow is not None:
            raise SpecError(
                "fill takes a replay in memory: what is in a lake need not be poured into one again."
            )
        if count > self.capacity:
            raise SpecError(f"{count:,} steps do not fit a capacity of {self.capacity:,}; fill fewer.")
        lake_to_pond.fill(lake, self._pond, lake_to_pond.draw(lake, count, rng), rng)

    def update_priorities(self, step_id: npt.ArrayLike, priority: npt.ArrayLike) -> None:
        """Set the priority of steps, usually their absolute TD error; those that have left are ignored."""
        pond = self._pond
        if pond.priorities is None:
            raise SampleError("this replay has no priorities; make it with Replay(..., alpha=0.6).")
        ids, values = np.asarray(step_id), np.asarray(priority, np.float64)
        if ids.shape != values.shape or ids.dtype.kind not in "iu":
            raise SampleError(
                f"update_priorities takes one priority for each step id, but got {ids.dtype.name}"
                f"{list(ids.shape)} and {list(values.shape)}."
            )
        ids, values = ids.reshape(-1), values.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore"):
            finite = np.isfinite(values).all() and np.isfinite(pond.priorities.weight_of(values)).all()
        if not finite or (values < 0).any():
            raise SampleError("priorities must be finite and at least 0; pass the absolute TD error.")
        with pond.reading():
            if len(ids) and ids.max() >= pond.recorded:
                raise SampleError(f"step {ids.max()} was never recorded; the newest is {pond.recorded - 1}.")
            pond.update()
            live = ids >= pond.oldest
            if not live.all():
                ids, values = ids[live], values[live]
            pond.priorities.update(pond.places(ids.astype(np.int64)), values)

    def clear(self) -> None:
        """Forget all steps and give their memory back; ids go on counting. What is in a lake stays there."""
        outflow = self._outflow
        if outflow is None:
            self._pond.clear()
            return
        with outflow.lock:
            outflow.commit_the_rest()
            self._pond.clear()

    def cut(self, stream: int | Array) -> None:
        """Let the next step of these streams start an episode, though the last one did not end.

        For a reset in the middle of an episode. A step whose obs is not the previous next_obs of its stream
        starts an episode anyway.
        """
        self._pond.cut([int(s) for s in np.atleast_1d(np.asarray(stream))])

    # --- ends of episodes ------------------------------------------------------------------------

    def end(self, stream: int, *, terminated: bool = False, truncated: bool = True) -> int:
        """Mark the newest step of a stream as the end of its episode; returns its id.

        For an environment that was lost or reset in the middle of an episode. In memory: a step that a lake
        has committed already is not changed there.
        """
        step = self._pond.end(stream, terminated=terminated, truncated=truncated)
        if step < 0:
            raise UnknownStream(f"no live step belongs to stream {stream!r}.")
        return step

    # --- what it holds ---------------------------------------------------------------------------

    def __len__(self) -> int:
        return self._pond.size

    @property
    def recorded(self) -> int:
        """Steps ever recorded: the id of the next one."""
        return self._pond.recorded

    @property
    def oldest(self) -> int:
        """The id of the oldest step stored."""
        return self._pond.oldest

    @property
    def capacity(self) -> int:
        """The most steps it holds; when it is full, the oldest leave."""
        return self._pond.capacity

    def stats(self) -> Stats:
        """What it holds and what it takes."""
        pond = self._pond
        with pond.reading():
            return Stats(
                steps=pond.size,
                capacity=pond.capacity,
                recorded=pond.recorded,
                streams=len(pond.streams),
                rows=sum(leaf.store.rows for leaf in pond.leaves if leaf.store is not None),
                bytes_held=pond.nbytes,
                bytes_plain=pond.size * self.spec.step_nbytes,
                layout={leaf.path: leaf.layout for leaf in pond.leaves},
            )

    def close(self, *, discard: bool = False) -> None:
        """Commit the rest, release the lake and record no more; sampling still works.

        If that fails (a full disk), the replay stays open and complete: free some space and close it again,
        or give up what could not be committed with `discard`. With a cloud it is pushed, too, which is waited
        for 30 s at most, less if the cloud is away. In a forked child nothing of its parent's is touched.
        """
        if self._outflow is not None:
            self._outflow.close(discard=discard)
        self._outflow, self._closed = None, True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        close_after(error, self.close)

    def __repr__(self) -> str:
        return f"Replay({self.stats()})"


def fill(lake: Lake, replay: Replay, count: int, *, rng: np.random.Generator) -> None:
    """Append exactly `count` of a lake's live steps to a replay, every choice as likely as any other."""
    replay.fill_from(lake, count, rng=rng)
