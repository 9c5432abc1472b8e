"""The key figures of a run, and the settings in which several runs differ."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from lakepond.formats import UNKNOWN, duration, number, percent, ratio, short, size
from lakepond.report.gathered import RunFolder
from lakepond.runs import session
from lakepond.runs.metrics import is_number
from lakepond.runs.settings import flat

Fact = tuple[str, str, str]
"""name, value and explanation"""


def key_figures(run: RunFolder) -> list[Fact]:
    """The figures at the top of the page."""
    return [*_progress(run), *_learning(run), *_market(run), *_storage(run), *_machine(run)]


def _progress(run: RunFolder) -> list[Fact]:
    last = max((series.x[-1] for series in run.metrics.values()), default=None)
    names = {"generation": ("generations",), "steps": ("env_steps", "frames")}.get(run.x_name, ())
    goal = next((run.about["config"][name] for name in names if name in run.about["config"]), None)
    words = f"of {short(goal)}" if is_number(goal) else ""
    return [] if last is None else [(run.x_name.capitalize(), short(last), words)]


def _learning(run: RunFolder) -> list[Fact]:
    found = []
    if (validation := run.last("validation_best")) is not None:
        best = run.last("best_generation")
        words = "" if best is None else f"champion of generation {best:.0f}"
        found.append(("Validation", number(validation), words))
    if (evaluation := run.last("evaluation")) is not None:
        found.append(("Evaluation", number(evaluation), f"highest {number(run.highest('evaluation'))}"))
    if run.resets:
        recovered = sum(reset.recovered is not None for reset in run.resets)
        found.append(("Resets", str(len(run.resets)), f"{recovered} recovered"))
    return found


def _market(run: RunFolder) -> list[Fact]:
    for one in run.evaluations:
        champion, held = (one.result[who].get("total_return") for who in ("champion", "buy_and_hold"))
        if champion is not None and held is not None:
            return [(f"Return, {one.part}", percent(champion), f"buy and hold {percent(held)}")]
    return []


def _storage(run: RunFolder) -> list[Fact]:
    plain, disk = run.last("bytes_plain"), run.last("lake_bytes")
    if (plain is None or disk is None) and run.growth:
        plain, disk = run.growth[-1]["bytes_plain"], run.growth[-1]["bytes"]
    if not plain or not disk:
        return []
    words = f"{size(plain)} without deduplication, {ratio(plain / disk)} smaller"
    return [("Replay on disk", size(disk), words)]


def _machine(run: RunFolder) -> list[Fact]:
    found = []
    trained, held = run.last("train_seconds_total"), run.last("held_seconds_total")
    words = "still running" if run.running else ""
    if trained is None and run.first_time is not None and run.last_time is not None:
        trained = run.last_time - run.first_time
        words = words or "from first to last log line"
    if held is None and "held_seconds" in run.metrics:
        held = sum(run.metrics["held_seconds"].y)
    if trained and trained > 0:
        found.append(("Training", duration(trained), words))
        if held is not None:
            found.append(("Blocked on saving", duration(held), f"{100 * held / trained:.2g} % of the time"))
    if (memory := run.highest("rss_bytes")) is not None:
        found.append(("Peak memory", size(memory), "of the process"))
    return found


def what_was_run(run: RunFolder) -> dict[str, str]:
    """Trainer, command, machine and versions."""
    about, machine = run.about, _object(run.about, "machine")
    libraries = ", ".join(f"{name} {version}" for name, version in _object(about, "libraries").items())
    memory, command, saved = machine.get("memory_bytes"), about.get("command"), run.checkpoints
    total = f", {size(memory)}" if is_number(memory) and memory else ""
    versions = f"lakepond {about.get('lakepond', '?')}, Python {about.get('python', '?')}, {libraries}"
    rows = {
        "trainer": run.trainer,
        "command": " ".join(map(str, command)) if isinstance(command, list) else "",
        "created": str(about.get("created", "")),
        "machine": f"{machine.get('system', '')}, {machine.get('cores', '?')} cores{total}",
        "versions": versions.rstrip(", "),
        "starts": _sessions(about),
        "checkpoints": f"{len(saved)} kept, {size(sum(saved))}" if saved else "none",
        "commits": _commits(run),
        "folder": str(run.folder),
    }
    return {name: value for name, value in rows.items() if value}


def _sessions(about: dict[str, Any]) -> str:
    """The number of starts and what changed between them; empty if there was one."""
    sessions = about.get("sessions", [])
    pairs = (session.differences(before, after) for before, after in pairwise(sessions))
    changes = [f"{name} {old} to {new}" for found in pairs for name, old, new in found]
    changed = f"; changed: {', '.join(changes)}" if changes else ""
    return f"{len(sessions)}{changed}" if len(sessions) > 1 else ""


def _object(about: dict[str, Any], name: str) -> dict[str, Any]:
    """A part of config.json; empty if it is not an object."""
    part = about.get(name)
    return part if isinstance(part, dict) else {}


def _commits(run: RunFolder) -> str:
    if not run.growth:
        return f"{run.commits:,}" if run.commits else "none"
    seconds = [one["seconds"] for one in run.growth]
    sampled = "" if len(seconds) == run.commits else f" ({len(seconds):,} of them read)"
    return (
        f"{run.commits:,}{sampled}, written in the background in {duration(sum(seconds))}, "
        f"the slowest in {duration(max(seconds))}"
    )


def settings_of(run: RunFolder) -> dict[str, str]:
    """The settings of a run by their dotted names, as text."""
    settings = flat(run.about["config"])
    return {name: UNKNOWN if value is None else str(value) for name, value in settings.items()}


def differing(settings: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """Those settings of each run that are not the same in all runs."""
    common = set.intersection(*(set(one.items()) for one in settings))
    return [{name: value for name, value in one.items() if (name, value) not in common} for one in settings]
