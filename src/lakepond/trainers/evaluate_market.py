"""How a run's champion does on days it was not trained on, beside buy-and-hold and agents picking at random.

    evaluate("runs/demo", "holdout")   one account from the first to the last of those days

The account: a stake is 1 / max_holding of the capital at the start, so that one entry a day invests it all;
profits are not invested again. A day's equity marks open positions at the close, after the cost of entry.
Buy-and-hold puts equal parts of the capital into every instrument that trades on the first day, pays the same
costs and loses the same by delistings. A random agent buys, every day, an instrument drawn at random, with a
random sale target.
"""

from __future__ import annotations

import csv
import json
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lakepond.agents.market_network import Array, init_actor, may_buy
from lakepond.envs.market import functional
from lakepond.envs.market.functional import Result, State
from lakepond.envs.market.history import History, Part
from lakepond.envs.market.world import World
from lakepond.envs.market_rules import REASONS, Rules
from lakepond.errors import RunMismatch
from lakepond.lake.files import write_bytes
from lakepond.runs import Run, settings
from lakepond.trainers.erl import Config, open_market
from lakepond.trainers.market_rollout import play

YEAR = 252
"""trading days"""
Curve = npt.NDArray[np.float64]


class Trade(NamedTuple):
    """One position from entry to exit, as in `trades.csv`."""

    symbol: str
    entry_date: str
    exit_date: str
    entry_price: float
    exit_price: float
    sale_target_percent: float
    profit_percent: float
    """of its stake, after costs"""
    closed_by: str


@dataclass(frozen=True)
class Account:
    """The result of an account."""

    total_return: float
    """percent of the capital"""
    sharpe: float
    """mean over standard deviation of daily returns, times the root of 252; no interest is subtracted"""
    max_drawdown: float
    """percent, the largest fall from a high before it"""
    trades: int
    win_rate: float
    """percent of trades with a profit after costs"""
    exposure: float
    """percent of the capital that was invested, on average over the days"""


@dataclass(frozen=True)
class Evaluation:
    """A champion beside its baselines, over the same days."""

    part: Part
    first_day: str
    last_day: str
    generation: int
    """the checkpoint's"""
    champion: Account
    buy_and_hold: Account
    random: Account
    """means over the random agents"""
    random_returns: tuple[float, ...]
    """total return of each, in order"""
    champion_beats_random: float
    """share of the random agents that the champion beats, 0..1"""
    curves: dict[str, Curve]
    """equity by day, capital 1 at the start"""
    dates: npt.NDArray[np.datetime64]
    list_of_trades: tuple[Trade, ...]


def evaluate(
    folder: str | Path, part: Part = "holdout", *, checkpoint: int | None = None, random_agents: int = 100
) -> Evaluation:
    """Play a run's champion over all days of a part, in one account."""
    run = Run.open(folder)
    if run.trainer != "erl":
        raise RunMismatch(
            f"{folder} is a run of the trainer {run.trainer!r}; only runs of 'erl' can be evaluated."
        )
    config = config_of(run)
    market = open_market(config)
    like = jax.eval_shape(partial(init_actor, inputs=market.inputs, width=config.width), jax.random.key(0))
    loaded = run.load(checkpoint, like={"best": like})
    champion = jax.tree.map(lambda x: jnp.asarray(x)[None], loaded.arrays["best"])

    history, days = market.history, market.history.splits[part]
    rules = replace(config.rules, trading_days=len(days) - config.rules.settlement_days)
    start = jnp.asarray([days.start])
    played = play(champion, start, None, market.world, replace(config, rules=rules).player())
    entry = np.asarray(played.day[0, 0])
    mine = jax.tree.map(lambda x: np.asarray(x)[0, 0], played.result)
    others = jax.device_get(random_play(jax.random.key(0), random_agents, days.start, market.world, rules))

    curve, account = keep_account(history, rules, days, entry, mine)
    by_random = [
        keep_account(history, rules, days, entry, jax.tree.map(lambda x, i=i: x[i], others))
        for i in range(random_agents)
    ]
    held_curve, held = buy_and_hold(history, rules, days)
    returns = tuple(each.total_return for _, each in by_random)
    means = {name: float(np.mean([getattr(each, name) for _, each in by_random])) for name in asdict(account)}
    return Evaluation(
        part=part,
        first_day=str(history.dates[days.start]),
        last_day=str(history.dates[days.stop - 1]),
        generation=loaded.number,
        champion=account,
        buy_and_hold=held,
        random=replace(Account(0, 0, 0, round(means.pop("trades")), 0, 0), **means),  # type: ignore[arg-type]
        random_returns=returns,
        champion_beats_random=float(np.mean([account.total_return > r for r in returns])),
        curves={
            "champion": curve,
            "buy and hold": held_curve,
            "random": np.mean([each for each, _ in by_random], axis=0),
        },
        dates=history.dates[days.start : days.stop],
        list_of_trades=tuple(_trades(history, entry, mine)),
    )


def config_of(run: Run, *, warn: bool = True) -> Config:
    """The settings of a run, from its config.json, but never a destination for uploads.

    The folder may come from somebody else, who must not choose where this machine sends files.
    `warn`: log the names of settings that this version does not have.
    """
    config = settings.from_json(Config, run.config, run.trainer, run.folder, warn=warn)
    return replace(config, push_to=None)


