"""Write a snapshot of a follower beside the lake, and load one into a new follower.

A snapshot stores no steps: it names commits that contain them, which retention and `gc` keep.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np

from lakepond import background
from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.flow import lake_to_pond
from lakepond.flow.following.arrivals import Chain, Mark, streams_of
from lakepond.flow.following.chains import Chains
from lakepond.flow.following.follower import LOOKING, Follower
from lakepond.formats import ranges
from lakepond.lake.format import snapshots
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.link_notes import are_alone
from lakepond.lake.format.snapshots import Snapshot, StepRun, identity
from lakepond.lake.read.assemble import PART_STEPS
from lakepond.lake.read.lake import Lake
from lakepond.lake.read.reader import Head, Part
from lakepond.sampling.generators import set_state, state_of
from lakepond.types import Array

WINDOW_BYTES, WINDOW_STEPS = 64 << 20, 1 << 14
"""steps that are loaded at a time: at most this many, whose observations without deduplication take this"""
DROPPED = (
    "steps that are in memory are no longer in the lake ({why}), so a snapshot cannot name them. Open the "
    "writers with a larger max_steps or keep_last, or follow with a smaller capacity."
)

# --- writing --------------------------------------------------------------------------------------


def write(follower: Follower, generator: np.random.Generator) -> Snapshot:
    """Store what a follower has now under the next number; durable on return."""
    chains = follower.chains
    try:
        taken, weights = _taken(follower, generator)
        named = {(chain, each.commit) for chain, heads in taken.heads.items() for each in heads}
        with chains.keeping(named) as check:  # retention sees the snapshot before it can delete one of them
            while True:
                number = snapshots.next_number(chains.snapshots())
                snapshot = replace(taken, number=number)
                if weights is not None and not chains.write(snapshots.priorities_name(number), weights):
                    continue  # another follower has taken this number
                if chains.write(snapshots.file_name(number), snapshot.to_json()):
                    break
            try:
                check()
            except LakeNotFound:
                chains.remove(snapshots.file_name(number))
                raise
            return snapshot
    except LakeNotFound as error:
        raise LakeNotFound(DROPPED.format(why=str(error).rstrip("."))) from None


def _taken(follower: Follower, generator: np.random.Generator) -> tuple[Snapshot, bytes | None]:
    """The state of a follower, still without a number, and its priorities."""
    pond = follower.pond
    with follower.lock, pond.reading():
        try:
            runs = tuple(follower.arrivals.named())
        except KeyError as error:
            chain, first, stop = error.args[0]
            raise LakeNotFound(f"[{first}, {stop}) of writer {chain!r}") from None
        states = {name: chain for name, chain in follower.states.items() if chain.marks}
        used = {(run.chain, run.commit) for run in runs}
        weights = None
        if pond.priorities is not None:
            pond.update()
            weights = pond.priorities.weights(pond.places(pond.ids())).astype("<f8").tobytes()
        return Snapshot(
            number=0,
            time=datetime.now(UTC).isoformat(timespec="milliseconds"),
            capacity=pond.capacity,
            recorded=pond.recorded,
            heads={
                name: tuple(
                    mark.named
                    for mark in reversed(chain.marks)
                    if mark is chain.marks[-1] or (name, mark.named.commit) in used
                )
                for name, chain in states.items()
            },
            after={name: chain.number for name, chain in states.items()},
            seen={name: chain.seen for name, chain in states.items()},
            runs=runs,
            streams={name: dict(chain.streams) for name, chain in states.items()},
            sampled=follower.limits.sampled,
            inserted=follower.limits.inserted,
            alpha=None if pond.priorities is None else pond.priorities.alpha,
            largest_priority=1.0 if pond.priorities is None else pond.priorities.largest,
            priorities=None if weights is None else digest_of(weights),
            generator=state_of(generator),
        ), weights


# --- loading --------------------------------------------------------------------------------------


def read(chains: Chains, number: int) -> Snapshot:
    """The snapshot with that number; `LakeNotFound`, with those that exist, if there is none."""
    try:
        data = chains.read(snapshots.file_name(number))
    except LakeNotFound:
        known = ranges(snapshots.numbers(chains.snapshots()))
        raise LakeNotFound(f"{chains} has no snapshot {number}; it has {known}.") from None
    return Snapshot.from_json(data, f"{number} of {chains}")


def load(follower: Follower, snapshot: Snapshot, generator: np.random.Generator | None) -> None:
    """Load the steps of a snapshot into a new follower; `generator`: set to its state, unless None."""
    chains, pond = follower.chains, follower.pond
    commits = _commits(chains, snapshot)
    runs = _newest(snapshot.runs, pond.capacity)
    states = _states(snapshot, runs, commits)
    follower.restored(states.values())
    pond.start_at(snapshot.recorded - sum(run.stop - run.first for run in runs))
    if runs:
        _load_runs(follower, runs, commits)
    for name, chain in states.items():
        if snapshot.seen[name] != chain.seen:  # no step was read since a gap, or since its writer went back
            chain.branch += snapshot.seen[name] < chain.seen
            follower.cut(chain)
        chain.seen = snapshot.seen[name]
        number = snapshot.heads[name][0].commit
        chains.keep(name, commits[name, number])
    _restore_priorities(follower, snapshot)
    follower.limits.restore(snapshot.sampled, snapshot.inserted)
    if generator is not None and snapshot.generator is not None:
        set_state(generator, snapshot.generator)


def _commits(chains: Chains, snapshot: Snapshot) -> dict[tuple[str, int], Commit]:
    """The commits that a snapshot names."""
    named = [(chain, each) for chain, heads in snapshot.heads.items() for each in heads]
    found = list(
        background.results(
            lambda each: chains.commit(each[0], each[1].commit), named, LOOKING, "lakepond-snapshot"
        )
    )
    for (chain, each), commit in zip(named, found, strict=True):
        if identity(commit) != each.digest:
            raise LakeCorrupt(
                f"commit {each.commit} of writer {chain!r} in {chains} is not the one that snapshot "
                f"{snapshot.number} names: the chain was replaced; open another snapshot."
            )
    return {(chain, each.commit): commit for (chain, each), commit in zip(named, found, strict=True)}


def _newest(runs: tuple[StepRun, ...], capacity: int) -> list[StepRun]:
    """The runs with the newest `capacity` steps."""
    found: list[StepRun] = []
    for run in reversed(runs):
        if capacity <= 0:
            break
        found.append(run._replace(first=max(run.first, run.stop - capacity)))
        capacity -= run.stop - run.first
    return found[::-1]


def _states(
    snapshot: Snapshot, runs: list[StepRun], commits: dict[tuple[str, int], Commit]
) -> dict[str, Chain]:
    """The chains as they were, with no step read yet."""
    branches: dict[tuple[str, int], int] = {}
    states: dict[str, Chain] = {}
    polled = datetime.fromisoformat(snapshot.time).timestamp()
    for name in snapshot.heads:
        chain = states[name] = Chain(name, number=snapshot.after[name], polled=polled)
        chain.streams = dict(snapshot.streams[name])
        last = 0
        for run in (run for run in runs if run.chain == name):
            chain.branch += run.first < last
            last = run.stop
            branches[name, run.commit] = chain.branch
        chain.branch += snapshot.seen[name] < last  # its writer went back, and no step since was read
        for named in reversed(snapshot.heads[name]):
            commit = commits[name, named.commit]
            branch = branches.get((name, named.commit), chain.branch)
            chain.marks.append(Mark(named, commit.oldest, commit.recorded, branch))
        chain.set_time(commits[name, snapshot.heads[name][0].commit])
        chain.branch = 0
    return states


def _load_runs(follower: Follower, runs: list[StepRun], commits: dict[tuple[str, int], Commit]) -> None:
    """Append runs in their order, many at a time."""
    pond = follower.pond
    layers: list[dict[str, Commit]] = []  # one commit of each chain, then the second ones
    at: dict[tuple[str, int], int] = {}
    for chain, number in dict.fromkeys((run.chain, run.commit) for run in runs):
        layer = next((i for i, heads in enumerate(layers) if chain not in heads), len(layers))
        if layer == len(layers):
            layers.append({})
        layers[layer][chain], at[chain, number] = commits[chain, number], layer
    with ExitStack() as stack:
        loading = _Loading(follower, [stack.enter_context(follower.chains.lake(heads)) for heads in layers])
        lake_to_pond.choose_layouts(loading.lakes[0], pond)
        most = max(1, min(WINDOW_STEPS, WINDOW_BYTES // pond.spec.step_nbytes))
        for run in runs:
            for first in range(run.first, run.stop, most):
                part = run._replace(first=first, stop=min(first + most, run.stop))
                loading.add(at[run.chain, run.commit], part, most)
        loading.append()


class _Loading:
    """Appends runs to the pond of a follower, many at a time."""

    def __init__(self, follower: Follower, lakes: list[Lake]) -> None:
        self.follower, self.lakes = follower, lakes
        self._heads = [{head.writer: head for head in lake.reader.heads} for lake in lakes]
        self._firsts = [[head.first for head in lake.reader.heads] for lake in lakes]
        self._layer, self._waiting, self._steps = 0, list[StepRun](), 0
        self._stops: dict[str, int] = {}  # of the last run of each chain

    def add(self, layer: int, run: StepRun, most: int) -> None:
        """Append a run, at the latest with `append`; at most `most` steps wait, and of one lake."""
        last = self._stops.get(run.chain, run.first)
        if self._steps + run.stop - run.first > most or layer != self._layer or last != run.first:
            self.append()
        if last != run.first:  # after a gap, or after its writer went back
            chain = self.follower.states[run.chain]
            chain.branch += run.first < last
            self.follower.cut(chain)
        self._layer, self._steps = layer, self._steps + run.stop - run.first
        self._waiting.append(run)
        self._stops[run.chain] = run.stop

    def append(self) -> None:
        """Append all runs that wait, in their order."""
        if not self._waiting:
            return
        pond, recorded, lake = self.follower.pond, self.follower.pond.recorded, self.lakes[self._layer]
        heads = self._heads[self._layer]
        wanted = np.concatenate([np.arange(r.first, r.stop) + heads[r.chain].offset for r in self._waiting])
        ids = np.sort(wanted)
        lake.reader.expect([stored for stored, _ in lake.reader.parts(ids, PART_STEPS)])
        parts = list(lake.parts(ids))
        order = np.argsort(np.argsort(wanted))  # of each step among the sorted ones
        streams = np.concatenate([self._streams(part) for part in parts])
        alone = np.concatenate([self._alone(part) for part in parts])
        with lake_to_pond.held(lake, pond, parts) as steps:
            steps.columns["stream"] = streams
            lake_to_pond.append(pond, steps, order, alone=alone[order])
        for run in self._waiting:
            recorded += run.stop - run.first
            self.follower.note(self.follower.states[run.chain], run.first, run.stop, recorded)
        self._waiting, self._steps = [], 0

    def _head(self, part: Part) -> Head:
        heads = self.lakes[self._layer].reader.heads
        return heads[bisect_right(self._firsts[self._layer], int(part.ids[0])) - 1]

    def _streams(self, part: Part) -> Array:
        chain = self.follower.states[self._head(part).writer]
        return streams_of(chain, part.columns["stream"], 0)[0]  # all are known

    def _alone(self, part: Part) -> Array:
        head = self._head(part)
        return are_alone(head.commit, part.ids - head.offset)


def _restore_priorities(follower: Follower, snapshot: Snapshot) -> None:
    pond = follower.pond
    if pond.priorities is None or snapshot.priorities is None:
        return
    data = follower.chains.read(snapshots.priorities_name(snapshot.number))
    if digest_of(data) != snapshot.priorities:
        raise LakeCorrupt(f"the priorities of snapshot {snapshot.number} are damaged; open another one.")
    weights = np.frombuffer(data, "<f8")
    if pond.priorities.alpha != snapshot.alpha and snapshot.alpha:
        weights = weights ** (pond.priorities.alpha / snapshot.alpha)
    with pond.reading():
        pond.update()
        places = pond.places(pond.ids())
        pond.priorities.restore(places, weights[len(weights) - len(places) :], snapshot.largest_priority)
