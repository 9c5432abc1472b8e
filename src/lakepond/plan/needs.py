"""What a workload needs: growth by generation, disk, memory, uploads; and whether a machine has it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lakepond.formats import size
from lakepond.plan.workload import Range, Workload

GB = 10**9
INSTALLED = {"system": (15 * GB, 20 * GB), "libraries": (3 * GB, 8 * GB)}
OTHER = {"logs": (0.1 * GB, 1 * GB), "temporary files": (1 * GB, 2 * GB), "margin": (20 * GB, 30 * GB)}
PROCESS_BYTES = 2 * GB
"""main memory of a trainer without its replay: Python, JAX, compiled programs"""
LEARNER_AGENTS = 8
"""a learner on the device takes as much as this number of agents: actor, critic, targets, Adam's moments"""

COMMIT_BYTES = 6_000
"""of a commit besides its data: headers, schemas, indices"""
SEGMENT_BYTES = 600
"""that each later commit takes to list a segment"""
POND_STEP_BYTES, POND_LEAF_BYTES = 16, 72
"""of a step in memory besides its columns, and for each array that is stored as rows"""


@dataclass(frozen=True)
class Growth:
    """The replay after a generation, in bytes."""

    generation: int
    steps: int
    plain: float
    gzip: Range
    lakepond: Range


@dataclass(frozen=True)
class DiskPart:
    """Something that takes space on the disk besides the replay."""

    name: str
    bytes: Range
    installed: bool = False
    """whether a machine that is in use already has it"""


@dataclass(frozen=True)
class StorageTotals:
    """What one way of storing the replay takes in total."""

    replay: Range
    disk: Range
    """with everything else on the disk"""
    run: Range
    """without what a machine in use already has: the system and the libraries"""
    memory: float
    device: float
    upload: Range


@dataclass(frozen=True)
class Verdict:
    """Whether a machine has what a run needs in the worst case."""

    fits: bool
    why: tuple[str, ...]
    """a sentence for each resource that is too small"""


@dataclass(frozen=True)
class Plan:
    """Everything a workload needs."""

    workload: Workload
    growth: tuple[Growth, ...]
    parts: tuple[DiskPart, ...]
    """what is on the disk besides the replay"""
    plain: StorageTotals
    gzip: StorageTotals
    lakepond: StorageTotals
    upload_of_folder: Range

    def store(self, name: str) -> StorageTotals:
        """One of plain, gzip, lakepond."""
        found: StorageTotals = getattr(self, name)
        return found


@dataclass(frozen=True)
class Measured:
    """What is known of a run or a lake besides its workload; None: not measured, so it is assumed."""

    lake: Callable[[int], Range]
    """the lake's size on disk after a number of steps"""
    rows: Callable[[int], float]
    """bytes of the distinct rows among the newest steps, uncompressed"""
    parts: tuple[DiskPart, ...] | None = None
    """what the run keeps on the disk besides its lake"""
    process: float | None = None
    """main memory of the trainer without its replay"""
    checkpoint: int | None = None
    """bytes of one checkpoint"""
    used: int = 0
    """bytes that are on the disk now"""


def make_plan(workload: Workload, measured: Measured | None = None) -> Plan:
    """The plan for a workload, from what was measured where it was."""
    known = measured or Measured(lambda steps: estimate(workload, steps), workload.row_bytes)
    growth = tuple(_growth(workload, g, known.lake) for g in range(1, workload.generations + 1))
    parts = _parts(workload, known)
    if known.checkpoint is None:
        checkpoint = (workload.population + 1) * workload.agent_bytes
        learner = (workload.population + LEARNER_AGENTS) * workload.agent_bytes
    else:
        checkpoint = learner = known.checkpoint
    learner += 2 * sum(f.nbytes for f in workload.observed()) * workload.batch_size
    agents = (float(workload.generations * checkpoint),) * 2
    process = PROCESS_BYTES if known.process is None else known.process

    def store(replay: Range, memory: float, device: float, upload: Range) -> StorageTotals:
        return StorageTotals(
            replay=replay,
            disk=total(replay, *(part.bytes for part in parts)),
            run=total(replay, *(part.bytes for part in parts if not part.installed)),
            memory=memory + process,
            device=device + learner,
            upload=total(upload, agents),
        )

    plain, every = [g.plain for g in growth], workload.upload_every
    (folder_low, low), (folder_high, high) = (uploads([g.gzip[i] for g in growth], every) for i in (0, 1))
    held = workload.held(workload.steps)
    rows = known.rows(held)
    twice = 2.0 * held * workload.spec.step_nbytes  # saving makes a second copy
    return Plan(
        workload,
        growth,
        parts,
        plain=store((plain[-1],) * 2, twice, 0.0, (uploads(plain, every)[1],) * 2),
        gzip=store(growth[-1].gzip, twice, 0.0, (low, high)),
        lakepond=store(
            growth[-1].lakepond,
            rows + step_bytes(workload) * held,
            rows + workload.column_bytes * held,
            growth[-1].lakepond,
        ),
        upload_of_folder=total((folder_low, folder_high), agents),
    )


