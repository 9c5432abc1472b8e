"""The thread that looks for new commits of all chains and appends their steps to a pond.

Each step is appended once, in the order of its chain. If reading a chain fails, `lag` reports it, the others
continue, and the thread tries again.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import CancelledError
from itertools import islice

import numpy as np

from lakepond import background, forks
from lakepond.errors import CloudNotFound, LakeCorrupt, LakeNotFound
from lakepond.flow import lake_to_pond
from lakepond.flow.following.arrivals import Arrivals, Chain, streams_of
from lakepond.flow.following.chains import Chains
from lakepond.flow.following.lag import Lag, lag_of
from lakepond.flow.following.limits import Limits
from lakepond.flow.following.positions import Position
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.link_notes import are_alone, ended_steps
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.reader import Part
from lakepond.pond import Pond
from lakepond.types import Array

log = logging.getLogger("lakepond")
GONE = (LakeCorrupt, LakeNotFound, CloudNotFound, FileNotFoundError)
"""raised if a commit, or a file of it, was deleted while it was read"""
MOST_COMMITS = 64
"""commits of a chain that are looked for in one round, so that no chain waits for another"""
LOOKING = 16
"""chains that are asked at a time"""
FETCHED_TOGETHER = 16
"""files of steps that are downloaded at a time, with their rows"""
LOAD_SECONDS = 5.0
"""how long a start loads steps before it leaves the rest to the thread"""
ROUNDS, LEAST_STEPS = 8, 256
"""the first steps of several chains are loaded in turns: this many, of at least this many steps"""
UNWATCHED_SECONDS = 12 * 3600.0
"""a chain that was not looked at for longer may have lost commits to `gc`: its newest one is looked for"""


class Follower:
    """Follows the chains of a lake; `start` begins, `close` ends it."""

    def __init__(
        self, chains: Chains, pond: Pond, limits: Limits, poll_every: float, discover_every: float
    ) -> None:
        self.chains, self.pond, self.limits = chains, pond, limits
        self._poll_every, self._discover_every = poll_every, discover_every
        self._position = None if limits.samples_per_insert is None else Position(chains.store, limits)
        self.states: dict[str, Chain] = {}
        self.arrivals = Arrivals()
        self.failures = 0
        """how often something could not be read"""
        self._next_stream = 0
        self._error: str | None = None
        self._discovered = 0.0
        self._first: Iterator[None] = iter(())
        self._stop = chains.stop
        self._thread: threading.Thread | None = None
        self.restart_in_child()
        forks.register(self)

    def restart_in_child(self) -> None:
        """A forked child has the steps and no thread: nothing is followed there."""
        self._thread = None
        self.lock = threading.Lock()
        """held while steps are appended and noted, so that a snapshot finds both or none"""

    # --- the thread --------------------------------------------------------------------------------

    def start(self) -> None:
        """Load the newest steps of all chains, then follow them on a thread.

        After `LOAD_SECONDS` the thread loads the rest.
        """
        self._discover()
        until = time.monotonic() + LOAD_SECONDS
        self._first = self._load_first()
        for _ in self._first:
            if time.monotonic() > until:
                break
        self._thread = threading.Thread(target=self._run, name="lakepond-follow", daemon=True)
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether the thread follows the lake."""
        return self._thread is not None and not self._stop.is_set()

    def stop(self) -> None:
        """Have the thread end soon."""
        self._stop.set()

    def close(self) -> None:
        """End the thread and release the lake. Can be repeated."""
        self._stop.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None
            if self._position is not None:
                self._position.close()
            self.chains.close()

    def _run(self) -> None:
        caught_up = False
        while not self._stop.is_set():
            began = time.monotonic()
            behind = False
            try:
                loading = next(self._first, self) is None
                behind = loading or self.poll()
                caught_up = caught_up or not behind
                if self._position is not None and caught_up:
                    background.run(self._position.publish, "lakepond-position", self._stop)
            except CancelledError:
                return
            except Exception as error:  # of the pool, say: each chain handles its own
                self._error = self._failed("its writers", self._error, error)
            rest = 0.0 if behind else self._poll_every - (time.monotonic() - began)
            self._stop.wait(max(rest, 0.001))

    def poll(self) -> bool:
        """Look once at every chain and append new steps; returns whether there is more to read."""
        if time.monotonic() - self._discovered >= self._discover_every:
            try:
                self._discover()
            except CancelledError:
                raise
            except Exception as error:  # those that are known are read all the same
                self._error = self._failed("its list of writers", self._error, error)
        chains = list(self.states.values())
        self._look_at(chains)
        full = [chain for chain in chains if len(chain.pending) >= MOST_COMMITS]
        for chain in chains:
            if chain.pending and not self._stop.is_set():
                self._guarded(chain)
        return any(chain.error is None for chain in full)

    def lag(self) -> Lag:
        """How far behind each writer this is."""
        now = time.monotonic()
        return Lag(tuple(lag_of(chain, now) for _, chain in sorted(self.states.items())), self._error)

    def _failed(self, what: str, known: str | None, error: Exception) -> str:
        """Count an error and log it, unless it is known already."""
        self.failures += 1
        text = f"{type(error).__name__}: {error}"
        if text != known:
            log.warning("%s: %s could not be read; trying again: %s", self.chains, what, text)
        return text

    def _guarded(self, chain: Chain, share: float = 1.0) -> None:
        try:
            self._read(chain, share)
            chain.error = None
        except CancelledError:
            raise
        except Exception as error:
            chain.error = self._failed(f"writer {chain.name!r}", chain.error, error)

    # --- looking for commits -----------------------------------------------------------------------

    def _discover(self) -> None:
        self._discovered = time.monotonic()
        found = background.run(self.chains.names, "lakepond-look", self._stop)
        with self.lock:
            for name in found:
                if name not in self.states:
                    self.states[name] = Chain(name)
        self._error = None

    def _look_at(self, chains: list[Chain]) -> None:
        for _ in background.results(self._look, chains, LOOKING, "lakepond-look", self._stop):
            pass

    def _look(self, chain: Chain) -> None:
        """Find the commits of a chain that were not read yet, up to `MOST_COMMITS`."""
        try:
            since = time.time() - chain.polled
            unwatched = chain.polled and since > UNWATCHED_SECONDS
            while len(chain.pending) < MOST_COMMITS:
                after = chain.pending[-1].number if chain.pending else chain.number
                commit = self.chains.next(chain.name, None if unwatched else after)
                if commit is None or (after is not None and commit.number <= after):
                    break
                chain.pending.append(commit)
                unwatched = False
                if 0 <= since < (chain.usual_interval or 0.0):
                    break  # no other one is expected yet; clocks of two machines are not compared
            if len(chain.pending) < MOST_COMMITS:
                chain.polled = time.time()
            chain.look_error = None
        except Exception as error:
            chain.look_error = self._failed(f"writer {chain.name!r}", chain.look_error, error)

    # --- reading steps -----------------------------------------------------------------------------

    def _load_first(self) -> Iterator[None]:
        """Load the newest steps of all chains: in equal shares if not all fit, in turns, oldest first.

        Yields after each part. After a snapshot was loaded there is nothing to share: the thread continues.
        """
        if self.pond.recorded:
            return
        chains = list(self.states.values())
        self._look_at(chains)
        new = [chain for chain in chains if chain.pending]
        room, waiting = self.pond.capacity, len(new)
        for chain in sorted(new, key=lambda chain: _live(chain.pending[-1])):
            share = min(_live(chain.pending[-1]), room // waiting)
            chain.seen = chain.pending[-1].recorded - share
            room, waiting = room - share, waiting - 1
        for turn in range(1, ROUNDS + 1):
            for chain in new:
                if chain.pending and chain.error is None:
                    self._guarded(chain, 1 / (ROUNDS + 1 - turn))
                    yield

    def _read(self, chain: Chain, share: float = 1.0) -> None:
        """Append the steps of all pending commits; with a share below 1, only that part of the first one."""
        while chain.pending:
            first = chain.pending[0]
            if chain.number is None:
                chain.seen = max(chain.seen, first.oldest, first.recorded - self.pond.capacity)
                jumped = False
            else:
                jumped = self._jumped(chain, first)
            group = _successive(chain.pending)
            complete = [commit for commit in group if commit.oldest <= chain.seen]
            commit = complete[-1] if complete else group[0]
            at = group.index(commit) + 1
            stop = commit.recorded
            if share < 1:
                stop = chain.seen + int(share * (commit.recorded - chain.seen))
                if stop - chain.seen < LEAST_STEPS:
                    return
            try:
                self._append(chain, commit, group[:at], stop, jumped)
            except GONE as error:
                if len(chain.pending) == at:
                    del chain.pending[: at - 1]  # room for a newer one, which is looked for the next time
                    raise
                log.info(
                    "%s: commit %d of writer %r is gone: %s", self.chains, commit.number, chain.name, error
                )
                stop = commit.recorded
            if stop < commit.recorded:
                return
            del chain.pending[:at]

    def _jumped(self, chain: Chain, commit: Commit) -> bool:
        """Whether commits before this one were not found. Goes back if its writer went back before it."""
        if commit.parent == chain.number or commit.number <= chain.marks[-1].named.commit:
            return False  # the newest mark: `seen` is a position in that commit, which was read in part
        back = commit.oldest  # without a parent: the writer started from scratch
        if commit.parent is not None:
            try:
                back = self.chains.commit(chain.name, commit.parent).recorded
            except GONE:
                back = self._fork(chain, commit)
        if back >= chain.seen:
            return True
        log.info(
            "%s: writer %r continues from step %d; its steps since are new ones",
            self.chains,
            chain.name,
            back,
        )
        with self.lock:
            chain.branch, chain.seen = chain.branch + 1, back
            self.cut(chain)
        return False

    def _fork(self, chain: Chain, commit: Commit) -> int:
        """The first step of a commit with another content than the one that was read; `seen` if none has."""
        name, read = chain.name, chain.marks[-1].named.commit
        try:
            with (
                self.chains.lake({name: self.chains.commit(name, read)}) as old,
                self.chains.lake({name: commit}) as new,
            ):
                start = max(old.commit.oldest, commit.oldest)
                stop = min(chain.seen, commit.recorded)

                def differs(step: int) -> bool:
                    return _content(old, step) != _content(new, step)

                if start >= stop or not differs(stop - 1):
                    return stop
                return start + bisect_left(range(start, stop), True, key=differs)
        except GONE:  # it is not known
            return commit.recorded

    def _append(self, chain: Chain, commit: Commit, group: list[Commit], stop: int, jumped: bool) -> None:
        """Append the steps of a commit from `chain.seen` to `stop`; `group`: it and those before it."""
        ends = {step: flags for each in group for step, flags in ended_steps(each).items()}
        with self.chains.lake({chain.name: commit}) as lake:
            lake_to_pond.choose_layouts(lake, self.pond)
            start = max(chain.seen, commit.oldest, commit.recorded - self.pond.capacity)
            with self.lock:
                if jumped:
                    ends |= self._newest_flags(chain, lake)
                self._set_ends(chain, ends)
                if start > chain.seen:
                    self._skip(chain, start)
                if chain.mark(commit):
                    chain.prune(self.arrivals.lowest(chain))
            for ids in _fetched(lake, start, stop):
                if self._stop.is_set():
                    raise CancelledError
                for parts in lake_to_pond.groups(lake, ids):
                    self._append_parts(chain, lake, parts)
            if stop < commit.recorded:
                return
            self.chains.keep(chain.name, commit)
        with self.lock:
            chain.number = commit.number
            chain.set_time(commit, len(group))

    def _append_parts(self, chain: Chain, lake: Lake, parts: list[Part]) -> None:
        first, stop = int(parts[0].ids[0]), int(parts[-1].ids[-1]) + 1
        with lake_to_pond.held(lake, self.pond, parts) as steps, self.lock:
            streams, self._next_stream = streams_of(chain, steps.columns["stream"], self._next_stream)
            columns = {**steps.columns, "stream": streams}
            alone = are_alone(lake.commit, np.arange(first, stop))
            before = self.pond.recorded
            try:
                lake_to_pond.append(self.pond, steps._replace(columns=columns), slice(None), alone=alone)
            finally:  # if memory runs out, some of them were appended
                added = self.pond.recorded - before
                if added:
                    self.note(chain, first, first + added, self.pond.recorded)
                    self.limits.insert(added)

    def note(self, chain: Chain, first: int, stop: int, recorded: int) -> None:
        """Note that steps of a chain were appended, after which the pond had `recorded`; the lock is held."""
        self.arrivals.add(chain, first, stop, recorded, self.pond.oldest)
        chain.seen = stop
        chain.steps += stop - first

    def _skip(self, chain: Chain, start: int) -> None:
        """Count the steps before `start` as missed; the lock is held."""
        if not chain.missed:
            log.warning(
                "%s: steps [%d, %d) of writer %r were dropped before they could be read; see lag() for more",
                self.chains,
                chain.seen,
                start,
                chain.name,
            )
        chain.missed += start - chain.seen
        chain.seen = start
        self.cut(chain)

    def cut(self, chain: Chain) -> None:
        """Link no later step of a chain to one that is in the pond."""
        with self.pond.reading():
            live = self.pond.streams
        self.pond.cut(sorted(set(live).intersection(chain.streams.values())))

    def _set_ends(self, chain: Chain, ends: Mapping[int, tuple[bool, bool]]) -> None:
        """Set the end flags of steps that are in the pond already."""
        find, recorded = self.arrivals.pond_id, self.pond.recorded
        read = {find(chain, step, recorded): flags for step, flags in ends.items() if step < chain.seen}
        if read:
            self.pond.set_ends(read)

    def _newest_flags(self, chain: Chain, lake: Lake) -> dict[int, tuple[bool, bool]]:
        """The end flags of the newest step of each stream: a commit that was not found may have set them."""
        own, found = set(chain.streams.values()), {}
        with self.pond.reading():
            self.pond.update()
            newest = {stream: step for stream, step in self.pond.links.newest.items() if stream in own}
        names = ["terminated", "truncated"]
        for step in self.arrivals.chain_ids(chain, newest.values()):
            if lake.commit.oldest <= step < lake.commit.recorded:
                for _, _, columns in lake.reader.scan(names, step, step + 1):
                    found[step] = (bool(columns[names[0]][0]), bool(columns[names[1]][0]))
        return found

    # --- snapshots ---------------------------------------------------------------------------------

    def restored(self, chains: Iterable[Chain]) -> None:
        """Continue with chains as a snapshot has them."""
        self.states = {chain.name: chain for chain in chains}
        streams = [stream for chain in self.states.values() for stream in chain.streams.values()]
        self._next_stream = max(streams, default=-1) + 1


def _fetched(lake: Lake, start: int, stop: int) -> Iterator[Array]:
    """The ids of steps [start, stop), some files at a time, after these were fetched, if they have to be."""
    files = lake.reader.stored(start, stop)
    while some := list(islice(files, FETCHED_TOGETHER)):
        lake.reader.expect(some)
        yield np.arange(max(start, some[0].start), min(stop, some[-1].stop))


def _content(lake: Lake, step: int) -> list[bytes]:
    """The values of a step, without its end flags, which may be set later, and links."""
    part = next(lake.parts(np.array([step])))
    left_out = {"terminated", "truncated", "follows_previous"}
    columns = [part.columns[name] for name in sorted(part.columns.keys() - left_out)]
    obs = [lake.observations(i, leaf, 0) for i, leaf in enumerate(part.leaves)]
    return [values.tobytes() for values in (*columns, *obs)]


def _live(commit: Commit) -> int:
    return commit.recorded - commit.oldest


def _successive(pending: list[Commit]) -> list[Commit]:
    """The first commits, each of which continues the one before it."""
    for i in range(1, len(pending)):
        if pending[i].parent != pending[i - 1].number:
            return pending[:i]
    return list(pending)
