"""The tables of a report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lakepond.formats import UNKNOWN, moment, number, percent, size
from lakepond.report.facts import differences, settings_of, what_was_run
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
            number(reset.step),
            number(reset.before),
            number(reset.after),
            "not yet" if reset.recovered is None else f"{number(reset.recovered)} {run.x_name}",
        ]
        for run in runs
        for reset in run.resets
    ]
    heads = ["Run", "Reset at", "Evaluation before", "Right after", "Recovered after"]
    return table(heads, rows, "Resets", numbers=range(1, 5)) if rows else ""


def market_tables(runs: Sequence[RunFolder]) -> str:
    """Results of champions and baselines, and the champions' best and worst trades."""
    accounts, trades = [], []
    for run in runs:
        for one in run.evaluations:
            for who in ACCOUNTS:
                account = one.result[who]
                if account:
                    cells = [text(account[k]) if k in account else "–" for k, (_, text) in ACCOUNT.items()]
                    accounts.append([run.name, one.part, who.replace("_", " "), *cells])
            trades += [[run.name, *cells] for cells in _best_and_worst(one.trades)]
    if not accounts:
        return ""
    heads = ["Run", "Days", "Agent", *(name for name, _ in ACCOUNT.values())]
    html = table(heads, accounts, "Accounts", numbers=range(3, 9))
    if trades:
        inner = table(
            ["Run", "Instrument", "Bought", "Sold", "Profit", "Closed by"], trades, "Trades", numbers=[4]
        )
        html += f"<details><summary>Best and worst trades</summary>{inner}</details>"
    return html


def _best_and_worst(trades: list[dict[str, str]]) -> list[list[str]]:
    known = [trade for trade in trades if trade.get("profit_percent")]
    ranked = sorted(known, key=lambda trade: -float(trade["profit_percent"]))
    if len(ranked) > 2 * MOST_TRADES:
        ranked = ranked[:MOST_TRADES] + ranked[-MOST_TRADES:]
    return [
        [
            trade.get("symbol", ""),
            trade.get("entry_date", ""),
            trade.get("exit_date", ""),
            percent(float(trade["profit_percent"])),
            trade.get("closed_by", ""),
        ]
        for trade in ranked
    ]


def uploads_tables(runs: Sequence[RunFolder]) -> str:
    """How much of each lake is in the cloud, and the result of each run's last push."""
    rows = [
        [run.name, place, f"{files:,} of {of:,}", size(count)]
        for run in runs
        for place, (files, count, of) in run.uploads.items()
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
    html = table(heads, rows, "Uploads", numbers=[2, 3]) if rows else ""
    if pushes:
        html += table(["Run", "Pushed to", "When", "Result"], pushes, "Last pushes", wrap=True)
    return html


def runs_section(runs: Sequence[RunFolder]) -> str:
    """Trainer, machine, versions and settings."""
    facts = [dict(what_was_run(run)) for run in runs]
    names = dict.fromkeys(name for one in facts for name in one)
    heads = ["", *(run.name for run in runs)]
    rows = [[name, *(one.get(name, "–") for one in facts)] for name in names]
    parts = ['<section id="run"><h2>Run and settings</h2>', table(heads, rows, "Runs", wrap=True)]
    apart = differences(runs) if len(runs) > 1 else {}
    if apart:
        parts.append("<h3>Settings that differ</h3>")
        differ = [[name, *values] for name, values in apart.items()]
        parts.append(table(heads, differ, "Settings that differ", wrap=True))
    for run in runs:
        settings = [[name, value] for name, value in settings_of(run).items()]
        summary = "All settings" if len(runs) == 1 else f"All settings of {escape(run.name)}"
        inner = table(["Setting", "Value"], settings, f"Settings of {run.name}", wrap=True)
        parts.append(f"<details><summary>{summary}</summary>{inner}</details>")
    return "".join([*parts, "</section>"])


def table(
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    name: str,
    *,
    numbers: Iterable[int] = (),
    wrap: bool = False,
) -> str:
    """A table that scrolls sideways on its own; `numbers` are the columns that are right-aligned."""
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
