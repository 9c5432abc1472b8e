"""The tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from lakepond.formats import UNKNOWN, moment, number, percent, size
from lakepond.report.facts import differing, key_figures, settings_of, what_was_run
from lakepond.report.gathered import ACCOUNTS, RunFolder
from lakepond.runs.metrics import TIME_LIMIT, is_number

MOST_TRADES = 12
"""best and worst trades that are listed"""
ACCOUNT = {
    "total_return": ("Return", percent),
    "max_drawdown": ("Max drawdown", percent),
    "sharpe": ("Sharpe", number),
    "trades": ("Trades", number),
    "win_rate": ("Win rate", percent),
    "exposure": ("Exposure", percent),
}


def resets_table(runs: Sequence[RunFolder]) -> str:
    """Every reset, and how soon the evaluation recovered."""
    rows = [
        [
            run.name,
            *map(number, (reset.step, reset.before, reset.after)),
            "not yet" if reset.recovered is None else f"{number(reset.recovered)} {run.x_name}",
        ]
        for run in runs
        for reset in run.resets
    ]
    heads = ["Run", "Reset at", "Evaluation before", "Right after", "Recovered after"]
    return table(heads, rows, "Resets", numbers=range(1, 5))


def market_tables(runs: Sequence[RunFolder]) -> str:
    """Results of champions and baselines, and the champions' best and worst trades."""
    accounts, trades = [], []
    for run in runs:
        for one in run.evaluations:
            for who in ACCOUNTS:
                if account := one.result[who]:
                    cells = [
                        text(account[k]) if k in account else UNKNOWN for k, (_, text) in ACCOUNT.items()
                    ]
                    accounts.append([run.name, one.part, who.replace("_", " "), *cells])
            trades += [[run.name, *cells] for cells in _best_and_worst(one.trades)]
    heads = ["Run", "Days", "Agent", *(name for name, _ in ACCOUNT.values())]
    html = table(heads, accounts, "Accounts", numbers=range(3, 9))
    if html and trades:
        heads = ["Run", "Instrument", "Bought", "Sold", "Profit", "Closed by"]
        inner = table(heads, trades, "Trades", numbers=[4])
        html += f"<details><summary>Best and worst trades</summary>{inner}</details>"
    return html


def _best_and_worst(trades: list[dict[str, str]]) -> list[list[str]]:
    known = [trade for trade in trades if trade.get("profit_percent")]
    ranked = sorted(known, key=lambda trade: -float(trade["profit_percent"]))
    if len(ranked) > 2 * MOST_TRADES:
        ranked = ranked[:MOST_TRADES] + ranked[-MOST_TRADES:]
    shown = [trade | {"profit": percent(float(trade["profit_percent"]))} for trade in ranked]
    columns = ("symbol", "entry_date", "exit_date", "profit", "closed_by")
    return [[trade.get(name, "") for name in columns] for trade in shown]


def uploads_tables(runs: Sequence[RunFolder]) -> str:
    """How much of each lake is in the cloud, and the result of each run's last push."""
    rows = [
        [run.name, at["place"], f"{at['files']:,} of {at['files_of']:,}", size(at["bytes"])]
        for run in runs
        for at in run.uploads
    ]
    pushes = [
        [
            run.name,
            str(run.pushed.get("url", "")),
            moment(when) if is_number(when := run.pushed.get("time")) and 0 <= when < TIME_LIMIT else UNKNOWN,
            str(run.pushed.get("last_error") or "complete"),
        ]
        for run in runs
        if run.pushed
    ]
    heads = ["Run", "Destination", "Files of the newest commit", "Size"]
    return table(heads, rows, "Uploads", numbers=[2, 3]) + table(
        ["Run", "Pushed to", "When", "Result"], pushes, "Last pushes", wrap=True
    )


def key_figures_of(runs: Sequence[RunFolder]) -> str:
    """The key figures of one run as tiles, of several as a table."""
    if len(runs) == 1:
        tiles = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{escape(value)}<small>{escape(words)}</small></dd></div>"
            for name, value, words in key_figures(runs[0])
        )
        return f'<dl class="facts">{tiles}</dl>' if tiles else ""
    columns = [{name: value for name, value, _ in key_figures(run)} for run in runs]
    return _side_by_side(runs, columns, "Key figures of the runs", numbers=range(1, len(runs) + 1))


def runs_section(runs: Sequence[RunFolder]) -> str:
    """Trainer, machine, versions and settings."""
    parts = ['<section id="run"><h2>Run and settings</h2>']
    parts.append(_side_by_side(runs, [what_was_run(run) for run in runs], "Runs", wrap=True))
    settings = [settings_of(run) for run in runs]
    differ = _side_by_side(runs, differing(settings), "Settings that differ", wrap=True)
    parts.append(f"<h3>Settings that differ</h3>{differ}" if differ else "")
    for run, each in zip(runs, settings, strict=True):
        summary = "All settings" if len(runs) == 1 else f"All settings of {escape(run.name)}"
        inner = table(["Setting", "Value"], list(each.items()), f"Settings of {run.name}", wrap=True)
        parts.append(f"<details><summary>{summary}</summary>{inner}</details>")
    return "".join([*parts, "</section>"])


def _side_by_side(
    runs: Sequence[RunFolder], columns: Sequence[dict[str, str]], name: str, **look: Any
) -> str:
    """A table with a column for each run and a line for each name that one of them has."""
    names = dict.fromkeys(key for column in columns for key in column)
    rows = [[key, *(column.get(key, UNKNOWN) for column in columns)] for key in names]
    return table(["", *(run.name for run in runs)], rows, name, **look)


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    name: str,
    *,
    numbers: Iterable[int] = (),
    wrap: bool = False,
) -> str:
    """A table that scrolls sideways on its own, if it has rows; `numbers` are right-aligned columns."""
    if not rows:
        return ""
    right = set(numbers)
    kind = [' class="n"' if i in right else ' class="wrap"' if wrap and i else "" for i in range(len(heads))]
    head = "".join(f'<th scope="col"{kind[i]}>{escape(text)}</th>' for i, text in enumerate(heads))
    body = "".join(
        f"<tr>{''.join(f'<td{kind[i]}>{escape(cell)}</td>' for i, cell in enumerate(row))}</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(name)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
