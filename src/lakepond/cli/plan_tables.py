"""A plan as tables, and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from lakepond.cli import words
from lakepond.plan import story as old
from lakepond.plan.needs import LEARNER_AGENTS, PROCESS_BYTES, Growth, Plan, Verdict
from lakepond.plan.offers import AS_OF, OFFERS

if TYPE_CHECKING:
    from rich.table import Table

    from lakepond.plan.measured import Written
    from lakepond.plan.workload import Range

STORES = ("plain", "gzip", "lakepond")
HEADS = ("plain", "gzip", "lakepond")
FITS = {"fits": "[green]fits[/]", "tight": "[yellow]tight[/]", "no": "[red]no[/]"}


def tables(plan: Plan, so_far: Written | None, disk: int, *, story: bool) -> Iterator[Table | str]:
    """All that a plan says, top to bottom; `story`: beside the numbers of the trading project's own table."""
    step = plan.workload.spec.step_nbytes
    yield f"One transition is {step:,} B ({step / 2**20:.2f} MiB) plainly.\n"
    if so_far is not None:
        yield f"{_forecast_text(so_far, disk)}\n"
    yield _growth(plan, story, 0 if so_far is None else so_far.steps)
    yield _beside(plan)
    yield _totals(plan)
    yield _offers(plan)
    yield f"[dim]{_assumptions(plan, so_far)}[/]\n"
    if story:
        yield (
            "[dim]As told: the trading project's own table; it took a transition as 3.74 MiB, 1,000 MiB as a "
            "GB. It also told of about 900 GB uploaded by walking the folder at every generation, where "
            "250 GB were meant. GB here are 10^9 bytes, as disks are sold.[/]\n"
        )


def as_json(plan: Plan, verdict: Verdict, store: str, so_far: Written | None, disk: int) -> dict[str, Any]:
    """All of it, in bytes; ranges are [at best, at worst]."""
    work = plan.workload
    return {
        "transition_bytes": work.spec.step_nbytes,
        "per_generation": work.per_generation,
        "generations": work.generations,
        "distinct_rows": work.distinct_rows(work.steps),
        "growth": [{**asdict(g), "story_gb": round(old.size(work, g.generation), 2)} for g in plan.growth],
        "parts": {part.name: part.bytes for part in plan.parts},
        "stores": {name: asdict(plan.store(name)) for name in STORES},
        "upload_as_it_was": plan.upload_as_it_was,
        "offers": [
            {**asdict(offer), "fits": {name: fit(plan.store(name).disk, offer.disk) for name in STORES}}
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


def _growth(plan: Plan, story: bool, since: int) -> Table:
    rows = []
    for g in _milestones([g for g in plan.growth if g.steps >= since]):
        told = [f"{old.size(plan.workload, g.generation):,.1f} GB"] if story else []
        rows.append(
            (
                str(g.generation),
                words.count(g.steps),
                *told,
                words.size(g.plain),
                _of(g.gzip),
                _of(g.lakepond),
            )
        )
    heads = ("gen", "steps", *(["as told"] if story else []), *HEADS)
    return words.table(f"The replay on disk{_at_worst()}", heads, rows)


def _milestones(growth: Sequence[Growth]) -> list[Growth]:
    """The first generation, the last, and some between them at round numbers."""
    every = max(1, -(-len(growth) // 5))
    return [g for g in growth if g in (growth[0], growth[-1]) or g.generation % every == 0]


def _beside(plan: Plan) -> Table:
    rows = [(part.name, words.span(*part.bytes)) for part in plan.parts]
    return words.table("Beside it on the disk", ("", "size"), rows)


def _totals(plan: Plan) -> Table:
    stores = [plan.store(name) for name in STORES]
    rows = [
        ("disk to rent", *(_of(store.disk) for store in stores)),
        ("memory, with saving", *(words.size(store.memory) for store in stores)),
        ("device memory", *(words.size(store.device) for store in stores)),
        (f"upload each {plan.workload.upload_every} gen", *(_of(store.upload) for store in stores)),
        ("upload by walking", "–", _of(plan.upload_as_it_was), "–"),
    ]
    return words.table(f"In all{_at_worst()}", ("", *HEADS), rows)


def _offers(plan: Plan) -> Table:
    narrow, rows = words.is_narrow(), []
    for offer in OFFERS:
        what = [] if narrow else [offer.what]
        fits = [FITS[fit(plan.store(name).disk, offer.disk)] for name in STORES]
        rows.append((offer.provider, *what, words.size(offer.disk), *fits))
    heads = ("", *([] if narrow else [""]), "disk", *HEADS)
    return words.table("What fits which disk", heads, rows, left=1 if narrow else 2)


def fit(need: Range, disk: float) -> str:
    """Whether a need fits a disk: "fits" at worst, "tight" at best, or "no"."""
    return "fits" if need[1] <= disk else "tight" if need[0] <= disk else "no"


def _of(sizes: Range) -> str:
    return words.size(sizes[1]) if words.is_narrow() else words.span(*sizes)


def _at_worst() -> str:
    return " (at worst)" if words.is_narrow() else ""


def _assumptions(plan: Plan, so_far: Written | None) -> str:
    work, shares = plan.workload, plan.workload.shares
    parts = [
        f"Assumed: gzip leaves {_share(shares.gzip)}",
        f"zstd {_share(shares.rows)} of rows and {_share(shares.columns)} of columns ({shares.why})",
        f"a trainer takes {words.size(PROCESS_BYTES)} beside its replay",
        f"its learner counts as {LEARNER_AGENTS} agents",
        f"disks of providers are as of {AS_OF}: check before renting",
    ]
    if so_far is None:
        last = work.distinct_rows(work.steps)
        many = f"{last:,} distinct rows in {work.steps:,} steps"
        moved = "one array each" if work.rows == "whole" else f"obs moved on along its {work.rows} axis"
        parts.insert(0, f"Lakepond's size follows from {many}: next_obs is {moved}, see --rows and --pool")
        parts[1] = parts[1].replace("Assumed: ", "")
    return "; ".join(parts) + "."


def _share(shares: Range) -> str:
    low, high = (f"{100 * share:.{2 if share < 0.1 else 3}g} %" for share in shares)
    return f"{low} to {high}"


def _steps_left(so_far: Written, disk: int) -> int | None:
    return int(disk / so_far.bytes_per_step) if so_far.bytes_per_step else None


def _forecast_text(so_far: Written, disk: int) -> str:
    left = _steps_left(so_far, disk)
    until = (
        "it does not grow"
        if left is None
        else f"the {words.size(disk)} that are free last {left:,} steps more"
    )
    return (
        f"Measured at commit {so_far.commit}: {so_far.steps:,} steps in {words.size(so_far.bytes)}, lately "
        f"{so_far.bytes_per_step:,.0f} B a step and {so_far.per_commit:,} steps a commit; {until}."
    )
