"""A plan as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from lakepond import formats
from lakepond.cli import words
from lakepond.plan.needs import GB, LEARNER_AGENTS, PROCESS_BYTES, Growth, Plan, Verdict, reported_gb, total

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakepond.plan.measured import LakeSize
    from lakepond.plan.workload import Range

STORES = ("plain", "gzip", "lakepond")
HEADS = ("uncompressed", "gzip", "lakepond")
COLOURS = {"fits": "green", "tight": "yellow", "no": "red"}
AS_OF = "November 2026"
NOTE = (
    "Reported: calculated for pickles by the trading project eigen2, the model for this preset, in units of "
    "1,000 MiB. In all other columns a GB is 10^9 bytes, as disks are sold."
)


class Offer(NamedTuple):
    """A disk that a provider rents with a GPU, in bytes."""

    provider: str
    disk: int
    what: str


OFFERS = (
    Offer("RunPod", 20 * GB, "container disk, default size"),
    Offer("RunPod", 50 * GB, "container disk, enlarged"),
    Offer("RunPod", 250 * GB, "volume disk, size chosen when renting"),
    Offer("Vast.ai", 10 * GB, "default size"),
    Offer("Vast.ai", 100 * GB, "size chosen when renting, fixed afterwards"),
    Offer("Lambda Labs", 512 * GB, "with one A100; deleted with the instance"),
)


def tables(plan: Plan, lake: LakeSize | None, disk: int, *, story: bool) -> Iterator[RenderableType]:
    """All tables of a plan, top to bottom; `story`: with the sizes that eigen2 reported."""
    step = plan.workload.spec.step_nbytes
    yield f"One transition is {step:,} B ({step / 2**20:.2f} MiB) uncompressed.\n"
    if lake is not None:
        yield words.paragraph(_forecast(lake, disk))
    yield _growth(plan, story, 0 if lake is None else lake.steps)
    parts = [(part.name, formats.span(*part.bytes)) for part in plan.parts]
    yield words.NumberTable("Also on the disk", ("", "size"), parts)
    yield _totals(plan)
    yield _offers(plan)
    for text in (_assumptions(plan, measured=lake is not None), *([NOTE] if story else [])):
        yield words.styled((words.paragraph(text), "dim"))


def as_json(plan: Plan, verdict: Verdict, store: str, lake: LakeSize | None, disk: int) -> dict[str, Any]:
    """The plan in bytes; ranges are [at best, at worst]."""
    work = plan.workload
    measured = None
    if lake is not None:
        measured = {name: getattr(lake, name) for name in ("commit", "steps", "bytes", "bytes_per_step")}
        measured["steps_per_commit"] = lake.per_commit
        measured["disk_full_after_steps"] = _steps_left(lake, disk)
    return {
        "transition_bytes": work.spec.step_nbytes,
        "per_generation": work.per_generation,
        "generations": work.generations,
        "distinct_rows": work.distinct_rows(work.steps),
        "growth": [
            {**asdict(g), "reported_gb": round(reported_gb(work, g.generation), 2)} for g in plan.growth
        ],
        "parts": {part.name: part.bytes for part in plan.parts},
        "stores": {name: asdict(plan.store(name)) for name in STORES},
        "upload_of_folder": plan.upload_of_folder,
        "offers": [{**offer._asdict(), "fits": _fits(plan, offer)} for offer in OFFERS],
        "offers_as_of": AS_OF,
        "assumptions": _assumptions(plan, measured=lake is not None),
        "measured": measured,
        "verdict": {"store": store, **asdict(verdict)},
    }


def _growth(plan: Plan, story: bool, since: int) -> RenderableType:
    rows = []
    for g in _milestones([g for g in plan.growth if g.steps >= since]):
        reported = [f"{reported_gb(plan.workload, g.generation):,.1f} GB"] if story else []
        sizes = formats.size(g.plain), formats.span(*g.gzip), formats.span(*g.lakepond)
        rows.append((str(g.generation), formats.number(g.steps), *reported, *sizes))
    heads = ("gen", "steps", *(["reported"] if story else []), *HEADS)
    return words.NumberTable("The replay on disk", heads, rows)


def _milestones(growth: Sequence[Growth]) -> list[Growth]:
    """The first generation, the last, and some between them at regular distances."""
    every = max(1, -(-len(growth) // 5))
    return [g for g in growth if g in (growth[0], growth[-1]) or g.generation % every == 0]


def _totals(plan: Plan) -> RenderableType:
    stores = [plan.store(name) for name in STORES]
    rows = [
        ("disk, this run alone", *(formats.span(*store.run) for store in stores)),
        ("disk to rent", *(formats.span(*store.disk) for store in stores)),
        ("memory while saving", *(formats.size(store.memory) for store in stores)),
        ("device memory", *(formats.size(store.device) for store in stores)),
        (
            f"upload every {plan.workload.upload_every} gen",
            *(formats.span(*store.upload) for store in stores),
        ),
        ("upload of the folder", "–", formats.span(*plan.upload_of_folder), "–"),
    ]
    return words.NumberTable("Total", ("", *HEADS), rows)


def _offers(plan: Plan) -> RenderableType:
    narrow = words.is_narrow()
    rows: list[tuple[words.Cell, ...]] = [
        (
            offer.provider,
            *([] if narrow else [offer.what]),
            formats.size(offer.disk),
            *(words.styled((fits, COLOURS[fits])) for fits in _fits(plan, offer).values()),
        )
        for offer in OFFERS
    ]
    heads = ("provider", *([] if narrow else ["offer"]), "disk", *HEADS)
    return words.NumberTable("Rented disks", heads, rows, text=(0,) if narrow else (0, 1))


def _fits(plan: Plan, offer: Offer) -> dict[str, str]:
    """Whether each store fits a disk: "fits" at worst, "tight" at best, or "no"."""
    needs = {name: plan.store(name).disk for name in STORES}
    return {
        name: "fits" if high <= offer.disk else "tight" if low <= offer.disk else "no"
        for name, (low, high) in needs.items()
    }


def _assumptions(plan: Plan, *, measured: bool) -> str:
    work, shares = plan.workload, plan.workload.shares
    gzip = f"gzip compresses to {_share(shares.gzip)}"
    if measured:
        installed = total(*(part.bytes for part in plan.parts if part.installed))
        parts = [gzip, f"the system and the libraries take {formats.span(*installed)}"]
    else:
        rows = work.distinct_rows(work.steps)
        moved = "a new array" if work.rows == "whole" else f"obs shifted along its {work.rows} axis"
        parts = [
            f"{rows:,} distinct rows in {work.steps:,} steps, because next_obs is {moved} (--rows, --pool)"
            if rows
            else "observations this small are stored without deduplication",
            gzip,
            f"zstd to {_share(shares.rows)} of rows and {_share(shares.columns)} of columns ({shares.why})",
            f"a trainer needs {formats.size(PROCESS_BYTES)} of memory besides its replay",
            f"its learner takes as much as {LEARNER_AGENTS} agents",
        ]
    return f"Assumed: {'; '.join(parts)}; disks of providers as of {AS_OF}, check before renting."


def _share(shares: Range) -> str:
    low, high = (f"{100 * share:.{2 if share < 0.1 else 3}g}" for share in shares)
    return f"{low} %" if low == high else f"{low}–{high} %"


def _steps_left(lake: LakeSize, disk: int) -> int | None:
    return int(disk / lake.bytes_per_step) if lake.bytes_per_step else None


def _forecast(lake: LakeSize, disk: int) -> str:
    left = _steps_left(lake, disk)
    until = "it does not grow" if left is None else f"{formats.size(disk)} is free, enough for {left:,} steps"
    return (
        f"Measured at commit {lake.commit}: {lake.steps:,} steps in {formats.size(lake.bytes)}, lately "
        f"{formats.size(lake.bytes_per_step)} per step and {lake.per_commit:,} steps per commit; {until}."
    )
