"""The report of one run or several: one HTML page that needs nothing else, on any screen and on paper."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from pathlib import Path

from lakepond._version import __version__
from lakepond.lake.files import write_bytes
from lakepond.report import svg
from lakepond.report.chart import Bars, Chart, Drawing
from lakepond.report.facts import key_figures
from lakepond.report.figures import Figures, figures
from lakepond.report.gathered import RunFolder, gather
from lakepond.report.numbers import UNITS, day, number
from lakepond.report.seeds import sides
from lakepond.report.tables import table, tell_market, tell_resets, tell_runs, tell_uploads

SECTIONS = (
    ("learning", "Learning"),
    ("market", "Trades and equity"),
    ("storage", "Replay and lake"),
    ("time", "Time"),
    ("memory", "Memory"),
    ("uploads", "Uploads"),
    ("inside", "Inside the trainer"),
)
SMALL = ("storage", "time", "memory", "uploads", "inside")
"""sections whose charts stand two abreast"""
MOST_RUNS = 24
MOST_PROBLEMS = 8
MOST_SENTENCES = 6


def write_report(
    folders: Sequence[str | Path], out: str | Path, *, pictures: str | Path | None = None
) -> list[Path]:
    """Write the page to `out`, and each figure as SVG and PNG into `pictures`; returns the files."""
    runs = [gather(folder) for folder in folders]
    _name_apart(runs)
    drawn = figures(runs)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out.parent, out.name, render(runs, drawn).encode())
    written = [out]
    if pictures is not None:
        from lakepond.report import png

        home = Path(pictures)
        home.mkdir(parents=True, exist_ok=True)
        for name, drawing in _files(drawn).items():
            (home / f"{name}.svg").write_text(svg.draw(drawing, alone=True), encoding="utf-8")
            png.save(drawing, home / f"{name}.png")
            written += [home / f"{name}.svg", home / f"{name}.png"]
    return written


def _files(drawn: Figures) -> dict[str, Drawing]:
    """Figures by the names of their files: a metric may be called anything."""
    found: dict[str, Drawing] = {}
    for drawing in (one for group in drawn.values() for one in group):
        name = plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", drawing.key).strip(".-") or "figure"
        for again in range(2, 10_000):
            if name not in found:
                break
            name = f"{plain}-{again}"
        found[name] = drawing
    return found


def _name_apart(runs: Sequence[RunFolder]) -> None:
    """Runs of the same name get the folder above as well."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = f"{run.folder.resolve().parent.name}/{run.name}"


