"""A plan as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from lakepond import formats
from lakepond.cli import words
from lakepond.plan.needs import GB, LEARNER_AGENTS, PROCESS_BYTES, Growth, Plan, Verdict, reported_gb

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from lakepond.plan.measured import LakeSize
    from lakepond.plan.workload import Range

STORES = ("plain", "gzip", "lakepond")
HEADS = ("uncompressed", "gzip", "lakepond")
COLOURS = {"fits": "green", "tight": "yellow", "no": "red"}
AS_OF = "November 2026"


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


def tables(plan: Plan, so_far: LakeSize | None, disk: int, *, story: bool) -> Iterator[RenderableType]:
    """All tables of a plan, top to bottom; `story`: with the sizes that eigen2 reported."""
    step = plan.workload.spec.step_nbytes
    yield f"One transition is {step:,} B ({step / 2**20:.2f} MiB) uncompressed.\n"
    if so_far is not None:
        yield words.paragraph(_forecast_text(so_far, disk))
    yield _growth(plan, story, 0 if so_far is None else so_far.steps)
    yield _beside(plan)
    yield _totals(plan)
    yield _offers(plan)
    yield words.styled((words.paragraph(_assumptions(plan, so_far)), "dim"))
    if story:
        note = (
            "Reported: calculated for pickles by the trading project eigen2, the model for this preset, in "
            "units of 1,000 MiB. In all other columns a GB is 10^9 bytes, as disks are sold."
        )
        yield words.styled((words.paragraph(note), "dim"))


def as_json(plan: Plan, verdict: Verdict, store: str, so_far: LakeSize | None, disk: int) -> dict[str, Any]:
    """The plan in bytes; ranges are [at best, at worst]."""
    work = plan.workload
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
        "offers": [
            {**offer._asdict(), "fits": {name: fit(plan.store(name).disk, offer.disk) for name in STORES}}
            for offer in OFFERS
        ],
        "offers_as_of": AS_OF,
        "assumptions": _assumptions(plan, so_far),
        "measured": None
        if so_far is None
        else {
            "commit": so_far.commit,
            "steps": so_far.steps,
            "bytes": so_far.bytes,
            "bytes_per_step": so_far.bytes_per_step,
            "steps_per_commit": so_far.per_commit,
            "disk_full_after_steps": _steps_left(so_far, disk),
        },
        "verdict": {"store": store, "fits": verdict.fits, "why": verdict.why},
    }


def _growth(plan: Plan, story: bool, since: int) -> RenderableType:
    rows = []
    for g in _milestones([g for g in plan.growth if g.steps >= since]):
        reported = [f"{reported_gb(plan.workload, g.generation):,.1f} GB"] if story else []
        sizes = formats.size(g.plain), _of(g.gzip), _of(g.lakepond)
        rows.append((str(g.generation), formats.count(g.steps), *reported, *sizes))
    heads = ("gen", "steps", *(["reported"] if story else []), *HEADS)
    return words.NumberTable(f"The replay on disk{_at_worst()}", heads, rows)


def _milestones(growth: Sequence[Growth]) -> list[Growth]:
    """The first generation, the last, and some between them at regular distances."""
    every = max(1, -(-len(growth) // 5))
    return [g for g in growth if g in (growth[0], growth[-1]) or g.generation % every == 0]


def _beside(plan: Plan) -> RenderableType:
    rows = [(part.name, formats.span(*part.bytes)) for part in plan.parts]
    return words.NumberTable("Also on the disk", ("", "size"), rows)


def _totals(plan: Plan) -> RenderableType:
    stores = [plan.store(name) for name in STORES]
    rows = [
        ("disk, this run alone", *(_of(store.run) for store in stores)),
        ("disk to rent", *(_of(store.disk) for store in stores)),
        ("memory while saving", *(formats.size(store.memory) for store in stores)),
        ("device memory", *(formats.size(store.device) for store in stores)),
        (f"upload every {plan.workload.upload_every} gen", *(_of(store.upload) for store in stores)),
        ("upload of the folder", "–", _of(plan.upload_of_folder), "–"),
    ]
    return words.NumberTable(f"Total{_at_worst()}", ("", *HEADS), rows)


def _offers(plan: Plan) -> RenderableType:
    narrow = words.is_narrow()
    rows: list[tuple[str | Text, ...]] = []
    for offer in OFFERS:
        what = [] if narrow else [offer.what]
        found = [fit(plan.store(name).disk, offer.disk) for name in STORES]
        fits = [words.styled((each, COLOURS[each])) for each in found]
        rows.append((offer.provider, *what, formats.size(offer.disk), *fits))
    heads = ("provider", *([] if narrow else ["offer"]), "disk", *HEADS)
    return words.NumberTable("Rented disks", heads, rows, text=(0,) if narrow else (0, 1))


def fit(need: Range, disk: float) -> str:
    """Whether a need fits a disk: "fits" at worst, "tight" at best, or "no"."""
    return "fits" if need[1] <= disk else "tight" if need[0] <= disk else "no"


def _of(sizes: Range) -> str:
    return formats.size(sizes[1]) if words.is_narrow() else formats.span(*sizes)


def _at_worst() -> str:
    return " (at worst)" if words.is_narrow() else ""


def _assumptions(plan: Plan, so_far: LakeSize | None) -> str:
    work, shares = plan.workload, plan.workload.shares
    parts = [
        f"Assumed: gzip compresses to {_share(shares.gzip)}",
        f"zstd to {_share(shares.rows)} of rows and {_share(shares.columns)} of columns ({shares.why})",
        f"a trainer needs {formats.size(PROCESS_BYTES)} of memory besides its replay",
        f"its learner takes as much as {LEARNER_AGENTS} agents",
        f"disks of providers as of {AS_OF}, check before renting",
    ]
    if so_far is None:
        last = work.distinct_rows(work.steps)
        many = f"{last:,} distinct rows in {work.steps:,} steps"
        moved = "a new array" if work.rows == "whole" else f"obs shifted along its {work.rows} axis"
        why = f"{many}, because next_obs is {moved} (--rows, --pool)"
        parts.insert(
            0, f"Assumed: {why if last else 'observations this small are stored without deduplication'}"
        )
        parts[1] = parts[1].replace("Assumed: ", "")
    else:
        del parts[1:4]  # measured
        parts.insert(1, f"the system and the libraries take {formats.span(*_installed(plan))}")
    return "; ".join(parts) + "."


def _installed(plan: Plan) -> Range:
    sizes = [part.bytes for part in plan.parts if part.installed]
    return sum(low for low, _ in sizes), sum(high for _, high in sizes)


def _share(shares: Range) -> str:
    low, high = (f"{100 * share:.{2 if share < 0.1 else 3}g}" for share in shares)
    return f"{low} %" if low == high else f"{low}–{high} %"


def _steps_left(so_far: LakeSize, disk: int) -> int | None:
    return int(disk / so_far.bytes_per_step) if so_far.bytes_per_step else None


def _forecast_text(so_far: LakeSize, disk: int) -> str:
    left = _steps_left(so_far, disk)
    until = "it does not grow" if left is None else f"{formats.size(disk)} is free, enough for {left:,} steps"
    return (
        f"Measured at commit {so_far.commit}: {so_far.steps:,} steps in {formats.size(so_far.bytes)}, lately "
        f"{formats.size(so_far.bytes_per_step)} per step and {so_far.per_commit:,} steps per commit; {until}."
    )
