"""The report of one run or several: one HTML file that works offline, on any screen and on paper."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from importlib import resources
from itertools import chain, count
from pathlib import Path

from lakepond._version import __version__
from lakepond.formats import json_ready
from lakepond.lake.files import write_bytes
from lakepond.report import png
from lakepond.report.captions import caption
from lakepond.report.chart import Chart, as_json
from lakepond.report.figures import Figures, figures
from lakepond.report.gathered import RunFolder, gather
from lakepond.report.tables import key_figures_of, market_tables, resets_table, runs_section, uploads_tables

SECTIONS = (
    ("learning", "Learning and lake"),
    ("market", "Trades and equity"),
    ("storage", "Storage"),
    ("time", "Time"),
    ("memory", "Memory"),
    ("uploads", "Uploads"),
    ("inside", "Other metrics"),
)
MOST_RUNS = 24
MOST_PROBLEMS = 8


def write_report(
    folders: Sequence[str | Path], out: str | Path, *, pictures: str | Path | None = None
) -> list[Path]:
    """Write the page to `out` and each chart as SVG and PNG into `pictures`; returns the paths."""
    runs = [gather(folder) for folder in folders]
    _name_apart(runs)
    drawn = figures(runs)
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(out.parent, out.name, render(runs, drawn).encode())
    written = [out]
    if pictures is not None:
        home = Path(pictures)
        home.mkdir(parents=True, exist_ok=True)
        for name, chart in _files(drawn).items():
            files = [home / f"{name}.svg", home / f"{name}.png"]
            png.save([chart], files)
            written += files
    return written


def _files(drawn: Figures) -> dict[str, Chart]:
    """Charts by valid, unique file names: a metric may have any name."""
    found: dict[str, Chart] = {}
    for chart in (one for group in drawn.values() for one in group):
        plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", chart.key).strip(".-") or "figure"
        names = chain([plain], (f"{plain}-{again}" for again in count(2)))
        found[next(name for name in names if name not in found)] = chart
    return found


def _name_apart(runs: Sequence[RunFolder]) -> None:
    """Prefix runs of the same name with the folder above them."""
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            run.name = f"{run.folder.resolve().parent.name}/{run.name}"


def render(runs: Sequence[RunFolder], drawn: Figures) -> str:
    """The page as HTML."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    tables = {"learning": resets_table(runs), "market": market_tables(runs), "uploads": uploads_tables(runs)}
    shown = [(group, name) for group, name in SECTIONS if drawn.get(group) or tables.get(group)]
    links = "".join(f'<a href="#{group}">{name}</a>' for group, name in shown)
    charts: list[Chart] = []
    sections = []
    for group, name in shown:
        mine = drawn.get(group, [])
        sections.append(_section(group, name, mine, tables.get(group, ""), len(charts)))
        charts += mine
    notes = [f"{run.name}: {problem}" for run in runs for problem in run.problems[:MOST_PROBLEMS]]
    notes += [] if shown else ["Nothing has been logged yet."]
    problems = [f'<p class="note">{escape(text)}</p>' for text in notes]
    style = "".join(map(_static, ("uplot/uPlot.min.css", "base.css", "page.css")))
    described = json_ready([as_json(one) for one in charts])
    data = json.dumps(described, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    scripts = [f"/*\n{_static('uplot/LICENSE')}\n*/\n{_static('uplot/uPlot.iife.min.js')}", _own_script()]
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}"
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{escape(title)} · lakepond</title><style>{style}</style></head>"
        '<body><a class="skip" href="#main">Skip to content</a><main id="main">'
        f"<header><h1>{escape(title)}</h1><p>{_subtitle(runs)}</p></header>"
        f'<nav aria-label="Sections">{links}<a href="#run">Run and settings</a></nav>'
        f"{''.join(problems)}{key_figures_of(runs)}"
        '<noscript><p class="note">The charts need JavaScript; their captions and the tables do not.</p>'
        f"</noscript>{''.join(sections)}{runs_section(runs)}"
        f"<footer><p>Written by lakepond {__version__} on {moment}. Charts: uPlot (MIT). Drag to zoom, "
        "double-click to reset.</p></footer></main>"
        f'<script type="application/json" id="charts">{data}</script>'
        f'<script>{scripts[0]}</script><script type="module">{scripts[1]}</script></body></html>\n'
    )


def _static(name: str) -> str:
    return resources.files("lakepond.report").joinpath("static", name).read_text(encoding="utf-8")


def _own_script() -> str:
    """The modules of the page as one: an inline module cannot import another."""
    files = map(_static, ("numbers.js", "charts.js", "report.js"))
    return re.sub(r"(?m)^import .*\n", "", "".join(files))


def _section(group: str, name: str, drawn: Sequence[Chart], table: str, first: int) -> str:
    """One section; its figures refer to their charts by numbers from `first` on."""
    figures = [
        f'<figure data-chart="{number}" aria-label="{escape(chart.title)}">'
        f"<h3>{escape(chart.title)}</h3><figcaption>{escape(caption(chart))}</figcaption></figure>"
        for number, chart in enumerate(drawn, first)
    ]
    inner = f'<div class="charts">{"".join(figures)}</div>' if figures else ""
    return f'<section id="{group}"><h2>{name}</h2>{inner}{table}</section>'


def _subtitle(runs: Sequence[RunFolder]) -> str:
    if len(runs) > 1:
        return ", ".join(f"{escape(run.name)} ({escape(run.trainer)})" for run in runs[:MOST_RUNS])
    run = runs[0]
    state = "running" if run.running else "not running"
    created = str(run.about.get("created", ""))[:16].replace("T", " ")
    return escape(f"{run.trainer}, started {created} UTC, {state}")
