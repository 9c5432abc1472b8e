"""lake ──fill──▶ pond: steps by id, in the order of the disk; each row is read once per part."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, Self

import numpy as np

from lakepond.errors import LakeCorrupt
from lakepond.lake.format.link_notes import are_alone, cleared_before
from lakepond.lake.format.tracks import covered, distinct
from lakepond.lake.read.assemble import PART_STEPS
from lakepond.lake.read.lake import PART_BYTES, Lake
from lakepond.lake.read.reader import LeafPart, Part
from lakepond.lake.read.weights import read_weights
from lakepond.pond import Pond, SlotWindows, column_fields
from lakepond.sampling.draw import distinct as distinct_numbers
from lakepond.sampling.links import ALONE, CONTINUES, STARTS
from lakepond.types import Array, RowLayout

STRAIGHT_BYTES = 256 << 20
"""rows read at a time where they go straight to the pond: fewer blocks are read for two parts"""


class Held(NamedTuple):
    """Steps of a lake that are not appended yet; their rows are in the pond, pinned."""

    columns: dict[str, Array]
    leaves: list[SlotWindows | Array]
    """for each leaf its windows, or its values (steps, 2, *shape)"""


def resume(lake: Lake, pond: Pond, oldest: int = 0) -> None:
    """Load the newest steps, from `oldest` on, into a new pond, with the links and priorities they had.

    Steps that were removed from memory by `clear` are not loaded.
    Steps that are recorded later may go to the same lake.
    """
    pond.cleared = cleared_before(lake.commit)
    start = max(oldest, pond.cleared, lake.commit.oldest, lake.commit.recorded - pond.capacity)
    pond.start_at(start)
    choose_layouts(lake, pond)
    with _Rows(lake, pond, ours=True) as rows:
        for part in lake.parts(np.arange(start, lake.commit.recorded)):
            held = rows.hold([part])
            alone = are_alone(lake.commit, pond.recorded + np.arange(len(held.columns["stream"])))
            append(pond, held, slice(None), alone=alone)
    _restore_priorities(lake, pond)


def groups(lake: Lake, ids: Array) -> Iterator[list[Part]]:
    """The steps with these sorted ids in groups of parts, of at most `PART_BYTES` without deduplication."""
    most, group, steps = max(1, PART_BYTES // lake.spec.step_nbytes), list[Part](), 0
    for part in lake.parts(ids):
        if group and steps + len(part.ids) > most:
            yield group
            group, steps = [], 0
        group.append(part)
        steps += len(part.ids)
    if group:
        yield group


@contextmanager
def held(lake: Lake, pond: Pond, parts: Sequence[Part]) -> Iterator[Held]:
    """The steps of some parts as one, to be appended by the caller; rows are pinned during the block.

    Rows that the pond has already, from whatever lake, are found.
    """
    with _Rows(lake, pond, ours=False, straight=False) as rows:
        yield rows.hold(parts)


def fill(lake: Lake, pond: Pond, ids: Array, rng: np.random.Generator) -> None:
    """Append the steps with these sorted ids, in random order.

    Rows are loaded as they are read, steps are appended at the end: until then, memory is needed for their
    columns and window starts.
    """
    choose_layouts(lake, pond)
    read: list[Held] = []
    with _Rows(lake, pond, ours=False) as rows:
        if rows.straight:
            rows.make_room(len(ids))
        for part in lake.parts(ids, STRAIGHT_BYTES if rows.straight else PART_BYTES):
            held = rows.hold([part])
            if any(
                leaf.store is not None and not isinstance(values, SlotWindows)
                for leaf, values in zip(pond.leaves, held.leaves, strict=True)
            ):  # written before their layout was known: a few steps, but complete observations
                append(pond, held, rng.permutation(len(held.columns["stream"])))
            else:
                read.append(held)
        if read:
            whole = joined(read)
            order = rng.permutation(len(whole.columns["stream"]))
            for at in range(0, len(order), PART_STEPS):
                append(pond, whole, order[at : at + PART_STEPS])


def _restore_priorities(lake: Lake, pond: Pond) -> None:
    """Set the priorities of the steps in a pond to those stored in the commit."""
    if pond.priorities is None or not lake.commit.weights:
        return
    ids, weight = read_weights(lake.commit, lake.reader.heads[0].segments)
    live = (ids >= pond.oldest) & (ids < pond.recorded)
    ids, weight = ids[live], weight[live]
    alpha = lake.commit.alpha
    if alpha and alpha != pond.priorities.alpha:
        with np.errstate(over="ignore"):
            weight = weight ** (pond.priorities.alpha / alpha)
        if not np.isfinite(weight).all():
            raise LakeCorrupt(
                f"the priorities of {lake.path} overflow with alpha={pond.priorities.alpha}; they were "
                f"saved with alpha={alpha}: open it with that."
            )
    with pond.reading():
        pond.update()
        pond.priorities.restore(pond.places(ids), weight, lake.commit.largest_priority)


def draw(lake: Lake, count: int, rng: np.random.Generator) -> Array:
    """Draw exactly `count` live steps uniformly without replacement; sorted ids."""
    ids = distinct_numbers(len(lake), count, rng, shuffle=False)
    ids += lake.commit.oldest
    ids.sort()
    return ids


def choose_layouts(lake: Lake, pond: Pond) -> None:
    """Use the row layouts of a lake, if nothing is in the pond and none is declared."""
    layouts = lake.reader.layouts()
    with pond.reading():
        if pond.size:
            return
        for leaf, layout in zip(pond.leaves, layouts, strict=True):
            if layout is not None and layout.axis is not None and not leaf.keepers:
                leaf.use_layout(RowLayout(layout.axis, leaf.field.shape[layout.axis] // layout.length))


def append(pond: Pond, held: Held, which: slice | Array, *, alone: Array | None = None) -> None:
    """Append steps; `alone`: those that belong to no sequence, None: all, in random order."""

    def part(leaf: SlotWindows | Array, k: int) -> SlotWindows | Array:
        return leaf._replace(starts=leaf.starts[which]) if isinstance(leaf, SlotWindows) else leaf[which, k]

    streams = held.columns["stream"][which]
    windows = [part(leaf, k) for k in (0, 1) for leaf in held.leaves]
    columns = [held.columns[name][which] for name, _ in column_fields(pond.spec)]
    if alone is None:
        pond.append(streams, [*windows, *columns], join=ALONE)
        return
    # lakes of earlier versions have no such column: each step continued the one before it
    follows = held.columns.get("follows_previous", np.ones(len(streams), np.bool_))[which]
    join = np.where(alone, ALONE, np.where(follows, CONTINUES, STARTS))
    pond.append(streams.tolist(), [*windows, *columns], join=join)


def joined(parts: list[Held]) -> Held:
    """All parts as one, with one track per leaf."""
    columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}
    leaves: list[SlotWindows | Array] = []
    for i in range(len(parts[0].leaves)):
        windows = [leaf for part in parts if isinstance(leaf := part.leaves[i], SlotWindows)]
        if not windows:
            leaves.append(np.concatenate([np.asarray(part.leaves[i]) for part in parts]))
            continue
        lengths = [len(leaf.track) for leaf in windows]
        offsets = np.cumsum(lengths) - lengths
        starts = [leaf.starts + offset for leaf, offset in zip(windows, offsets.tolist(), strict=True)]
        track = np.concatenate([leaf.track for leaf in windows])
        leaves.append(SlotWindows(track, np.concatenate(starts)))
    return Held(columns, leaves)


class _Rows:
    """Loads the rows of parts of a lake into a pond: pinned, and in the layout they have, until its end."""

    def __init__(self, lake: Lake, pond: Pond, *, ours: bool, straight: bool = True) -> None:
        """`ours`: the pond is poured into this lake, so rows keep their numbers and repeats are found.

        `straight`: repeats need not be found, if the pond is empty.
        """
        self._lake, self._pond, self._ours = lake, pond, ours
        self._slots = [_Slots() for _ in pond.leaves]  # a row of an earlier part is found by its number
        self._pinned: list[list[Array]] = [[] for _ in pond.leaves]
        self._kept: dict[int, tuple[int, int | None]] = {}  # the layouts of leaves that have rows here
        shared = len(lake.heads) > 1 and any(head.sources for head in lake.heads.values())
        self.straight = straight and not ours and not pond.size and not shared
        """the pond is empty, so rows need not be looked up: they are decoded into their slots"""
        self._scratch = np.empty(0 if self.straight else PART_BYTES, np.uint8)

    def make_room(self, steps: int) -> None:
        """Grow the pond once, for the largest number of rows that these steps can need."""
        for i, leaf in enumerate(self._pond.leaves):
            if leaf.store is not None:
                most = min(self._lake.reader.rows_count(i), steps * (leaf.store.length + 1))
                with suppress(MemoryError):  # it may need less
                    self._pond.make_room(i, most)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for i in self._kept:
            self._pond.release_layout(i, self._pinned[i])

    def hold(self, parts: Sequence[Part]) -> Held:
        """Load the rows of some parts into the pond, pinned; one `Held` for all of them."""
        names = parts[0].columns
        columns = {name: np.concatenate([part.columns[name] for part in parts]) for name in names}
        return Held(
            columns, [self._load(i, [part.leaves[i] for part in parts]) for i in range(len(parts[0].leaves))]
        )

    def _load(self, i: int, parts: list[LeafPart | Array]) -> SlotWindows | Array:
        """The windows of some parts as slots of the pond; their values if one has another layout."""
        found = [leaf for leaf in parts if isinstance(leaf, LeafPart)]
        layouts = {(leaf.layout.length, leaf.layout.axis) for leaf in found}
        if len(found) < len(parts) or len(layouts) > 1 or not self._takes(i, layouts.pop()):
            return np.concatenate([self._values(i, leaf) for leaf in parts])
        positions = [covered(leaf.starts, leaf.layout.length) for leaf in found]
        numbers = np.concatenate([leaf.track[at] for leaf, at in zip(found, positions, strict=True)])
        slots = self._slots_of(i, numbers, found[0].layout.row_bytes)
        offsets = np.cumsum([0, *map(len, positions[:-1])]).tolist()
        starts = [
            offset + np.searchsorted(at, leaf.starts)
            for leaf, at, offset in zip(found, positions, offsets, strict=True)
        ]
        return SlotWindows(slots, np.concatenate(starts))

    def _takes(self, i: int, layout: tuple[int, int | None]) -> bool:
        """Whether rows can be loaded as they are; the leaf keeps its layout from then on."""
        if i not in self._kept and self._pond.keep_layout(i, layout):
            self._kept[i] = layout
        return self._kept.get(i) == layout

    def _values(self, i: int, leaf: LeafPart | Array) -> Array:
        """Both observations of some steps, (steps, 2, *shape)."""
        if not isinstance(leaf, LeafPart):
            return leaf
        return np.stack([self._lake.observations(i, leaf, which) for which in (0, 1)], axis=1)

    def _slots_of(self, i: int, rows: Array, size: int) -> Array:
        """The slot of each of some rows of `size` bytes, by number."""
        numbers, place = distinct(rows)
        slots = self._slots[i].of(numbers)
        missing = slots < 0
        new = numbers[missing]
        reader = self._lake.reader
        if self.straight:
            held = self._pond.read_rows(i, len(new), lambda out: reader.rows(i, new, size, out.reshape(-1)))
        else:
            rows = reader.rows(i, new, size, self._scratch)
            held = self._pond.load_rows(i, rows, new if self._ours else None)
        self._pinned[i].append(held)
        self._slots[i].add(new, held)
        slots[missing] = held
        return slots[place]


class _Slots:
    """The slots of loaded rows by row number. Memory: 12 bytes per loaded row, whatever the lake holds.

    Sorted arrays: new numbers go to a small one, which is joined with the large one when it has grown.
    """

    def __init__(self) -> None:
        none = np.zeros(0, np.int64), np.zeros(0, np.int32)
        self._parts: list[tuple[Array, Array]] = [none, none]  # numbers and slots: large, small

    def of(self, numbers: Array) -> Array:
        """The slot of each row, -1 if it is not loaded."""
        found = np.full(len(numbers), -1, np.int32)
        for known, slots in self._parts:
            if len(known):
                at = np.minimum(np.searchsorted(known, numbers), len(known) - 1)
                here = known[at] == numbers
                found[here] = slots[at[here]]
        return found

    def add(self, numbers: Array, slots: Array) -> None:
        """Note rows that are loaded; `numbers` are sorted, and none is known."""
        large, small = self._parts
        small = _merged(small, (numbers, slots.astype(np.int32)))
        if 4 * len(small[0]) > len(large[0]):
            large, small = _merged(large, small), (small[0][:0], small[1][:0])
        self._parts = [large, small]


def _merged(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    at = np.searchsorted(one[0], other[0])
    return np.insert(one[0], at, other[0]), np.insert(one[1], at, other[1])
