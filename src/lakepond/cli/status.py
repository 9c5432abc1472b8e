"""`lakepond status`: the state of a run on one screen."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from lakepond.runs.status import LakeStatus, LearnerStatus, RunStatus

COLOURS = {"running": "green", "finished": "cyan", "stopped": "yellow"}
SHOWN_WRITERS = 16
BAR = 24
"""columns of the progress bar"""


@dataclass(frozen=True)
class Status:
    """Show the state of a run: running, finished or stopped; progress, rate, memory, disk, lake, uploads.

    Example: lakepond status runs/demo

    Example: lakepond status gs://my-bucket/runs/demo --json
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a run, a lake, or the URL of a copy in a bucket"""
    json: Json = False

    def run(self) -> None:
        show(looking_at(self.path)(), as_json=self.json)


def looking_at(path: str) -> Callable[[], RunStatus]:
    """A function that returns the status of the run or lake at a path or URL now."""
    if where.is_url(path):
        from lakepond.runs.status_in_cloud import watch_in_cloud

        return watch_in_cloud(path)
    from lakepond.runs import status

    return partial(status.look, path)


def show(status: RunStatus, *, as_json: bool) -> None:
    """Print a status for people, or as JSON with moments in seconds since 1970."""
    if as_json:
        lake = None if status.lake is None else {**asdict(status.lake), "ratio": status.lake.ratio}
        words.print_json({**asdict(status), "lake": lake})
    else:
        words.console().print(picture(status))


def picture(status: RunStatus) -> RenderableType:
    """A status for people."""
    now = time.time()
    written = "being written" if status.state == "running" else "not being written"
    state = (status.state if status.trainer else written, COLOURS[status.state])
    pid = f", process {status.pid}" if status.pid else ""
    head = words.styled((str(status.path), "bold"), f"  {status.trainer or 'lake'}, ", state, pid)
    rows: list[tuple[str | Text, str | Text]] = [("", head)]
    if status.done is not None and status.trainer is not None:
        rows.append((status.unit, _progress(status)))
    if status.per_second is not None and status.state != "finished":
        rows.append(("rate", _rate(status)))
    if status.logged is not None:
        rows.append(("last log", formats.age(status.logged, now)))
    rows += _machine(status)
    if status.lake is not None:
        rows += _lake(status.lake, now)
    if workers := _workers(status.metrics):
        rows.append(("workers", workers))
    if status.checkpoint is not None:
        rows.append(("checkpoint", str(status.checkpoint)))
    if status.upload is not None:
        rows.append(("upload", _upload(status)))
    if metrics := _metrics(status):
        rows.append(("log", metrics))
    rows += [(words.styled(("problem", "red")), text) for text in status.problems]
    return words.facts(rows)


def _progress(status: RunStatus) -> str | Text:
    if status.total is None:
        return formats.count(status.done)
    share = min(1.0, (status.done or 0) / max(1, status.total))
    full = round(share * BAR)
    running = status.eta_seconds and status.state == "running"
    left = f", {formats.duration(status.eta_seconds)} left" if running else ""
    text = f" {formats.count(status.done)} of {formats.count(status.total)}, {100 * share:.0f} %{left}"
    return words.styled(("━" * full, COLOURS[status.state]), ("━" * (BAR - full), "dim"), text)


def _rate(status: RunStatus) -> str:
    assert status.per_second is not None
    if status.per_second >= 1:
        return f"{formats.count(status.per_second)} {status.unit.removesuffix('s')}s per second"
    return f"{formats.duration(1 / status.per_second)} per {status.unit.removesuffix('s')}"


def _machine(status: RunStatus) -> list[tuple[str, str]]:
    rows = []
    if status.rss_bytes is not None:
        rows.append(("memory", formats.size(status.rss_bytes)))
    if status.device_bytes is not None:
        used, limit = formats.size(status.device_bytes), formats.size(status.device_limit_bytes)
        rows.append(("device", f"{used} of {limit}"))
    if status.disk_free_bytes is not None:
        full = status.disk_full_seconds
        until = f", full in {formats.duration(full)} at this rate" if full is not None else ""
        rows.append(("disk", f"{formats.size(status.disk_free_bytes)} free{until}"))
    return rows


def _lake(lake: LakeStatus, now: float) -> list[tuple[str, str]]:
    held, plain = formats.size(lake.bytes_on_disk), formats.size(lake.bytes_plain)
    kept, ratio = formats.count(lake.commits_kept), formats.ratio(lake.ratio)
    writers = [
        (
            "writer",
            f"{each.name or 'without a name'}: {formats.counted(each.steps, 'step')}, "
            f"commit {each.commit}, {formats.age(each.committed, now)}, "
            f"{'alive' if each.alive else 'silent'}{_collector(each.collector or {})}",
        )
        for each in lake.writers[:SHOWN_WRITERS]
    ]
    if len(lake.writers) > SHOWN_WRITERS:
        writers.append(("", f"{len(lake.writers) - SHOWN_WRITERS:,} more writers; --json lists all"))
    return [
        ("lake", f"{formats.counted(lake.steps, 'step')} in {held} (without deduplication {plain}, {ratio})"),
        ("commit", f"{lake.commit}, {formats.age(lake.committed, now)}; {kept} kept"),
        *writers,
        *(("learner", _learner(each, now)) for each in lake.learners),
    ]


def _collector(note: dict[str, Any]) -> str:
    """The status that a collector stored with its commit; untrusted input."""
    parts = []
    if isinstance(rate := note.get("steps_per_second"), int | float):
        parts.append(f"{formats.number(rate)} steps/s")
    if isinstance(weights := note.get("weights"), int) and weights:
        parts.append(f"weights {weights}")
    if isinstance(starts := note.get("starts"), int) and starts > 1:
        parts.append(f"restarted {formats.counted(starts - 1, 'time')}")
    if note.get("waiting") is True:
        parts.append("waits for the learner")
    if isinstance(error := note.get("error"), str):
        parts.append(words.printable(error[:200]))
    return "".join(f"; {part}" for part in parts)


def _learner(each: LearnerStatus, now: float) -> str:
    ratio = each.sampled / each.inserted if each.inserted else 0.0
    waits = "; collectors wait for it" if each.ahead else ""
    return (
        f"{formats.counted(each.inserted, 'step')} inserted, {formats.count(each.sampled)} sampled "
        f"({ratio:.3g} per insert), {formats.age(each.said, now)}{waits}"
    )


def _workers(metrics: dict[str, Any]) -> str:
    """The Ray workers of a run, when it logged last; empty if it had none."""
    names = ("workers", "workers_alive", "worker_restarts", "workers_lag_seconds", "samples_per_insert")
    known = {name: value for name in names if isinstance(value := metrics.get(name), int | float)}
    if not known.keys() >= set(names[:3]):
        return ""
    count, alive, restarts = (int(known[name]) for name in names[:3])
    parts = [f"{alive} of {count} alive", f"restarted {formats.counted(restarts, 'time')}"]
    if "workers_lag_seconds" in known:
        parts.append(f"lag {formats.duration(known['workers_lag_seconds'])}")
    if "samples_per_insert" in known:
        parts.append(f"{known['samples_per_insert']:.3g} samples per insert")
    return "; ".join(parts)


def _upload(status: RunStatus) -> Text:
    assert status.upload is not None
    upload = status.upload
    text = f"complete at {upload.url}"
    if upload.pending:
        files = formats.counted(upload.pending, "file")
        text = f"{files}, {formats.size(upload.pending_bytes)}, not uploaded yet to {upload.url}"
    return words.styled(text, (f" ({upload.last_error})" if upload.last_error else "", "red"))


def _metrics(status: RunStatus) -> str:
    """The first 16 of the metrics logged last that are not shown above."""
    above = ("step", "time", status.unit, "generation", "upload_error")
    shown = [
        f"{name.replace('_', ' ')} {_metric(name, value)}"
        for name, value in status.metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in above
        and not name.startswith(("disk_", "memory_", "device_", "worker"))
        and not name.endswith(("_bytes", "bytes_plain", "bytes_held"))
    ]
    return ", ".join(shown[:16])


def _metric(name: str, value: float) -> str:
    is_duration = name.endswith("_seconds") or "_seconds_" in name
    return formats.duration(value) if is_duration else formats.number(value)
