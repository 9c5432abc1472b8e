"""Replay: record steps and sample batches, in memory or backed by a lake on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

import numpy as np
import numpy.typing as npt

from lakepond.errors import SampleError, SpecError, TooFewSteps, UnknownStream
from lakepond.flow.agents_to_pond import MISSING, Intake, as_array, check_length, joins_of, stream_numbers
from lakepond.flow.persistence import MERGE_AFTER, Persistent
from lakepond.formats import parse_seconds
from lakepond.paths import lake_folder
from lakepond.pond import Pond
from lakepond.pond.direct import DirectAppend
from lakepond.pond.hints import hints
from lakepond.sampling.arguments import check_count, check_generator, check_number
from lakepond.sampling.links import DERIVE
from lakepond.sampling.priorities import MOST_WEIGHT
from lakepond.types import Array, Spec, Stats, Tree, leaves

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud
    from lakepond.followed import FollowedReplay
    from lakepond.lake.format.commits import Start
    from lakepond.lake.read.lake import Lake


class Replay(Persistent):
    """A replay buffer with the newest `capacity` steps, which stores each distinct row once.

    Supports uniform, prioritised, n-step and sequence sampling. Thread-safe: threads may record and sample at
    the same time, and a batch never contains a partly written step.

    A replay can be pickled and deep-copied. In memory, the copy contains all steps, ids, links, priorities
    and the state of the generator. A replay with a lake commits its new steps and is pickled as the path and
    the number of that commit; the copy can be sampled, in any process, but recording to it raises
    `LakeReadOnly`. Files that have left this disk (`local_budget`) are downloaded for it, with credentials of
    the environment: a copy contains the URL of the cloud and no other settings.
    """

    def __init__(
        self,
        spec: Spec,
        capacity: int,
        *,
        alpha: float | None = None,
        threads: int = 2,
        seed: int | None = None,
        cast: bool = False,
    ) -> None:
        """Create a replay in memory.

        spec: the fields of one step. capacity: maximum number of steps; a full replay evicts the oldest.
        alpha: sample in proportion to priority ** alpha; None: uniformly, without priorities.
        threads: number of threads that copy a large batch, 1 or 2.
        seed: seed of the generator that `sample` uses by default; None: seeded by the system.
        cast: convert observations of another float dtype, such as float64, to the dtype of the spec. By
        default they raise `RecordError`, because a conversion changes the stored bytes.

        Raises `SpecError` if an argument is invalid or the machine has too little memory.
        """
        _check(spec, capacity, alpha)
        self.spec = spec
        alpha = None if alpha is None else float(alpha)  # may be a NumPy scalar
        super().__init__(Pond(spec, int(capacity), alpha=alpha), threads, seed)
        self._intake = Intake(spec, cast=cast)
        self._options = {"cast": cast}
        self._direct = DirectAppend.of(self._pond)

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
        seed: int | None = None,
        cast: bool = False,
        codec: str = "zstd",
        max_steps: int | None = None,
        keep_last: int | None = None,
        keep_every: int | None = None,
        merge_after: int | None = MERGE_AFTER,
        min_free: int | str = 0,
        cloud: str | Cloud | None = None,
        pull: Literal["lazy", "all"] | None = None,
        local_budget: int | str | None = None,
        push_every: float | str | None = None,
        writer: str = "",
    ) -> Self:
        """Open a replay that stores all of its steps in a lake at `path`; create the lake or resume from it.

        Resuming loads the newest `capacity` steps with their priorities. Step ids, streams, links and the
        replay's generator continue, so batches are the same as without the interruption.

        spec: the fields of one step. Optional if the lake exists; it must then equal the spec of the lake.
        capacity: steps in memory. alpha, threads, cast: as in `Replay`. seed: used for a new lake only.
        commit: resume from the commit with this number; default: the newest intact one.
        codec: "zstd", or "none" for uncompressed rows.
        max_steps: maximum number of live steps in the lake, at least `capacity`; the oldest are dropped.
        keep_last, keep_every: keep the newest `keep_last` commits and every `keep_every`-th; default: all.
        merge_after: merge small files in the background once there are this many; None: never.
        min_free: bytes that must stay free on the disk, as a number or text ("20GB"); with less free space
        a commit raises `LakeFull`.
        cloud: URL that `push` uploads to ("gs://bucket/demo"). Any number of machines may push to one URL,
        each under a `writer` name; only one of them may be without a name.
        pull: resume from the lake in the cloud, if it exists, and download its segments when they are read
        ("lazy") or immediately ("all").
        local_budget: maximum bytes of segments on this disk ("20GB"). Uploaded segments beyond it are deleted
        locally and downloaded again when they are read.
        push_every: commit and push new steps in the background, at most this far behind: seconds, or text
        like "5s" or "2min". Errors are logged and retried, and never stop recording.
        writer: name of this writer if several processes or machines write the same lake. Each writer has its
        own steps, commits and lock; `Lake.open` reads them together. With a cloud, a named writer continues
        its chain in the bucket as long as it has its disk; with a new disk it starts another one.

        Raises `LakeLocked` if this or another process already writes the lake under that name, `LakeCorrupt`
        if no commit is intact, and `SpecError` if arguments are invalid or contradict each other.
        """
        from lakepond.flow import pond_and_lake
        from lakepond.lake.format.commits import Start
        from lakepond.lake.write.disk_guard import parse_bytes
        from lakepond.lake.write.retention import check_kept
        from lakepond.lake.write.writer import LakeWriter

        path = lake_folder(path)
        _check(spec, capacity, alpha, needs_spec=False)
        if max_steps is not None and max_steps < capacity:
            raise SpecError(f"max_steps={max_steps:,} must be at least the capacity of {capacity:,} steps.")
        check_kept(keep_last, keep_every)
        seconds = None if push_every is None else parse_seconds(push_every)
        if seconds is not None and cloud is None:
            raise SpecError("push_every needs a cloud; pass its URL, like cloud='gs://bucket/demo'.")
        number = None if isinstance(commit, Start) else commit
        copy = pond_and_lake.cloud_copy(path, spec, cloud, pull, local_budget, number, writer)
        spec = pond_and_lake.find_or_make(path, spec, None if copy is None else copy.cloud)
        replay = cls(spec, capacity, alpha=alpha, threads=threads, seed=seed, cast=cast)
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
            files=None if copy is None else copy.segments,
        )
        replay._outflow = pond_and_lake.continue_lake(replay._pond, lake_writer, commit, copy, replay._rng)
        replay._cloud = copy
        if seconds is not None:
            replay._outflow.push_every(seconds)
        return replay

    @classmethod
    def open_saved(cls, path: str | Path, capacity: int, *, alpha: float | None = None) -> Self:
        """Open a replay written by `save` or `snapshot` and resume recording; `save` to the same path works.

        capacity: steps in memory. alpha: as in `Replay`. Raises `SpecError` if `path` is not a saved replay.
        """
        from lakepond.flow.pond_and_lake import KEPT_SAVES, check_saved

        check_saved(path)
        replay = cls.open(path, capacity=capacity, alpha=alpha, max_steps=capacity, keep_last=KEPT_SAVES)
        replay._on_disk().background.keeps_all = False
        return replay

    @classmethod
    def follow(
        cls,
        place: str | Path | Cloud,
        capacity: int = 50_000,
        *,
        min_steps: int = 0,
        samples_per_insert: float | None = None,
        snapshot: int | None = None,
        alpha: float | None = None,
        threads: int = 2,
        seed: int | None = None,
        poll_every: float | str = "0.5s",
        discover_every: float | str = "30s",
        cache: str | Path | None = None,
    ) -> FollowedReplay:
        """Follow a lake that others write: a replay with the newest steps of all its writers, to be sampled.

        A thread looks for new commits and appends their steps: each once, in the order of its writer. At the
        start the newest `capacity` steps are loaded; if the writers have more together, each gives an equal
        share. What takes longer than 5 s is loaded by the thread. The replay has its own step ids and
        streams. Recording to it raises `LakeReadOnly`.

        place: folder of a lake, or its URL in a bucket ("gs://bucket/run"), or a `Cloud`.
        capacity: steps in memory. alpha, threads, seed: as in `Replay`.
        min_steps, samples_per_insert: what `FollowedReplay.sample` waits for; None: no limit.
        snapshot: continue from the snapshot with that number, see `FollowedReplay.snapshot`. With the same
        capacity the replay has the same steps, ids, priorities and generator as then; a given `seed` replaces
        the generator, a given `alpha` the exponent.
        poll_every: how often each writer is asked for a new commit. discover_every: how often new writers are
        looked for. Seconds, or text like "0.5s".
        cache: folder for downloaded files, at most 4 GB; default: a temporary one. Not used for a local path.

        Raises `LakeNotFound` if the lake or the snapshot does not exist, and `SpecError` for invalid
        arguments.
        """
        from lakepond.followed import FollowedReplay

        return FollowedReplay.start(
            place,
            capacity,
            min_steps=min_steps,
            samples_per_insert=samples_per_insert,
            snapshot=snapshot,
            alpha=alpha,
            threads=threads,
            seed=seed,
            poll_every=poll_every,
            discover_every=discover_every,
            cache=cache,
        )

    # --- recording -------------------------------------------------------------------------------

    def record(
        self,
        /,
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
        """Record one step, or a batch of steps with a leading axis; return the step id, or an array of ids.

        next_obs: the observation after the action; at the end of an episode the true final observation, not
        the first one of the next episode.
        stream: the sequence that a step belongs to, usually an environment. A batch without `stream` is one
        step of each environment of a vector environment, with the streams 0, 1, ...; with an integer it is
        consecutive steps of that stream; with an array, each step has its own stream.
        follows_previous: whether a step continues the previous step of its stream, for n-step returns and
        sequences. By default it does if its `obs` equals that step's `next_obs` byte for byte. Pass it if the
        two differ, for example because observations are normalised while they are recorded.
        extras: the extra fields of the spec.

        All arrays are copied before the call returns. Thread-safe. Raises `RecordError`, and records nothing,
        if a value does not match the spec; `ReplayClosed` after `close()`.
        """
        if self._refused is not None:
            self._check_open()
        pond, direct, outflow = self._pond, self._direct, self._outflow
        if direct is not None and follows_previous is None and outflow is None and not extras:
            with pond.lock:
                found = direct.append(obs, next_obs, action, reward, terminated, truncated, stream)
            if found is not None:
                if pond.saw_nan and not self._warned:
                    self._warn_of_nan()
                return found
        intake = self._intake
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
                streams, checked, batched = intake.check(values, stream)
                check_length(join, len(streams))
                first = pond.append(streams, checked, join=join)
                if direct is not None and batched:
                    direct.expect(streams, stream, without_stream=intake.unchecked == 0)
        if pond.saw_nan and not self._warned:
            self._warn_of_nan()
        return np.arange(first, first + len(streams)) if batched else first

    add = record

    def fill_from(self, lake: Lake, count: int, *, rng: np.random.Generator) -> None:
        """Append exactly `count` live steps of a lake, drawn uniformly without replacement, in random order.

        The lake is read once, sequentially. The appended steps are not linked: n-step returns and sequences
        do not span them, also after `save` and `open_saved`. Raises `TooFewSteps` if the lake has fewer
        steps, and `SpecError` if its spec differs, if `count` exceeds the capacity, or if this replay has a
        lake of its own.
        """
        from lakepond.flow import lake_to_pond
        from lakepond.lake.read.lake import Lake

        self._check_open()
        if not isinstance(lake, Lake):
            raise SpecError(f"fill_from takes a lake, not {type(lake).__name__}; pass lp.Lake.open(path).")
        check_generator(rng)
        check_count("count", count)
        if count > len(lake):
            raise TooFewSteps(f"{count:,} steps were requested, but {lake.path} has {len(lake):,}.")
        if lake.spec != self.spec:
            raise SpecError(
                f"{lake.path} and the replay have different specs ({self.spec.differences(lake.spec)}); fill "
                "from a lake with the same spec."
            )
        if list(leaves(lake.spec.obs)) != list(leaves(self.spec.obs)):
            raise SpecError(
                f"{lake.path} has the observations of the replay in another order; create the replay with "
                "the spec of the lake: Replay(lake.spec, capacity)."
            )
        if self._outflow is not None:
            raise SpecError("fill needs a replay in memory, but this one writes a lake of its own.")
        if count > self.capacity:
            raise SpecError(f"{count:,} steps exceed the capacity of {self.capacity:,}; request fewer.")
        lake_to_pond.fill(lake, self._pond, lake_to_pond.draw(lake, count, rng), rng)

    def update_priorities(self, step_id: npt.ArrayLike, priority: npt.ArrayLike) -> None:
        """Set the priorities of steps, usually to their absolute TD errors; evicted steps are ignored.

        step_id, priority: arrays of the same shape. Thread-safe. Raises `SampleError` if a priority is
        negative or not finite, if a step was never recorded, or if the replay was created without `alpha`.
        """
        pond = self._pond
        if pond.priorities is None:
            raise SampleError("this replay has no priorities; create it with Replay(..., alpha=0.6).")
        ids = as_array("step_id", step_id)
        values = np.asarray(as_array("priority", priority), np.float64)
        if ids.shape != values.shape or ids.dtype.kind not in "iu":
            raise SampleError(
                f"update_priorities takes one priority for each step id, but got {ids.dtype.name}"
                f"{list(ids.shape)} and {list(values.shape)}."
            )
        ids, values = ids.reshape(-1), values.reshape(-1)
        largest = values.max(initial=0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.asarray(pond.priorities.weight_of(values))
        if not (values.min(initial=0.0) >= 0 and largest < np.inf and weights.max(initial=0.0) < MOST_WEIGHT):
            raise SampleError(
                f"priorities must be finite, at least 0 and, to the power of alpha, below {MOST_WEIGHT:g}; "
                "pass the absolute TD error."
            )
        with pond.reading():
            for step in (ids.min(), ids.max()) if len(ids) else ():
                if not 0 <= step < pond.recorded:
                    raise SampleError(f"step {step} was never recorded; the newest is {pond.recorded - 1}.")
            pond.update()
            live = ids >= pond.oldest
            if not live.all():
                ids, weights, largest = ids[live], weights[live], values[live].max(initial=0.0)
            pond.priorities.update(pond.places(ids.astype(np.int64)), weights, float(largest))

    def clear(self) -> None:
        """Remove all steps and free their memory; step ids continue.

        With the lake of `Replay.open`, they are committed first and stay there; from the next commit on,
        `Replay.open` does not load them. After `save`, the next save does not contain them.
        """
        outflow = self._outflow
        if outflow is None:
            self._pond.clear()
            return
        with outflow.lock:
            outflow.commit_the_rest()
            self._pond.clear()

    def cut(self, stream: int | Array) -> None:
        """Start a new episode with the next step of these streams, although the last step did not end one.

        Use it after resetting an environment in the middle of an episode; see also `end`. It is not needed if
        the next `obs` differs from the last `next_obs` of its stream: such a step always starts an episode.
        Raises `RecordError` if one is not a valid stream.
        """
        self._pond.cut(stream_numbers(stream, np.size(stream)) if np.size(stream) else [])

    # --- ends of episodes ------------------------------------------------------------------------

    def end(self, stream: int, *, terminated: bool = False, truncated: bool = True) -> int:
        """Mark the newest step of a stream as the end of its episode; return its id.

        Use it when an environment is lost or reset in the middle of an episode. A step that already ends an
        episode is not changed. If the step is already in a lake, the next commit updates its flags there.
        Raises `UnknownStream` if no step of that stream is in memory, or if its newest one is from
        `fill_from`; `RecordError` if `stream` is not a valid stream.
        """
        place = self._pond if self._outflow is None else self._outflow
        (stream,) = stream_numbers(stream, 1)
        step = place.end(stream, terminated=terminated, truncated=truncated)
        if step < 0:
            raise UnknownStream(f"no live step was recorded to stream {stream}.")
        return step

    # --- content and counts -----------------------------------------------------------------------

    def __len__(self) -> int:
        return self._pond.size

    @property
    def recorded(self) -> int:
        """Number of steps ever recorded, which is the id of the next step."""
        return self._pond.recorded

    @property
    def oldest(self) -> int:
        """Id of the oldest live step."""
        return self._pond.oldest

    @property
    def capacity(self) -> int:
        """Maximum number of steps; a full replay evicts the oldest."""
        return self._pond.capacity

    def stats(self) -> Stats:
        """Return counts of steps and rows, memory in bytes, row layouts and hints how to save memory."""
        pond = self._pond
        with pond.reading():
            pond.evict()
            return Stats(
                steps=pond.size,
                capacity=pond.capacity,
                recorded=pond.recorded,
                streams=len(pond.streams),
                rows=sum(leaf.store.rows for leaf in pond.leaves if leaf.store is not None),
                bytes_held=pond.nbytes,
                bytes_plain=pond.size * self.spec.step_nbytes,
                layout={leaf.path: leaf.layout for leaf in pond.leaves},
                hints=hints(pond),
                background_failures=self._background_failures(),
            )

    def __repr__(self) -> str:
        return f"Replay({self.stats()})"


def _check(spec: object, capacity: object, alpha: object, *, needs_spec: bool = True) -> None:
    """Refuse invalid arguments of a replay, before anything is created."""
    if not isinstance(spec, Spec) and (needs_spec or spec is not None):
        raise SpecError(f"Replay needs a Spec, not {type(spec).__name__}; see Spec.from_spaces.")
    check_count("capacity", capacity, SpecError)
    if alpha is not None:
        check_number("alpha", alpha, refuse=SpecError)
