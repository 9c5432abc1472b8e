"""What a workload takes: growth by generation, disk, memory, uploads; and whether a machine has that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lakepond.plan import story
from lakepond.plan.workload import Range, Workload

GB = 10**9
SYSTEM, LIBRARIES, LOGS, TEMPORARY, MARGIN = (
    (15 * GB, 20 * GB),
    (3 * GB, 8 * GB),
    (0.1 * GB, 1 * GB),
    (1 * GB, 2 * GB),
    (20 * GB, 30 * GB),
)
PROCESS_BYTES = 2 * GB
"""main memory of a trainer beside its replay: Python, JAX, compiled programs"""
LEARNER_AGENTS = 8
"""a learner on the device counts as so many agents: actor, critic, targets, Adam's moments of each"""

COMMIT_BYTES = 6_000
"""of a commit beside its data: headers, schemas, indices"""
SEGMENT_BYTES = 600
"""that each later commit takes to name a segment"""
POND_STEP_BYTES, POND_LEAF_BYTES = 16, 72
"""of a step in memory beside its columns, and for each array that is kept as rows"""


@dataclass(frozen=True)
class Growth:
    """The replay after a generation, in bytes."""

    generation: int
    steps: int
    plain: float
    gzip: Range
    lakepond: Range


@dataclass(frozen=True)
class Part:
    """One thing that takes room on the disk."""

    name: str
    bytes: Range


@dataclass(frozen=True)
class Store:
    """What one way of keeping the replay takes, in all."""

    replay: Range
    disk: Range
    """with everything else that is on the disk"""
    run: Range
    """without the system and the libraries, which a machine in use already has"""
    memory: float
    device: float
    upload: Range


@dataclass(frozen=True)
class Verdict:
    """Whether a machine has what a run needs, at worst."""

    fits: bool
    why: tuple[str, ...]
    """a sentence for each thing that is too small"""


@dataclass(frozen=True)
class Plan:
    """All that a workload takes."""

    workload: Workload
    growth: tuple[Growth, ...]
    parts: tuple[Part, ...]
    """what is on the disk beside the replay"""
    plain: Store
    gzip: Store
    lakepond: Store
    upload_as_it_was: Range

    def store(self, name: str) -> Store:
        """One of plain, gzip, lakepond."""
        stores = {"plain": self.plain, "gzip": self.gzip, "lakepond": self.lakepond}
        return stores[name]


def make_plan(workload: Workload, lakepond: Callable[[int], Range] | None = None) -> Plan:
    """The plan for a workload; `lakepond(steps)` is the lake's size if it was measured."""
    on_disk = lakepond or (lambda steps: estimate(workload, steps))
    growth = tuple(_growth(workload, g, on_disk) for g in range(1, workload.generations + 1))
    parts = _parts(workload)
    last = growth[-1]
    agents = float(workload.generations * (workload.population + 1) * workload.agent_bytes)
    was, meant = zip(
        *(story.uploads([g.gzip[i] for g in growth], workload.upload_every) for i in (0, 1)), strict=True
    )
    plain_meant = story.uploads([g.plain for g in growth], workload.upload_every)[1]
    rest = [sum(part.bytes[i] for part in parts) for i in (0, 1)]
    already = [SYSTEM[i] + LIBRARIES[i] for i in (0, 1)]

    def store(replay: Range, memory: float, device: float, upload: Range) -> Store:
        disk = (rest[0] + replay[0], rest[1] + replay[1])
        return Store(
            replay=replay,
            disk=disk,
            run=(disk[0] - already[0], disk[1] - already[1]),
            memory=memory + PROCESS_BYTES,
            device=device + _learner(workload),
            upload=(upload[0] + agents, upload[1] + agents),
        )

    held = workload.held(workload.steps)
    twice = 2.0 * held * workload.spec.step_nbytes  # saving makes a second copy
    return Plan(
        workload=workload,
        growth=growth,
        parts=parts,
        plain=store((last.plain, last.plain), twice, 0.0, (plain_meant, plain_meant)),
        gzip=store(last.gzip, twice, 0.0, (meant[0], meant[1])),
        lakepond=store(last.lakepond, in_memory(workload, held), on_device(workload, held), last.lakepond),
        upload_as_it_was=(was[0] + agents, was[1] + agents),
    )


def estimate(workload: Workload, steps: int) -> Range:
    """A lake of so many steps on disk, at best and at worst."""
    commits = -(-steps // workload.per_generation)
    overhead = commits * COMMIT_BYTES + SEGMENT_BYTES * commits * (commits + 1) / 2
    shares = workload.shares
    low, high = (
        workload.row_bytes(steps) * shares.rows[i] + steps * workload.column_bytes * shares.columns[i]
        for i in (0, 1)
    )
    return low, high + overhead


def in_memory(workload: Workload, held: int) -> float:
    """A replay of so many steps in main memory."""
    step = workload.column_bytes + POND_STEP_BYTES + POND_LEAF_BYTES * workload.row_leaves
    return workload.row_bytes(held) + step * held


def on_device(workload: Workload, held: int) -> float:
    """The same on an accelerator: rows once, columns, references."""
    return workload.row_bytes(held) + held * workload.column_bytes


def judge(store: Store, *, disk: float, memory: float, new: bool) -> Verdict:
    """Whether so much disk and memory suffice; `new`: the disk has to hold system and libraries, too."""
    need = store.disk[1] if new else store.run[1]
    why = []
    if disk < need:
        why.append(f"it needs up to {need / GB:,.1f} GB of disk and there are {disk / GB:,.1f} GB")
    if memory < store.memory:
        why.append(f"it needs {store.memory / GB:,.1f} GB of memory and there are {memory / GB:,.1f} GB")
    return Verdict(not why, tuple(why))


def _growth(workload: Workload, generation: int, on_disk: Callable[[int], Range]) -> Growth:
    steps = workload.per_generation * generation
    plain = float(workload.held(steps) * workload.spec.step_nbytes)
    gzip = workload.shares.gzip
    return Growth(generation, steps, plain, (plain * gzip[0], plain * gzip[1]), on_disk(steps))


def _parts(workload: Workload) -> tuple[Part, ...]:
    agent, population = workload.agent_bytes, workload.population
    older = (workload.checkpoints_kept - 1) * (population + 1) * agent
    found = [
        Part("system", SYSTEM),
        Part("libraries", LIBRARIES),
        Part("data", (workload.data_bytes, workload.data_bytes)),
        Part(f"population, {population} x {agent / 1e6:.0f} MB", (population * agent, population * agent)),
        Part(f"best agent, {agent / 1e6:.0f} MB", (agent, agent)),
        Part(f"older checkpoints, {workload.checkpoints_kept - 1}", (older, older)),
        Part("logs", LOGS),
        Part("temporary files", TEMPORARY),
        Part("margin", MARGIN),
    ]
    return tuple(part for part in found if part.bytes[1])


def _learner(workload: Workload) -> float:
    batch = 2.0 * sum(f.nbytes for f in workload.observed()) * workload.batch_size
    return (workload.population + LEARNER_AGENTS) * workload.agent_bytes + batch