@partial(jax.jit, static_argnames=("count", "rules"))
def random_play(key: Array, count: int, start: int, world: World, rules: Rules) -> Result:
    """Agents that pick at random among what can be bought, (agents, trading days)."""
    instruments = world.prices.close.shape[1]

    def one(state: State, key: Array) -> tuple[State, Result]:
        key_pick, key_target = jax.random.split(key)
        coefficient = jax.random.uniform(key_pick, (instruments,), minval=rules.threshold, maxval=1.0)
        target = jax.random.uniform(
            key_target, (instruments,), minval=rules.target_low, maxval=rules.target_high
        )
        free = may_buy(functional.position(world.prices, rules, state))
        return functional.step(world.prices, rules, state, jnp.stack([coefficient * free, target], axis=-1))

    def episode(key: Array) -> Result:
        first = functional.reset(world.prices, rules, start)
        return jax.lax.scan(one, first, jax.random.split(key, rules.trading_days))[1]

    return jax.vmap(episode)(jax.random.split(key, count))


def keep_account(
    history: History, rules: Rules, days: range, entry: npt.NDArray[Any], result: Result
) -> tuple[Curve, Account]:
    """The equity of each day, and the result."""
    stake, cost = 1 / rules.max_holding, rules.cost / 100
    curve, invested = np.ones(len(days)), np.zeros(len(days))
    bought = np.flatnonzero(np.asarray(result.instrument) >= 0)
    for k in bought:
        instrument = int(result.instrument[k])
        here, there = int(entry[k]) - days.start, int(result.exit_day[k]) - days.start
        marks = history.close[entry[k] : result.exit_day[k], instrument].astype(np.float64)
        curve[here:there] += stake * (marks / (marks[0] * (1 + cost)) - 1)
        curve[there:] += stake * float(result.profit[k]) / 100
        invested[here:there] += stake
    profits = np.asarray(result.profit)[bought]
    return curve, _account(
        curve, len(bought), 100 * float((profits > 0).mean()) if len(bought) else 0.0, invested
    )


def buy_and_hold(history: History, rules: Rules, days: range) -> tuple[Curve, Account]:
    """Everything that trades on the first day, in equal parts, to the last."""
    cost = rules.cost / 100
    chosen = np.flatnonzero(history.traded[days.start])
    close = history.close[days.start : days.stop, chosen].astype(np.float64)
    gone = np.maximum.accumulate(history.idle[days.start : days.stop, chosen] >= rules.delisted_after, axis=0)
    value = close / (close[0] * (1 + cost)) * np.where(gone, 1 - rules.delisting_loss / 100, 1)
    value[-1] *= 1 - cost
    return value.mean(axis=1), _account(
        value.mean(axis=1), len(chosen), 100 * float((value[-1] > 1).mean()), np.ones(len(days))
    )


def _account(curve: Curve, trades: int, win_rate: float, invested: Curve) -> Account:
    change = np.diff(curve) / curve[:-1]
    spread = change.std()
    return Account(
        total_return=100 * float(curve[-1] - 1),
        sharpe=float(change.mean() / spread * np.sqrt(YEAR)) if spread > 0 else 0.0,
        max_drawdown=100 * float((1 - curve / np.maximum.accumulate(curve)).max()),
        trades=trades,
        win_rate=win_rate,
        exposure=100 * float(invested.mean()),
    )


def _trades(history: History, entry: npt.NDArray[Any], result: Result) -> list[Trade]:
    return [
        Trade(
            history.symbols[int(result.instrument[k])],
            str(history.dates[entry[k]]),
            str(history.dates[int(result.exit_day[k])]),
            float(history.close[entry[k], int(result.instrument[k])]),
            float(result.exit_price[k]),
            float(result.target[k]),
            float(result.profit[k]),
            REASONS[int(result.reason[k])],
        )
        for k in np.flatnonzero(np.asarray(result.instrument) >= 0)
    ]


def write(found: Evaluation, folder: str | Path) -> list[Path]:
    """`result.json`, `trades.csv`, `equity.csv` and two pictures, each whole or absent."""
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    told = {
        name: value
        for name, value in asdict(replace(found, curves={}, list_of_trades=())).items()
        if name not in ("curves", "dates", "list_of_trades")
    }
    write_bytes(home, "result.json", json.dumps(told, indent=1).encode())
    with (home / "trades.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(Trade._fields)
        table.writerows(found.list_of_trades)
    with (home / "equity.csv").open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["date", *found.curves])
        table.writerows(zip(found.dates.tolist(), *(c.tolist() for c in found.curves.values()), strict=True))
    return [home / "result.json", home / "trades.csv", home / "equity.csv", *_draw(found, home)]


def _draw(found: Evaluation, home: Path) -> list[Path]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for name, curve in found.curves.items():
        axes.plot(found.dates, 100 * (curve - 1), label=name)
    axes.set_ylabel("return, percent of the capital")
    axes.set_title(f"{found.part} days {found.first_day} to {found.last_day}")
    axes.legend()
    figure.savefig(home / "equity.png", dpi=120)

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.hist([trade.profit_percent for trade in found.list_of_trades], bins=40)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("profit of a trade, percent of its stake, after costs")
    axes.set_ylabel("trades of the champion")
    figure.savefig(home / "profits.png", dpi=120)
    return [home / "equity.png", home / "profits.png"]
