"""FollowedReplay: the newest steps of all writers of a lake, kept up to date by a thread, to be sampled."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, overload

from lakepond.errors import LakeReadOnly, SpecError
from lakepond.flow.following import snapshots
from lakepond.flow.following.chains import chains_at
from lakepond.flow.following.follower import Follower
from lakepond.flow.following.lag import Lag, WriterLag
from lakepond.flow.following.limits import Limits
from lakepond.formats import duration, parse_seconds
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.snapshots import Snapshot
from lakepond.replay import Replay
from lakepond.sampling.arguments import check_arguments
from lakepond.types import Array, Batch

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud

SHOWN_WRITERS = 8
"""writers that an error describes"""


class FollowedReplay(Replay):
    """A replay that follows a lake which others write; made by `Replay.follow`.

    It can be sampled like any replay, and its priorities can be updated. Thread-safe. A pickled or deep copy
    has the steps of that moment and follows nothing. A forked child can sample what it has. Close it, or use
    it in a `with` block.
    """

    _follower: Follower
    _place: str

    @classmethod
    def start(
        cls,
        place: str | Path | Cloud,
        capacity: int,
        *,
        min_steps: int,
        samples_per_insert: float | None,
        snapshot: int | None,
        alpha: float | None,
        threads: int,
        seed: int | None,
        poll_every: float | str,
        discover_every: float | str,
        cache: str | Path | None,
    ) -> FollowedReplay:
        """Use `Replay.follow`."""
        if min_steps < 0 or min_steps > capacity:
            raise SpecError(
                f"min_steps={min_steps:,} must be between 0 and the capacity of {capacity:,} steps; sample() "
                "would wait indefinitely."
            )
        if samples_per_insert is not None and not samples_per_insert > 0:
            raise SpecError(f"samples_per_insert must be above 0, or None, but is {samples_per_insert!r}.")
        every = parse_seconds(poll_every), parse_seconds(discover_every)
        chains = chains_at(place, cache)
        try:
            found = None if snapshot is None else snapshots.read(chains, snapshot)
            alpha = found.alpha if alpha is None and found is not None else alpha
            replay = cls(chains.spec, capacity, alpha=alpha, threads=threads, seed=seed)
            replay._place = str(chains)
            replay._refused = (
                LakeReadOnly,
                f"this replay follows {chains} and can be sampled; record with "
                "Replay.open(..., writer='name').",
            )
            replay._direct = None
            follower = Follower(chains, replay._pond, Limits(min_steps, samples_per_insert), *every)
            if found is not None:
                snapshots.load(follower, found, replay._rng if seed is None else None)
            follower.start()
        except BaseException:
            chains.close()
            raise
        replay._follower = follower
        weakref.finalize(replay, follower.stop).atexit = False  # if it is dropped without `close`
        return replay

    # --- sampling ----------------------------------------------------------------------------------

    def sample(self, batch_size: int, *, timeout: float = 600.0, **options: Any) -> Batch:
        """Draw a batch as `Replay.sample` does, after waiting for enough steps.

        Waits until `min_steps` steps are in memory, at least one, and until the number of steps sampled so
        far is at most `samples_per_insert` times the number inserted; the batch itself may exceed that. A
        sequence of T steps counts as T samples. `batches` waits for each batch in the same way; `recent` and
        `steps` neither wait nor count.

        timeout: seconds to wait. Then it raises `SampleTimeout`, which says what is missing and what each
        writer did last. options: all other arguments of `Replay.sample`.
        """
        follower = self._follower
        check_arguments(batch_size, **options)  # before waiting
        count = batch_size * (options.get("sequence_length") or 1)
        follower.limits.wait(count, timeout, lambda: self._pond.size, self._reason)
        try:
            return super().sample(batch_size, **options)
        except BaseException:
            follower.limits.undo(count)
            raise

    def _reason(self, missing: str) -> str:
        """Why `sample` waits."""
        lag = self.lag()
        named = [each for each in lag.writers if each.writer or each.commit is not None or each.error]
        writers = named or lag.writers  # a lake of named writers only has none without a name
        parts = [_last_of(each) for each in writers[:SHOWN_WRITERS]]
        if len(writers) > SHOWN_WRITERS:
            parts.append(f"{len(writers) - SHOWN_WRITERS} more writers, see lag()")
        if lag.error:
            parts.append(f"writers could not be discovered ({lag.error})")
        what = "; ".join(parts) or "no writer has made a commit yet"
        if not self._follower.is_running:
            what += "; nothing is followed any more: it was closed, or this is a forked child"
        return f"{missing}, in {self._place}: {what}."

    # --- the lake ----------------------------------------------------------------------------------

    def lag(self) -> Lag:
        """Return, for each writer, its last commit and how far behind it this replay is; prints as a table.

        A writer counts as alive while its last commit is at most a minute old, or at most 5 times the usual
        interval between its commits.
        """
        return self._follower.lag()

    @overload
    def snapshot(self) -> Snapshot: ...
    @overload
    def snapshot(self, path: str | Path, *, codec: str = "zstd") -> Commit: ...
    def snapshot(self, path: str | Path | None = None, *, codec: str = "zstd") -> Snapshot | Commit:
        """Store what this replay has now beside the lake, under a number; durable on return.

        `Replay.follow(..., snapshot=number)` continues from it: with the same steps, ids, order, priorities
        and generator. It stores no steps, but names the commits that contain them, which are kept from then
        on: delete `snapshots/<number>.json` to release them. A checkpoint of a learner stores the number.

        With a path: write a copy of the steps to a new lake, as `Replay.snapshot` does.

        Raises `LakeNotFound` if steps in memory were already dropped from the lake by `max_steps`.
        """
        if path is not None:
            return super().snapshot(path, codec=codec)
        return snapshots.write(self._follower, self._rng)

    def close(self, *, discard: bool = False) -> None:
        """Stop following. The replay can still be sampled, as far as its limits allow."""
        self._follower.close()

    def _background_failures(self) -> int:
        return self._follower.failures

    # --- what only a writer can do -----------------------------------------------------------------

    def clear(self) -> NoReturn:
        """Not possible: raises `LakeReadOnly`."""
        self._refuse()

    def cut(self, stream: int | Array) -> NoReturn:
        """Not possible: raises `LakeReadOnly`."""
        self._refuse()

    def end(self, stream: int, *, terminated: bool = False, truncated: bool = True) -> NoReturn:
        """Not possible: raises `LakeReadOnly`."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        assert self._refused is not None
        kind, why = self._refused
        raise kind(why)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is a `Replay` with the steps of this moment, which follows nothing."""
        restore, (_, *rest) = super().__reduce__()
        return restore, (Replay, *rest)

    def __repr__(self) -> str:
        return f"FollowedReplay({self._place}: {self.stats()})"


def _last_of(each: WriterLag) -> str:
    name = each.writer or "the writer without a name"
    if each.error:
        return f"{name} could not be read ({each.error})"
    if each.commit is None or each.age is None:
        return f"{name} has made no commit"
    state = "" if each.alive else ", silent since"
    return f"{name} made commit {each.commit} {duration(each.age)} ago{state}, {each.steps:,} steps read"
