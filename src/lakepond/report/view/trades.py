"""The trades of a market episode: which instrument, when it was bought and sold, and with what return.

    step            t      t+1    ...    u             the last
    held (k)        0       1      1     0   ...                  ──▶ settlement
                    └ bought, if the action says so    └ closed by the day of step u

Nothing is estimated from prices. A step's `position` has the holdings and what trades on its day, so the
market's own rule determines what its action bought; the first later step without it is the day of the exit;
and the reward of the step that bought is the return (`credit="entry"`). What closes after the last decision,
in settlement, closes on a day that no step contains.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from lakepond.envs.market_rules import Rules
from lakepond.errors import MarketDataError
from lakepond.lake.read.lake import Lake
from lakepond.report.view.episode import observe, read_columns
from lakepond.report.view.fields import is_market
from lakepond.runs.metrics import is_number
from lakepond.types import Array, Field, leaves
from lakepond.untrusted import read_json

FILES = ("config.json", "market.json")
"""of a run: its rules, and its instruments, dates and prices"""
POSITION = "obs['position']"
HELD, TRADES_TODAY = 0, 3
"""what of an instrument's position is read"""
PIECE_STEPS = 4096
"""steps whose positions are read at a time"""
LEAD_DAYS = 60
"""days before an episode whose prices are shown"""
HOLDING = 20
"""steps in which an instrument that was entered is taken to be held, as in the market's own rules"""
SAME = 1e-3
"""percent; a return this near to that of the sale target was made by it"""


class MarketRun(NamedTuple):
    """The market of a run, from its folder."""

    rules: Rules
    symbols: tuple[str, ...] = ()
    dates: tuple[str, ...] = ()
    close: tuple[list[float | None], ...] = ()
    """closing prices by instrument and day; none in runs of earlier versions"""

    def date(self, day: int) -> str | None:
        """The date of a day of the history, if the run has it."""
        return self.dates[day] if 0 <= day < len(self.dates) else None


def read_market_run(folder: Path) -> MarketRun | None:
    """The rules from `config.json`, the rest from `market.json`; None if there are no rules."""
    config, market = (folder / name for name in FILES)
    try:
        found = read_json(config)["config"]["rules"]
        rules = Rules(**{field.name: found[field.name] for field in fields(Rules) if field.name in found})
    except (OSError, ValueError, KeyError, TypeError, MarketDataError):
        return None
    try:
        found = read_json(market)
        symbols, dates = tuple(map(str, found["symbols"])), tuple(map(str, found["dates"]))
        np.array(dates, "datetime64[D]")  # ValueError unless they are dates
    except (OSError, ValueError, KeyError, TypeError):  # an earlier version wrote none
        return MarketRun(rules)
    try:
        close = tuple([price if is_number(price) else None for price in one] for one in found["close"])
    except (KeyError, TypeError):
        close = ()
    known = len(close) == len(symbols) and all(len(one) == len(dates) for one in close)
    return MarketRun(rules, symbols, dates, close if known else ())


def describe_prices(lake: Lake, ids: Array, run: MarketRun, column: int) -> dict[str, Any] | None:
    """Closing prices of an instrument around an episode, with the day of each step; None if not known."""
    if not 0 <= column < len(run.close) or not {"day", "next_day"} <= lake.spec.extras.keys():
        return None
    columns = read_columns(lake, ids, ["day", "next_day"])
    days = columns["day"].astype(np.int64)
    first, last = int(days.min()) - LEAD_DAYS, int(columns["next_day"].max())
    start, stop = max(0, first), min(len(run.dates), last + 1)
    if start >= stop or days.min() < 0 or days.max() >= len(run.dates):
        return None
    return {
        "column": column,
        "dates": list(run.dates[start:stop]),
        "close": run.close[column][start:stop],
        "days": (days - start).tolist(),
    }


