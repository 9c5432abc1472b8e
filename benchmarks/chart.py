"""Draw docs/images/bench.svg, the chart of the README, from docs/results/bench.json and reverb.json.

python -m benchmarks.chart

Shows the workload "atari: breakout": memory per step, recording and sampling, beside other libraries.
`tests/test_docs.py` checks that the committed picture is what this script draws.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
DATA, REVERB = ROOT / "docs/results/bench.json", ROOT / "docs/results/reverb.json"
CHART = ROOT / "docs/images/bench.svg"

NAMES = {  # name in bench.json: library, its setting
    "lakepond": ("lakepond", ""),
    "cpprb next_of + stack_compress": ("cpprb", "next_of, stack_compress"),
    "SB3 optimize_memory_usage": ("Stable-Baselines3", "optimize_memory_usage"),
    "TorchRL single frames, slices": ("TorchRL", "single frames, SliceSampler"),
    "TorchRL dense": ("TorchRL", "LazyTensorStorage"),
    "tianshou stack_num, last obs only": ("tianshou", "stack_num, last frame only"),
    "Reverb": ("Reverb", "compressed in memory"),
}
PANELS = (  # column in bench.json, title, unit, divisor, number format
    ("RAM B/step", "Memory per step", "kB, less is better", 1e3, "{:.1f}"),
    ("record/s, ring full", "Record", "1,000 steps/s, more is better", 1e3, "{:.0f}"),
    ("sample/s", "Sample, batch 256", "1,000 steps/s, more is better", 1e3, "{:.0f}"),
)
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",sans-serif;fill:#1f2933}
.title{font-weight:600;font-size:14px}.note{font-size:11.5px;fill:#52606d}.name{font-weight:600}
.bar{fill:#b6c2cf}.own{fill:#1f7a8c}.value{font-size:12px}.axis{stroke:#9aa5b1}
@media(prefers-color-scheme:dark){text{fill:#e4e7eb}.note{fill:#9aa5b1}.bar{fill:#56657a}.own{fill:#4cc3d9}.axis{stroke:#616e7c}}
"""
WIDTH, LEFT, PANEL, GAP, TOP, ROW = 880, 196, 160, 62, 62, 38


def text(x: float, y: float, value: str, kind: str = "", anchor: str = "start") -> str:
    """One line of text."""
    return f'<text x="{x:g}" y="{y:g}" class="{kind}" text-anchor="{anchor}">{escape(value)}</text>'


def draw(report: dict, reverb: dict) -> str:
    """The chart of a report, and of Reverb, which runs in a venv of its own, as an SVG document."""
    section = next(s for s in report["sections"] if s["title"] == "atari: breakout")
    rows = {row["contestant"]: row for row in [*section["rows"], reverb]}
    height = TOP + ROW * len(NAMES) + 62
    label = "Memory, recording and sampling of Atari frame stacks, lakepond beside five other libraries"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
        f' height="{height}" role="img" aria-label="{label}"><title>{label}</title><style>{STYLE}</style>'
    ]
    wrong = []
    for i, (name, (library, setting)) in enumerate(NAMES.items()):
        y = TOP + ROW * i
        star = " *" if rows[name]["wrong next_obs"].split("/")[0] != "0" else ""
        if star:
            wrong.append(library)
        parts.append(text(LEFT - 12, y + (14 if setting else 21), library + star, "name", "end"))
        parts.append(text(LEFT - 12, y + 29, setting, "note", "end") if setting else "")
    for p, (column, title, unit, divisor, form) in enumerate(PANELS):
        x = LEFT + p * (PANEL + GAP)
        largest = max(rows[name][column] for name in NAMES)
        parts += [text(x, 22, title, "title"), text(x, 40, unit, "note")]
        for i, name in enumerate(NAMES):
            value = rows[name][column]
            y = TOP + ROW * i
            kind = "own" if name == "lakepond" else "bar"
            width = PANEL * value / largest
            parts.append(f'<rect x="{x}" y="{y + 5}" width="{width:.1f}" height="22" rx="2" class="{kind}"/>')
            parts.append(text(x + width + 6, y + 20.5, form.format(value / divisor), "value"))
        parts.append(f'<path d="M{x} {TOP - 2}V{TOP + ROW * len(NAMES)}" class="axis"/>')
    y = TOP + ROW * len(NAMES) + 24
    machine, date = report["machine"].split(",")[0], report["date"].split()[0]
    notes = (
        f"* next_obs at an episode end is not the recorded one ({', '.join(wrong)}); "
        "this matters where an episode is truncated.",
        "Breakout, stacks of 4 x 84 x 84, 8 environments, 20,000 steps, NumPy arrays out. "
        f"{machine}, {date}; Reverb {reverb['date'].split()[0]}.",
    )
    parts += [text(20, y + 19 * i, note, "note") for i, note in enumerate(notes)]
    return "\n".join(part for part in parts if part) + "\n</svg>\n"


if __name__ == "__main__":
    CHART.write_text(draw(*(json.loads(file.read_text()) for file in (DATA, REVERB))))
    print(f"wrote {CHART}")
