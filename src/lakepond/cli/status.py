"""`lakepond status` and `lakepond watch`: the state of a run on one screen, once or until it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from lakepond import formats
from lakepond.cli import DONE, words
from lakepond.cli.options import Flag, Json, Place, at_least

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

    from lakepond.runs.lake_status import LakeStatus, LearnerStatus
    from lakepond.runs.status import RunStatus

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

    path: Place
    """a run, a lake, or the URL of a copy in a bucket"""
    json: Json = False

    def run(self) -> None:
        from lakepond.runs import status

        show(status.look(self.path), as_json=self.json)


@dataclass(frozen=True)
class Watch:
    """Show the state of a run, updated until it ends or you press Ctrl-C.

    Of a lake in a bucket it shows every writer, until none of them makes commits any more.

    Example: lakepond watch runs/demo

    Example: lakepond watch gs://my-bucket/demo

    Example: lakepond watch runs/demo --every 60 --json >> watch.jsonl
    """

    path: Place
    """a run, a lake, or the URL of a copy in a bucket"""
    every: float = 2.0
    """seconds between two updates, at least 0.1"""
    stay: Flag = False
    """continue after the run has ended, because it may be resumed"""
    json: Flag = False
    """print one line of JSON per update"""

    def run(self) -> int:
        from lakepond.runs import status

        at_least(0.1, every=self.every)
        try:
            look = status.watch(self.path)
            if self.json or not words.console().is_terminal:
                return self._repeat(look, lambda status: show(status, as_json=self.json))
            from rich.live import Live

            with Live(console=words.console(), auto_refresh=False, vertical_overflow="visible") as live:
                return self._repeat(look, lambda status: live.update(picture(status), refresh=True))
        except KeyboardInterrupt:
            return DONE

    def _repeat(self, look: Callable[[], RunStatus], show: Callable[[RunStatus], None]) -> int:
        while True:
            show(status := look())
            if status.state != "running" and not self.stay:
                return DONE
            time.sleep(self.every)


def show(status: RunStatus, *, as_json: bool) -> None:
    """Print a status for people, or as JSON with moments in seconds since 1970."""
    if as_json:
        lake = None if status.lake is None else {**asdict(status.lake), "ratio": status.lake.ratio}
        words.print_json({**asdict(status), "lake": lake})
    else:
        words.console().print(picture(status))


def picture(status: RunStatus) -> RenderableType:
    """A status for people; what is not known is left out."""
    now = time.time()
    written = "being written" if status.state == "running" else "not being written"
    state = (status.state if status.trainer else written, COLOURS[status.state])
    pid = f", process {status.pid}" if status.pid else ""
    head = words.styled((str(status.path), "bold"), f"  {status.trainer or 'lake'}, ", state, pid)
    rows: list[tuple[str | Text, str | Text]] = [
        ("", head),
        (status.unit, _progress(status)),
        ("rate", _rate(status)),
        ("last log", "" if status.logged is None else formats.age(status.logged, now)),
        ("memory", "" if status.rss_bytes is None else formats.size(status.rss_bytes)),
        ("device", _device(status)),
        ("disk", _disk(status)),
        *([] if status.lake is None else _lake(status.lake, now)),
        ("workers", _workers(status.metrics)),
        ("checkpoint", "" if status.checkpoint is None else str(status.checkpoint)),
        ("upload", _upload(status)),
        ("log", _metrics(status)),
        *((words.styled(("problem", "red")), text) for text in status.problems),
    ]
    return words.facts([(name, value) for name, value in rows if value])


def _progress(status: RunStatus) -> str | Text:
    if status.trainer is None or status.done is None:
        return ""
    if status.total is None:
        return formats.number(status.done)
    share = min(1.0, status.done / max(1, status.total))
    full = round(share * BAR)
    running = status.eta_seconds and status.state == "running"
    left = f", {formats.duration(status.eta_seconds)} left" if running else ""
    text = f" {formats.number(status.done)} of {formats.number(status.total)}, {100 * share:.0f} %{left}"
    return words.styled(("━" * full, COLOURS[status.state]), ("━" * (BAR - full), "dim"), text)


def _rate(status: RunStatus) -> str:
    if status.per_second is None or status.state == "finished":
        return ""
    unit = status.unit.removesuffix("s")
    if status.per_second >= 1:
        return f"{formats.number(round(status.per_second))} {unit}s per second"
    return f"{formats.duration(1 / status.per_second)} per {unit}"


def _device(status: RunStatus) -> str:
    if status.device_bytes is None:
        return ""
    return f"{formats.size(status.device_bytes)} of {formats.size(status.device_limit_bytes)}"


def _disk(status: RunStatus) -> str:
    if status.disk_free_bytes is None:
        return ""
    full = status.disk_full_seconds
    until = "" if full is None else f", full in {formats.duration(full)} at this rate"
    return f"{formats.size(status.disk_free_bytes)} free{until}"


def _lake(lake: LakeStatus, now: float) -> list[tuple[str, str]]:
    held, plain = formats.size(lake.bytes_on_disk), formats.size(lake.bytes_plain)
    kept, ratio = formats.number(lake.commits_kept), formats.ratio(lake.ratio)
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
        f"{formats.counted(each.inserted, 'step')} inserted, {formats.number(each.sampled)} sampled "
        f"({ratio:.3g} per insert), {formats.age(each.said, now)}{waits}"
    )


def _workers(metrics: dict[str, Any]) -> str:
    """The Ray workers of a run, when it logged last; empty if it had none."""
    names = ("workers", "workers_alive", "worker_restarts", "workers_lag_seconds", "samples_per_insert")
    count, alive, restarts, lag, ratio = (
        value if isinstance(value := metrics.get(name), int | float) else None for name in names
    )
    if count is None or alive is None or restarts is None:
        return ""
    parts = [f"{alive:.0f} of {count:.0f} alive", f"restarted {formats.counted(restarts, 'time')}"]
    if lag is not None:
        parts.append(f"lag {formats.duration(lag)}")
    if ratio is not None:
        parts.append(f"{ratio:.3g} samples per insert")
    return "; ".join(parts)


def _upload(status: RunStatus) -> str | Text:
    upload = status.upload
    if upload is None:
        return ""
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
