"""`lakepond status`: the state of a run on one screen."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.flag import Flag

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from lakepond.runs.status import LakeStatus as LakeTold
    from lakepond.runs.status import LearnerStatus
    from lakepond.runs.status import Status as Told

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
    json: Flag = False
    """print JSON instead of lines"""

    def run(self) -> None:
        """Read the status and print it."""
        told = look(self.path)
        if self.json:
            words.print_json(as_json(told))
        else:
            words.console().print(picture(told))


def look(path: str) -> Told:
    """The status of the run or lake at a path or URL."""
    if where.is_url(path):
        from lakepond.runs.status_in_cloud import look_in_cloud

        return look_in_cloud(path)
    from lakepond.runs import status

    return status.look(path)


def as_json(told: Told) -> dict[str, Any]:
    """The status as JSON; moments are seconds since 1970."""
    lake = None if told.lake is None else {**asdict(told.lake), "ratio": told.lake.ratio}
    return {**asdict(told), "lake": lake}


def picture(told: Told) -> RenderableType:
    """A status for people."""
    now = time.time()
    colour = COLOURS[told.state]
    state = told.state if told.trainer else "being written" if told.pid else "not being written"
    pid = f", process {told.pid}" if told.pid else ""
    head = words.styled((str(told.path), "bold"), f"  {told.trainer or 'lake'}, ", (state, colour), pid)
    rows: list[tuple[str | Text, str | Text]] = [("", head)]
    if told.done is not None and told.trainer is not None:
        rows.append((told.unit, _progress(told)))
    if told.per_second is not None and told.state != "finished":
        rows.append(("rate", _rate(told)))
    if told.logged is not None:
        rows.append(("last log", formats.age(told.logged, now)))
    rows += _machine(told)
    if told.lake is not None:
        rows += _lake(told.lake, now)
    if told.checkpoint is not None:
        rows.append(("checkpoint", str(told.checkpoint)))
    if told.upload is not None:
        rows.append(("upload", _upload(told)))
    if metrics := _metrics(told):
        rows.append(("log", metrics))
    rows += [(words.styled(("problem", "red")), text) for text in told.problems]
    return words.facts(rows)


def _progress(told: Told) -> str | Text:
    if told.total is None:
        return formats.count(told.done)
    share = min(1.0, (told.done or 0) / max(1, told.total))
    full = round(share * BAR)
    left = (
        f", {formats.duration(told.eta_seconds)} left" if told.eta_seconds and told.state == "running" else ""
    )
    text = f" {formats.count(told.done)} of {formats.count(told.total)}, {100 * share:.0f} %{left}"
    return words.styled(("━" * full, COLOURS[told.state]), ("━" * (BAR - full), "dim"), text)


def _rate(told: Told) -> str:
    assert told.per_second is not None
    if told.per_second >= 1:
        return f"{formats.count(told.per_second)} {told.unit.removesuffix('s')}s per second"
    return f"{formats.duration(1 / told.per_second)} per {told.unit.removesuffix('s')}"


def _machine(told: Told) -> list[tuple[str, str]]:
    rows = []
    if told.rss_bytes is not None:
        rows.append(("memory", formats.size(told.rss_bytes)))
    if told.device_bytes is not None:
        rows.append(
            ("device", f"{formats.size(told.device_bytes)} of {formats.size(told.device_limit_bytes)}")
        )
    if told.disk_free_bytes is not None:
        full = told.disk_full_seconds
        until = f", full in {formats.duration(full)} at this rate" if full is not None else ""
        rows.append(("disk", f"{formats.size(told.disk_free_bytes)} free{until}"))
    return rows


def _lake(lake: LakeTold, now: float) -> list[tuple[str, str]]:
    held, plain = formats.size(lake.bytes_on_disk), formats.size(lake.bytes_plain)
    kept, ratio = formats.count(lake.commits_kept), formats.ratio(lake.ratio)
    writers = [
        (
            "writer",
            f"{each.name or 'without a name'}: {formats.counted(each.steps, 'step')}, "
            f"commit {each.commit}, {formats.age(each.committed, now)}{_collector(each.collector or {})}",
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
    """What a collector said of itself; from a file that anybody may have written."""
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


def _upload(told: Told) -> Text:
    assert told.upload is not None
    upload = told.upload
    text = f"complete at {upload.url}"
    if upload.pending:
        files = formats.counted(upload.pending, "file")
        text = f"{files}, {formats.size(upload.pending_bytes)}, not uploaded yet to {upload.url}"
    return words.styled(text, (f" ({upload.last_error})" if upload.last_error else "", "red"))


def _metrics(told: Told) -> str:
    """The first 16 of the metrics logged last that are not shown above."""
    above = ("step", "time", told.unit, "generation", "upload_error")
    shown = [
        f"{name.replace('_', ' ')} {_metric(name, value)}"
        for name, value in told.metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in above
        and not name.startswith(("disk_", "memory_", "device_"))
        and not name.endswith(("_bytes", "bytes_plain", "bytes_held"))
    ]
    return ", ".join(shown[:16])


def _metric(name: str, value: float) -> str:
    is_duration = name.endswith("_seconds") or "_seconds_" in name
    return formats.duration(value) if is_duration else formats.number(value)
