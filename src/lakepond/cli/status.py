"""`lakepond status`: a run at a glance."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond.cli import where, words

if TYPE_CHECKING:
    from rich.console import RenderableType

    from lakepond.runs.status import LakeStatus as LakeTold
    from lakepond.runs.status import Status as Told

COLOURS = {"running": "green", "finished": "cyan", "stopped": "yellow"}
BAR = 24
"""columns of the progress bar"""


@dataclass(frozen=True)
class Status:
    """Tell how a run is doing: progress, rates, memory, disk, lake, uploads; running, finished or dead.

    Example: lakepond status runs/demo

    Example: lakepond status gs://my-bucket/runs/demo --json
    """

    path: Annotated[Positional[str], arg(metavar="PATH|URL")]
    """a run, a lake, or the copy of one in a bucket"""
    json: bool = False
    """print JSON instead of lines"""

    def run(self) -> None:
        """Look, tell."""
        told = look(self.path)
        if self.json:
            words.print_json(as_json(told))
        else:
            words.console().print(picture(told))


def look(path: str) -> Told:
    """The status of what a path or an address names."""
    if where.is_url(path):
        from lakepond.runs.status_in_cloud import look_in_cloud

        return look_in_cloud(path)
    from lakepond.runs import status

    return status.look(path)


def as_json(told: Told) -> dict[str, Any]:
    """All of it; moments are seconds since 1970."""
    lake = None if told.lake is None else {**asdict(told.lake), "ratio": told.lake.ratio}
    return {**asdict(told), "lake": lake}


def picture(told: Told) -> RenderableType:
    """A status for people."""
    now = time.time()
    colour = COLOURS[told.state]
    state = told.state if told.trainer else "being written" if told.pid else "not being written"
    pid = f", process {told.pid}" if told.pid else ""
    name, trainer = words.literal(told.path), words.literal(told.trainer or "a lake")
    rows = [("", f"[bold]{name}[/]  {trainer}, [{colour}]{state}[/]{pid}")]
    if told.done is not None and told.trainer is not None:
        rows.append((told.unit, _progress(told)))
    if told.per_second is not None and told.state != "finished":
        rows.append(("rate", _rate(told)))
    if told.logged is not None:
        rows.append(("last log", words.age(told.logged, now)))
    rows += _machine(told)
    if told.lake is not None:
        rows += _lake(told.lake, now)
    if told.checkpoint is not None:
        rows.append(("checkpoint", str(told.checkpoint)))
    if told.upload is not None:
        rows.append(("upload", _upload(told)))
    rows += [("" if i else "log", text) for i, text in enumerate(_metrics(told))]
    rows += [("[red]problem[/]", words.literal(text)) for text in told.problems]
    return words.facts(rows)


def _progress(told: Told) -> str:
    if told.total is None:
        return words.count(told.done)
    share = min(1.0, (told.done or 0) / max(1, told.total))
    full = round(share * BAR)
    bar = f"[{COLOURS[told.state]}]{'━' * full}[/][dim]{'━' * (BAR - full)}[/]"
    left = (
        f", {words.duration(told.eta_seconds)} left" if told.eta_seconds and told.state == "running" else ""
    )
    return f"{bar} {words.count(told.done)} of {words.count(told.total)}, {share:.0%}{left}"


def _rate(told: Told) -> str:
    assert told.per_second is not None
    if told.per_second >= 1:
        return f"{told.per_second:,.0f} {told.unit} a second"
    return f"{words.duration(1 / told.per_second)} a {told.unit}"


def _machine(told: Told) -> list[tuple[str, str]]:
    rows = []
    if told.rss_bytes is not None:
        rows.append(("memory", words.size(told.rss_bytes)))
    if told.device_bytes is not None:
        rows.append(("device", f"{words.size(told.device_bytes)} of {words.size(told.device_limit_bytes)}"))
    if told.disk_free_bytes is not None:
        full = told.disk_full_seconds
        until = f", full in {words.duration(full)} at this rate" if full is not None else ""
        rows.append(("disk", f"{words.size(told.disk_free_bytes)} free{until}"))
    return rows


def _lake(lake: LakeTold, now: float) -> list[tuple[str, str]]:
    held, plain = words.size(lake.bytes_on_disk), words.size(lake.bytes_plain)
    kept = words.count(lake.commits_kept)
    return [
        ("lake", f"{words.count(lake.steps)} steps in {held}; plainly {plain}, {words.ratio(lake.ratio)}"),
        ("commit", f"{lake.commit}, {words.age(lake.committed, now)}; {kept} kept"),
    ]


def _upload(told: Told) -> str:
    assert told.upload is not None
    upload = told.upload
    url = words.literal(upload.url)
    text = f"all in {url}"
    if upload.pending:
        files = "1 file" if upload.pending == 1 else f"{upload.pending:,} files"
        text = f"{files}, {words.size(upload.pending_bytes)}, to go to {url}"
    return f"{text} [red]({words.literal(upload.last_error)})[/]" if upload.last_error else text


def _metrics(told: Told) -> list[str]:
    """The numbers that a trainer logged last and that are not told above, four to a line."""
    above = ("step", "time", told.unit, "generation", "upload_error")
    shown = [
        f"{words.literal(name.replace('_', ' '))} {value:,.4g}"
        for name, value in told.metrics.items()
        if isinstance(value, int | float)
        and not isinstance(value, bool)
        and name not in above
        and not name.startswith(("disk_", "memory_", "device_"))
        and not name.endswith(("_bytes", "bytes_plain", "bytes_held"))
    ]
    return [", ".join(shown[at : at + 4]) for at in range(0, min(len(shown), 16), 4)]