def describe_trades(lake: Lake, ids: Array, run: MarketRun) -> list[dict[str, Any]] | None:
    """The trades of an episode; None if its steps do not contain the holdings."""
    observed, action = dict(leaves(lake.spec.obs, "obs")), lake.spec.action
    if not is_market(lake) or not isinstance(action, Field) or POSITION not in observed:
        return None
    if observed[POSITION].shape != (action.shape[0], 1 + TRADES_TODAY):  # of another market than ours
        return None
    leaf = list(observed).index(POSITION)
    pieces = [
        observe(lake, ids[at : at + PIECE_STEPS], leaf)[:, :, [HELD, TRADES_TODAY]] > 0.5
        for at in range(0, len(ids), PIECE_STEPS)
    ]
    known = [name for name in ("day", "next_day") if name in lake.spec.extras]
    columns = read_columns(lake, ids, ["action", "reward", "terminated", "truncated", *known])
    held, traded = np.moveaxis(np.concatenate(pieces), -1, 0)
    ended = bool(columns["terminated"][-1] or columns["truncated"][-1])
    trades = find_trades(columns["action"], columns["reward"], held, traded, ended, run.rules)
    for trade in trades:
        column, exit_at = trade["column"], trade["exit_at"]
        trade["symbol"] = run.symbols[column] if column < len(run.symbols) else None
        if len(known) == 2:
            trade["date"] = run.date(int(columns["day"][trade["at"]]))
            trade["exit_date"] = None if exit_at is None else run.date(int(columns["day"][exit_at]))
            late = ended and exit_at is None
            trade["exit_until"] = run.date(int(columns["next_day"][-1])) if late else trade["exit_date"]
    return trades


def find_entries(actions: Array, threshold: float) -> list[dict[str, Any]]:
    """What (steps, N, 2) actions of a market ask to buy: coefficient, then sale target in percent.

    At each step the instrument with the highest coefficient, if that reaches the threshold; not again within
    `HOLDING` steps, while it may be held. Whether the market filled the order is not in the lake.
    """
    coefficient = np.nan_to_num(actions[:, :, 0].astype("f8"), nan=-np.inf)
    best = coefficient.argmax(axis=1)
    peak = coefficient[np.arange(len(best)), best]
    held: dict[int, int] = {}
    entries = []
    for at in np.flatnonzero(peak >= threshold).tolist():
        column = int(best[at])
        if at - held.get(column, -HOLDING - 1) <= HOLDING:
            continue
        held[column] = at
        target = float(actions[at, column, 1])
        entries.append({"at": at, "column": column, "coefficient": float(peak[at]), "target": target})
    return entries


def find_trades(
    actions: Array, rewards: Array, held: Array, traded: Array, ended: bool, rules: Rules
) -> list[dict[str, Any]]:
    """Trades from (steps, N, 2) actions, (steps,) rewards and (steps, N) holdings and flags of trading.

    `exit_at` is the step on whose day a trade is closed, None if that is after the last step. `closed_by` is
    one of `rules.REASONS`, as far as the steps contain it, `settlement`, or `open` if the episode has not
    `ended`.
    """
    steps = np.arange(len(actions))
    best = actions[:, :, 0].argmax(axis=1)
    wanted = actions[steps, best, 0] > np.float32(rules.threshold)  # never of NaN, which `argmax` prefers
    cost = rules.cost / 100
    found = []
    for at in np.flatnonzero(wanted & ~held[steps, best] & traded[steps, best]).tolist():
        column = int(best[at])
        target = float(np.clip(actions[at, column, 1], rules.target_low, rules.target_high))
        profit = float(rewards[at]) if rules.credit == "entry" and np.isfinite(rewards[at]) else None
        free = np.flatnonzero(~held[at + 1 :, column])
        exit_at = at + 1 + int(free[0]) if len(free) else None
        full = ((1 + target / 100) * (1 - cost) / (1 + cost) - 1) * 100
        if exit_at is None and not ended:
            reason = "open"
        elif profit is not None and abs(profit - full) < SAME:
            reason = "target"
        elif exit_at is None:
            reason = "settlement"
        elif not traded[exit_at, column]:
            reason = "delisted"
        else:
            reason = "time" if profit is not None or exit_at - at >= rules.max_holding else "target"
        found.append(
            {
                "at": at,
                "column": column,
                "coefficient": float(actions[at, column, 0]),
                "target": target,
                "exit_at": exit_at,
                "profit": profit,
                "closed_by": reason,
            }
        )
    return found