def total(*ranges: Range) -> Range:
    """The sum of some ranges."""
    return sum(low for low, _ in ranges), sum(high for _, high in ranges)


def estimate(workload: Workload, steps: int) -> Range:
    """Bytes on disk of a lake of `steps` steps, at best and at worst."""
    commits = -(-steps // workload.per_generation)
    overhead = commits * COMMIT_BYTES + SEGMENT_BYTES * commits * (commits + 1) / 2
    shares = workload.shares
    low, high = (
        workload.row_bytes(steps) * shares.rows[i] + steps * workload.column_bytes * shares.columns[i]
        for i in (0, 1)
    )
    return low, high + overhead


def uploads(sizes: Sequence[float], every: int) -> tuple[float, float]:
    """What eigen2 uploaded, and what it meant to, for the sizes of its replay file after each generation.

    The file was saved in every `every`-th generation and was to be uploaded then. But the folder was uploaded
    in every generation, and in a generation that saved the file a temporary copy of it as well.
    """
    of_folder = meant = saved = 0.0
    for generation, now in enumerate(sizes, 1):
        if generation % every == 0:
            saved = now
            meant += saved
            of_folder += saved  # the temporary copy
        of_folder += saved
    return of_folder, meant


def reported_gb(workload: Workload, generation: int) -> float:
    """The uncompressed replay after a generation as eigen2 calculated it, with 1,000 MiB per GB.

    Its 187 GB are 196.0 GB of 10^9 bytes.
    """
    step = round(workload.spec.step_nbytes / 2**20, 2)
    return step * workload.held(workload.per_generation * generation) / 1_000


def step_bytes(workload: Workload) -> int:
    """Bytes of a step in main memory besides its rows."""
    return workload.column_bytes + POND_STEP_BYTES + POND_LEAF_BYTES * len(workload.deduplicated())


def judge(store: StorageTotals, *, disk: float, memory: float, new: bool, used: float = 0) -> Verdict:
    """Whether a machine with `disk` and `memory` bytes free is large enough.

    `new`: the disk has to hold the system and the libraries, too; `used`: bytes of the run that are on that
    disk already and are not counted as free.
    """
    need = store.disk[1] if new else max(0.0, store.run[1] - used)
    more = " more" if used else ""
    why = []
    if disk < need:
        why.append(f"it needs up to {size(need)}{more} of disk, but {size(disk)} is free")
    if memory < store.memory:
        why.append(f"it needs {size(store.memory)} of memory, but {size(memory)} is available")
    return Verdict(not why, tuple(why))


def _growth(workload: Workload, generation: int, on_disk: Callable[[int], Range]) -> Growth:
    steps = workload.per_generation * generation
    plain = float(workload.held(steps) * workload.spec.step_nbytes)
    low, high = workload.shares.gzip
    return Growth(generation, steps, plain, (plain * low, plain * high), on_disk(steps))


def _parts(workload: Workload, known: Measured) -> tuple[DiskPart, ...]:
    installed = (DiskPart(name, sizes, installed=True) for name, sizes in INSTALLED.items())
    if known.parts is not None:
        return (*installed, *known.parts)
    agent, population, older = workload.agent_bytes, workload.population, workload.checkpoints_kept - 1
    exact = {
        "data": workload.data_bytes,
        f"population, {population} x {size(agent)}": population * agent,
        f"best agent, {size(agent)}": agent,
        f"older checkpoints, {older}": older * (population + 1) * agent,
    }
    return (*installed, *exact_parts(exact), *(DiskPart(name, sizes) for name, sizes in OTHER.items()))


def exact_parts(sizes: Mapping[str, float]) -> tuple[DiskPart, ...]:
    """Parts whose sizes are known, without those of size 0."""
    return tuple(DiskPart(name, (count, count)) for name, count in sizes.items() if count)
