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


def key_figures(run: RunFolder) -> list[tuple[str, str, str]]:
    """Name, value and explanation of each figure at the top of the page."""
    found: list[tuple[str, str, str]] = []
    last = max((series.x[-1] for series in run.metrics.values()), default=None)
    if last is not None:
        names = {"generation": ("generations",), "steps": ("env_steps", "frames")}.get(run.x_name, ())
        goal = next((run.about["config"][name] for name in names if name in run.about["config"]), None)
        found.append((run.x_name.capitalize(), short(last), f"of {short(goal)}" if is_number(goal) else ""))
    found += _learning(run) + _market(run) + _storage(run) + _machine(run)
    return found


def _learning(run: RunFolder) -> list[tuple[str, str, str]]:
    found = []
    validation, best = run.last("validation_best"), run.last("best_generation")
    if validation is not None:
        words = "" if best is None else f"champion of generation {best:.0f}"
        found.append(("Validation", number(validation), words))
    if (evaluation := run.last("evaluation")) is not None:
        found.append(("Evaluation", number(evaluation), f"highest {number(run.highest('evaluation'))}"))
    if run.resets:
        back = [reset.recovered for reset in run.resets if reset.recovered is not None]
        found.append(("Resets", str(len(run.resets)), f"{len(back)} recovered"))
    return found


def _market(run: RunFolder) -> list[tuple[str, str, str]]:
    for one in run.evaluations:
        champion, held = one.result["champion"], one.result["buy_and_hold"]
        if champion and held and "total_return" in champion and "total_return" in held:
            words = f"buy and hold {percent(held['total_return'])}"
            return [(f"Return, {one.part}", percent(champion["total_return"]), words)]
    return []


def _storage(run: RunFolder) -> list[tuple[str, str, str]]:
    plain, disk = run.last("bytes_plain"), run.last("lake_bytes")
    if (plain is None or disk is None) and run.growth:
        plain, disk = run.growth[-1].plain, run.growth[-1].bytes
    if not plain or not disk:
        return []
    smaller = f"{ratio(plain / disk)} smaller"
    return [("Replay on disk", size(disk), f"{size(plain)} without deduplication, {smaller}")]


def _machine(run: RunFolder) -> list[tuple[str, str, str]]:
    found = []
    trained, held = run.last("train_seconds_total"), run.last("held_seconds_total")
    words = "still running" if run.running else ""
    if trained is None and run.first_time is not None and run.last_time is not None:
        trained = run.last_time - run.first_time
        words = words or "from first to last log line"
    if trained and trained > 0:
        found.append(("Training", duration(trained), words))
    if held is None and "held_seconds" in run.metrics:
        held = sum(run.metrics["held_seconds"].y)
    if held is not None and trained and trained > 0:
        found.append(("Blocked on saving", duration(held), f"{100 * held / trained:.2g} % of the time"))
    if (memory := run.highest("rss_bytes")) is not None:
        found.append(("Peak memory", size(memory), "of the process"))
    return found


def what_was_run(run: RunFolder) -> list[tuple[str, str]]:
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
        "checkpoints": f"{len(saved)} kept, {size(sum(b for _, b in saved))}" if saved else "none",
        "commits": _commits(run),
        "folder": str(run.folder),
    }
    return [(name, value) for name, value in rows.items() if value]


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
    if not run.commits:
        return "none"
    seconds = [one.seconds for one in run.growth]
    if not seconds:
        return f"{run.commits:,}"
    sampled = "" if len(seconds) == run.commits else f" ({len(seconds):,} of them read)"
    return (
        f"{run.commits:,}{sampled}, written in the background in {duration(sum(seconds))}, "
        f"the slowest in {duration(max(seconds))}"
    )


def settings_of(run: RunFolder) -> dict[str, str]:
    """The settings of a run by their dotted names, as text."""
    return {
        name: UNKNOWN if value is None else str(value) for name, value in flat(run.about["config"]).items()
    }


def differences(runs: Sequence[RunFolder]) -> dict[str, list[str]]:
    """The settings in which runs differ, with the value of each run."""
    settings = [settings_of(run) for run in runs]
    names = dict.fromkeys(name for one in settings for name in one)
    values = {name: [one.get(name, UNKNOWN) for one in settings] for name in names}
    return {name: each for name, each in values.items() if len(set(each)) > 1}
