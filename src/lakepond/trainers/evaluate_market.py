"""A run's champion on days it was not trained on, beside buy-and-hold and random agents with its entry days.

    evaluate("runs/demo")              validation days, one account from the first to the last
    evaluate("runs/demo", "holdout")   computed on every call; `lakepond evaluate --holdout` calls it once
    record(found, "runs/demo")         writes it to runs/demo/evaluation/<part>

The account: a stake is 1 / max_holding of the capital at the start, so one entry per day invests it all;
profits are not reinvested. A day's equity marks open positions at the close, after the costs of entry.

    buy_and_hold      equal parts in every instrument that trades on the first day, with the same costs and
                      losses by delistings
    random            each of the champion's positions in a random instrument: bought on the same day, sold at
                      the close of the day on which the champion's was closed
    random_same_targets  the same, but sold by the rules of the market, with the champion's sale targets

The first have as many trades as the champion, held as long, so its exposure on each day; but it may sell
above the close, which pays where prices return to a mean, whatever is bought. The second have as many trades
and its way to sell, but not its exposure: they are invested for longer if its targets are reached sooner than
theirs. Neither difference is skill in buying; a champion with that skill earns more than both.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from lakepond import untrusted
from lakepond._version import __version__
from lakepond.agents.market_network import Array, Params, init_actor, may_buy
from lakepond.envs.market import functional
from lakepond.envs.market.functional import MarketState, Result
from lakepond.envs.market.history import History, Part
from lakepond.envs.market.world import Market, World
from lakepond.envs.market_rules import REASONS, Rules
from lakepond.errors import RunCorrupt, RunMismatch
from lakepond.lake.files import write_bytes
from lakepond.lake.format.sealed import strict
from lakepond.paths import on_disk
from lakepond.runs import Run, settings
from lakepond.trainers.erl import Config, open_market
from lakepond.trainers.market_rollout import play

YEAR = 252
"""trading days"""
SWEEP = ((0.0, 0.0), (0.25, 0.0), (0.5, 0.0), (1.0, 0.0), (0.1, 0.25), (0.1, 1.0))
"""cost and slippage, in percent, of `lakepond evaluate --sweep`"""
SWEPT = ("cost", "slippage", "champion", "buy_and_hold", "random", "champion_beats_random")
"""of a line of the sweep"""
Curve = npt.NDArray[np.float64]


class TradeRow(NamedTuple):
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
    """The result of an account; of several, the mean of each number."""

    total_return: float
    """percent of the capital"""
    sharpe: float
    """mean over standard deviation of daily returns, times the root of 252; no interest is subtracted"""
    max_drawdown: float
    """percent, the largest fall from a high before it"""
    trades: float
    win_rate: float
    """percent of trades with a profit after costs"""
    exposure: float
    """percent of the capital that was invested, on average over the days"""


class Positions(NamedTuple):
    """Positions by day of entry; days are those of the history."""

    entry: npt.NDArray[np.signedinteger]
    exit: npt.NDArray[np.signedinteger]
    instrument: npt.NDArray[np.signedinteger]
    profit: Curve
    """percent of the stake, after costs"""


class Evaluation(NamedTuple):
    """A champion beside its baselines, over the same days."""

    result: dict[str, Any]
    """`part`, `first_day`, `last_day`, `generation`; then `Accounts.result` and `Accounts.swept`"""
    dates: npt.NDArray[np.datetime64]
    curves: dict[str, Curve]
    """equity by day, capital 1 at the start"""
    trades: list[TradeRow]


def evaluate(
    folder: str | Path,
    part: Part = "validation",
    *,
    checkpoint: int | None = None,
    random_agents: int = 100,
    sweep: Sequence[tuple[float, float]] = (),
) -> Evaluation:
    """Play a run's champion over all days of a part, in one account. Writes nothing.

    sweep: repeat it at these costs and slippages, in percent.
    """
    run = Run.open(folder)
    if run.trainer != "erl":
        raise RunMismatch(
            f"{folder} is a run of the trainer {run.trainer!r}; only runs of 'erl' can be evaluated."
        )
    config = settings.from_json(Config, run.config, run.trainer, run.folder)
    market = open_market(config)
    like = jax.eval_shape(partial(init_actor, inputs=market.inputs, width=config.width), jax.random.key(0))
    loaded = run.load(checkpoint, like={"best": like})
    champion = jax.tree.map(jnp.asarray, loaded.arrays["best"])

    def played(rules: Rules) -> Accounts:
        return Accounts.of(replace(config, rules=rules), market, champion, part, random_agents)

    found = played(config.rules)
    swept = [
        played(replace(config.rules, cost=cost, slippage=slip)).swept(cost, slip) for cost, slip in sweep
    ]
    days = market.history.splits[part]
    dates = market.history.dates[days.start : days.stop]
    about = {
        "part": part,
        "first_day": str(dates[0]),
        "last_day": str(dates[-1]),
        "generation": loaded.number,
    }
    return Evaluation(about | found.result() | {"sweep": swept}, dates, found.curves, found.trades)


class Accounts(NamedTuple):
    """The accounts of a champion and of its baselines under one set of rules."""

    champion: Account
    buy_and_hold: Account
    random: list[Account]
    random_same_targets: list[Account]
    curves: dict[str, Curve]
    trades: list[TradeRow]

    @classmethod
    def of(cls, config: Config, market: Market, champion: Params, part: Part, random_agents: int) -> Accounts:
        """Play all of them on the days of a part."""
        history, days = market.history, market.history.splits[part]
        rules = replace(config.rules, trading_days=len(days) - config.rules.settlement_days)
        one = jax.tree.map(lambda x: x[None], champion)
        player = replace(config, rules=rules).player()
        episode = play(one, jnp.asarray([days.start]), None, market.world, player)
        mine = jax.tree.map(lambda x: np.asarray(x)[0, 0], episode.result)
        positions = positions_of(mine, days)
        curve, account = keep_account(history, rules, days, positions)
        held_curve, held = buy_and_hold(history, rules, days)
        others = random_positions(history, rules, positions, random_agents)
        random_curves, random = zip(
            *(keep_account(history, rules, days, each) for each in others), strict=True
        )
        targets = np.tile(np.where(mine.instrument >= 0, mine.target, 0), (random_agents, 1))
        played = jax.device_get(random_play(jax.random.key(0), targets, days.start, market.world, rules))
        each_played = (jax.tree.map(lambda x, i=i: x[i], played) for i in range(random_agents))
        same_targets = [keep_account(history, rules, days, positions_of(x, days))[1] for x in each_played]
        curves = {"champion": curve, "buy and hold": held_curve, "random": np.mean(random_curves, axis=0)}
        return cls(account, held, list(random), same_targets, curves, _trades(history, rules, days, mine))

    def beats(self, others: list[Account]) -> float:
        """Share of others with a lower total return than the champion, 0..1."""
        return float(np.mean([self.champion.total_return > other.total_return for other in others]))

    def result(self) -> dict[str, Any]:
        """All but curves and trades, as JSON has it; of random agents the means, and each total return."""
        accounts = {
            "champion": self.champion,
            "buy_and_hold": self.buy_and_hold,
            "random": _mean(self.random),
            "random_same_targets": _mean(self.random_same_targets),
        }
        return {name: asdict(account) for name, account in accounts.items()} | {
            "champion_beats_random": self.beats(self.random),
            "champion_beats_random_same_targets": self.beats(self.random_same_targets),
            "random_returns": [each.total_return for each in self.random],
        }

    def swept(self, cost: float, slippage: float) -> dict[str, float]:
        """A line of the sweep: total returns at this cost and slippage."""
        accounts = (self.champion, self.buy_and_hold, _mean(self.random))
        returns = (account.total_return for account in accounts)
        return dict(zip(SWEPT, (cost, slippage, *returns, self.beats(self.random)), strict=True))


def positions_of(result: Result, days: range) -> Positions:
    """The positions of an episode; `result`: of each trading day from the first of `days` on."""
    bought = np.flatnonzero(np.asarray(result.instrument) >= 0)
    picked = (np.asarray(x)[bought] for x in (result.exit_day, result.instrument, result.profit))
    return Positions(days.start + bought, *picked)


def random_positions(
    history: History, rules: Rules, positions: Positions, agents: int
) -> Iterator[Positions]:
    """For each agent the same positions in random instruments, sold at the close.

    An instrument is drawn from those that trade on the day of entry and that the agent does not hold, or, if
    it holds all that trade, from these.
    """
    rng = np.random.default_rng(0)
    held_until = np.zeros((agents, history.close.shape[1]), int)
    everyone = np.arange(agents)
    instruments, profits = [], []
    for entry, left in zip(positions.entry, positions.exit, strict=True):
        rank = 2 * history.traded[entry] + (held_until <= entry) + rng.random(held_until.shape)
        drawn = rank.argmax(axis=1)
        held_until[everyone, drawn] = np.maximum(held_until[everyone, drawn], left)
        instruments.append(drawn)
        profits.append(_from_close_to_close(history, rules, entry, left)[drawn])
    shape = (len(positions.entry), agents)
    for each in zip(np.reshape(instruments, shape).T, np.reshape(profits, shape).T, strict=True):
        yield Positions(positions.entry, positions.exit, *each)


def _from_close_to_close(history: History, rules: Rules, entry: int, left: int) -> Curve:
    """Profit in percent of the stake by instrument; meaningless if it does not trade on the day of entry."""
    close = history.close[entry : left + 1].astype(np.float64)
    delisted = history.idle[entry : left + 1] >= rules.delisted_after
    gone = delisted.any(axis=0)
    sold_on = np.where(gone, delisted.argmax(axis=0), left - entry)
    price = close[sold_on, np.arange(close.shape[1])]
    loss = np.where(gone, rules.delisting_loss, rules.slippage)
    return 100 * (price * (1 - loss / 100) * (1 - rules.cost / 100) / _paid(rules, close[0]) - 1)


@partial(jax.jit, static_argnames="rules")
def random_play(key: Array, plans: Array, start: int, world: World, rules: Rules) -> Result:
    """Agents that buy random instruments, (agents, trading days).

    plans: (agents, trading days) sale targets in percent; 0 on days without an entry.
    """
    instruments = world.prices.close.shape[1]

    def one(state: MarketState, plan: tuple[Array, Array]) -> tuple[MarketState, Result]:
        key, target = plan
        free = may_buy(functional.position(world.prices, rules, state)) * (target > 0)
        drawn = jax.random.uniform(key, (instruments,), minval=rules.threshold, maxval=1.0)
        action = jnp.stack([drawn * free, jnp.full(instruments, target)], axis=-1)
        return functional.step(world.prices, rules, state, action)

    def episode(key: Array, targets: Array) -> Result:
        first = functional.reset(world.prices, rules, start)
        return jax.lax.scan(one, first, (jax.random.split(key, len(targets)), targets))[1]

    return jax.vmap(episode)(jax.random.split(key, len(plans)), jnp.asarray(plans))


def keep_account(history: History, rules: Rules, days: range, positions: Positions) -> tuple[Curve, Account]:
    """The equity of each of the days, and the result."""
    stake = 1 / rules.max_holding
    curve, invested = np.ones(len(days)), np.zeros(len(days))
    for entry, left, instrument, profit in zip(*positions, strict=True):
        here, there = entry - days.start, left - days.start
        marks = history.close[entry:left, instrument].astype(np.float64)
        curve[here:there] += stake * (marks / _paid(rules, marks[0]) - 1)
        curve[there:] += stake * float(profit) / 100
        invested[here:there] += stake
    won = positions.profit > 0
    return curve, _account(curve, len(won), float(won.mean()) if len(won) else 0.0, invested)


def buy_and_hold(history: History, rules: Rules, days: range) -> tuple[Curve, Account]:
    """Everything that trades on the first day, in equal parts, to the last."""
    chosen = np.flatnonzero(history.traded[days.start])
    close = history.close[days.start : days.stop, chosen].astype(np.float64)
    gone = np.maximum.accumulate(history.idle[days.start : days.stop, chosen] >= rules.delisted_after, axis=0)
    value = close / _paid(rules, close[0]) * np.where(gone, 1 - rules.delisting_loss / 100, 1)
    value[-1] *= (1 - rules.slippage / 100) * (1 - rules.cost / 100)
    won = float((value[-1] > 1).mean())
    return value.mean(axis=1), _account(value.mean(axis=1), len(chosen), won, np.ones(len(days)))


def _paid(rules: Rules, close: Curve) -> Curve:
    """What a purchase at this close takes."""
    return close * (1 + rules.slippage / 100) * (1 + rules.cost / 100)


def _account(curve: Curve, trades: int, won: float, invested: Curve) -> Account:
    change = np.diff(curve) / curve[:-1]
    spread = change.std()
    return Account(
        total_return=100 * float(curve[-1] - 1),
        sharpe=float(change.mean() / spread * np.sqrt(YEAR)) if spread > 0 else 0.0,
        max_drawdown=100 * float((1 - curve / np.maximum.accumulate(curve)).max()),
        trades=trades,
        win_rate=100 * won,
        exposure=100 * float(invested.mean()),
    )


def _mean(accounts: list[Account]) -> Account:
    return Account(*(float(np.mean([getattr(a, f.name) for a in accounts])) for f in fields(Account)))


def _trades(history: History, rules: Rules, days: range, result: Result) -> list[TradeRow]:
    return [
        TradeRow(
            history.symbols[int(result.instrument[k])],
            str(history.dates[days.start + k]),
            str(history.dates[int(result.exit_day[k])]),
            float(history.close[days.start + k, int(result.instrument[k])]) * (1 + rules.slippage / 100),
            float(result.exit_price[k]),
            float(result.target[k]),
            float(result.profit[k]),
            REASONS[int(result.reason[k])],
        )
        for k in np.flatnonzero(np.asarray(result.instrument) >= 0)
    ]


# --- files ---------------------------------------------------------------------------------------------

RESULT = "result.json"


def folder_of(run: str | Path, part: Part) -> Path:
    """Where an evaluation is recorded."""
    return on_disk(run) / "evaluation" / part


def recorded(run: str | Path, part: Part) -> dict[str, Any] | None:
    """The recorded result of an evaluation; None if there is none."""
    file = folder_of(run, part) / RESULT
    with untrusted.blaming(file, RunCorrupt, "move it away to evaluate again"):
        if not file.exists():
            return None
        found = untrusted.read_json(file)
        names = [field.name for field in fields(Account)]
        checked: dict[str, Any] = {name: str(found[name]) for name in ("part", "first_day", "last_day")}
        for name, value in found.items():
            if isinstance(value, dict):
                checked[name] = {each: float(value[each]) for each in names}
            elif name.startswith("champion_beats"):
                checked[name] = float(value)
        checked["sweep"] = [{name: float(line[name]) for name in SWEPT} for line in found.get("sweep", ())]
        return found | checked


def record(found: Evaluation, run: str | Path) -> dict[str, Any]:
    """Write two pictures, `trades.csv`, `equity.csv` and, last, `result.json`, which is returned."""
    home = folder_of(run, found.result["part"])
    home.mkdir(parents=True, exist_ok=True)
    _draw(found, home)
    curves = (curve.tolist() for curve in found.curves.values())
    for name, heading, rows in (
        ("trades.csv", TradeRow._fields, found.trades),
        ("equity.csv", ("date", *found.curves), zip(found.dates.tolist(), *curves, strict=True)),
    ):
        with (home / name).open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([heading, *rows])
    now = datetime.now(UTC).isoformat(timespec="seconds")
    result = {"evaluated": now, "version": __version__} | found.result
    write_bytes(home, RESULT, strict(result, indent=1))
    return result


def _draw(found: Evaluation, home: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figures = [Figure(figsize=(8, 4.5), layout="constrained") for _ in range(2)]
    for figure in figures:
        FigureCanvasAgg(figure)
    axes = figures[0].subplots()
    for name, curve in found.curves.items():
        axes.plot(found.dates, 100 * (curve - 1), label=name)
    axes.set_ylabel("return, percent of the capital")
    axes.set_title(f"{found.result['part']} days {found.dates[0]} to {found.dates[-1]}")
    axes.legend()
    axes = figures[1].subplots()
    axes.hist([trade.profit_percent for trade in found.trades], bins=40)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_xlabel("profit of a trade, percent of its stake, after costs")
    axes.set_ylabel("trades of the champion")
    for figure, name in zip(figures, ("equity.png", "profits.png"), strict=True):
        figure.savefig(home / name, dpi=120)