def render(runs: Sequence[RunFolder], drawn: Figures) -> str:
    """The whole page."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs side by side"
    style = resources.files("lakepond.report").joinpath("page.css").read_text()
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    tables = {"learning": tell_resets(runs), "market": tell_market(runs), "uploads": tell_uploads(runs)}
    told = [(group, name) for group, name in SECTIONS if drawn.get(group) or tables.get(group)]
    links = "".join(f'<a href="#{group}">{name}</a>' for group, name in told)
    sections = [_section(group, name, drawn.get(group, []), tables.get(group, "")) for group, name in told]
    said = [f"{run.name}: {problem}" for run in runs for problem in run.problems[:MOST_PROBLEMS]]
    said += [] if told else ["Nothing has been logged yet."]
    problems = [f'<p class="note">{escape(text)}</p>' for text in said]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} · lakepond</title><style>{style}</style></head>"
        '<body><a class="skip" href="#main">Skip to content</a><main id="main">'
        f"<header><h1>{escape(title)}</h1><p>{_subtitle(runs)}</p></header>"
        f'<nav aria-label="Sections">{links}<a href="#run">What was run</a></nav>'
        f"{''.join(problems)}{_figures_of_runs(runs)}{''.join(sections)}{tell_runs(runs)}"
        f"<footer><p>Made by lakepond {__version__} on {moment} from the runs' own files.</p></footer>"
        "</main></body></html>\n"
    )


def _section(group: str, name: str, charts: Sequence[Drawing], table: str) -> str:
    small = group in SMALL
    inner = "".join(_figure(one, small=small) for one in charts)
    kind = "charts small" if small else "charts"
    return f'<section id="{group}"><h2>{name}</h2>{table}<div class="{kind}">{inner}</div></section>'


def _subtitle(runs: Sequence[RunFolder]) -> str:
    if len(runs) > 1:
        return ", ".join(f"{escape(run.name)} ({escape(run.trainer)})" for run in runs[:MOST_RUNS])
    run = runs[0]
    state = "running" if run.running else "not running"
    begun = str(run.told.get("created", ""))[:16].replace("T", " ")
    return escape(f"{run.trainer}, begun {begun} UTC, {state}")


def _figures_of_runs(runs: Sequence[RunFolder]) -> str:
    if len(runs) == 1:
        told = key_figures(runs[0])
        inner = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(words)}</small></dd></div>"
            for name, value, words in told
        )
        return f'<dl class="facts">{inner}</dl>' if inner else ""
    columns = [{name: (value, words) for name, value, words in key_figures(run)} for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    rows = [[name, *(column.get(name, ("–", ""))[0] for column in columns)] for name in names]
    colours = {run.folder: side.colour for side in sides(runs) for run in side.runs}
    legend = [_swatch(colours[run.folder]) + escape(run.name) for run in runs]
    return table(["", *legend], rows, "Figures of the runs", numbers=range(1, len(runs) + 1), raw_heads=True)


def _figure(drawing: Drawing, *, small: bool) -> str:
    """A chart twice, for wide and for narrow screens; one of them is shown."""
    wide = svg.draw(drawing, 520 if small else 1000, 220 if small else 320)
    narrow = svg.draw(drawing, 380, 220 if small else 260)
    told = _in_words(drawing)
    note = f" {escape(drawing.note)}" if drawing.note else ""
    return (
        f'<figure role="group" aria-label="{escape(drawing.title)}">'
        f"<h3>{escape(drawing.title)}</h3>{_legend(drawing)}"
        f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'
        f"<figcaption>{escape(told)}{note}</figcaption></figure>"
    )


def _in_words(drawing: Drawing) -> str:
    """What the chart shows, for those who do not see it and those in a hurry."""
    unit = UNITS[drawing.unit]
    if isinstance(drawing, Bars):
        return f"{sum(drawing.counts):,} in all."
    named = [each for each in drawing.lines if not each.thin]
    sentences = []
    for one in named[:MOST_SENTENCES]:
        known = [(x, y) for x, y in zip(one.x, one.y, strict=True) if math.isfinite(y)]
        if not known:
            continue
        name = f"{one.name}: " if one.name and len(named) > 1 else ""
        text = f"{name}{unit(known[0][1])}" + (f" to {unit(known[-1][1])}" if len(known) > 1 else "")
        peak = max(known, key=lambda point: point[1])
        if peak not in (known[0], known[-1]):
            text += f", highest {unit(peak[1])} at {_place(drawing, peak[0])}"
        sentences.append(text)
    return f"{'; '.join(sentences)}." if sentences else ""


def _place(chart: Chart, x: float) -> str:
    if chart.dates:
        return day(x)
    many = chart.x_name.endswith("s")  # frames, steps: so many of them
    return f"{number(x)} {chart.x_name}" if many else f"{chart.x_name} {number(x)}"


def _legend(drawing: Drawing) -> str:
    if not isinstance(drawing, Chart):
        return ""
    named = [one for one in drawing.lines if one.name and not one.thin]
    items = [f"<li>{_swatch(one.colour, dash=one.dash)}{escape(one.name)}</li>" for one in named]
    if any(one.thin for one in drawing.lines):
        items.append(f"<li>{_swatch(5, thin=True)}each agent</li>")
    if drawing.marks:
        mark = '<line class="mark" x1="9" x2="9" y1="0" y2="10"/>'
        items.append(f'<li><svg viewBox="0 0 18 10" aria-hidden="true">{mark}</svg>{drawing.mark_name}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>' if items else ""


def _swatch(colour: int, *, dash: bool = False, thin: bool = False) -> str:
    kind = f"line k{colour % 6}{' dash' if dash or colour >= 6 else ''}{' thin' if thin else ''}"
    return f'<svg viewBox="0 0 18 10" aria-hidden="true"><path class="{kind}" d="M0 5h18"/></svg>'
