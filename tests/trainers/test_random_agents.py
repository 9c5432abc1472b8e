"""The random agents of an evaluation: the champion's positions in random instruments, by hand-made prices."""

import numpy as np
import pytest

from lakepond.envs.market import History, MarketEnv, Panel, Rules
from lakepond.trainers.evaluate_market import Positions, keep_account, random_positions

RULES = Rules(
    context=2, trading_days=6, settlement_days=6, max_holding=3, cost=1.0, slippage=0.5, delisted_after=2,
    delisting_loss=40.0,
)  # fmt: skip
DAYS = 70


def known(close: np.ndarray) -> History:
    """Of closes alone, NaN where an instrument does not trade."""
    dates = np.datetime64("2020-01-01") + np.arange(len(close))
    return History.of(Panel(dates, tuple("ABCDE"[: close.shape[1]]), *[close] * 4), RULES)


def positions(*trades: tuple[int, int]) -> Positions:
    """The champion's, all in the first instrument and with a profit that nobody else has."""
    entry, left = np.array(trades).T
    return Positions(entry, left, np.zeros(len(trades), int), np.full(len(trades), 77.0))


def drawn(close: np.ndarray, champion: Positions, agents: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Instruments and profits, (agents, trades)."""
    each = list(random_positions(known(close), RULES, champion, agents))
    assert all((one.entry is champion.entry) and (one.exit is champion.exit) for one in each)
    return np.stack([one.instrument for one in each]), np.stack([one.profit for one in each])


def percent(bought: float, sold: float) -> float:
    return 100 * (sold * 0.995 * 0.99 / (bought * 1.005 * 1.01) - 1)


def test_the_mean_profit_is_the_mean_over_the_instruments():
    close = np.full((DAYS, 3), 100.0)
    close[5:] = 130.0, 100.0, 94.0
    close[8:] = 65.0, 110.0, 94.0
    champion = positions((2, 5), (4, 6), (6, 8))
    instruments, profits = drawn(close, champion)
    by_instrument = [[percent(100, each) for each in (130, 100, 94)]] * 2
    by_instrument += [[percent(130, 65), percent(100, 110), percent(94, 94)]]
    for k, expected in enumerate(by_instrument):
        np.testing.assert_allclose(profits[:, k], np.array(expected)[instruments[:, k]])
        counts = np.bincount(instruments[:, k])
        assert (abs(counts - 200) < 45).all()  # four standard deviations
        assert profits[:, k].mean() == pytest.approx(np.mean(expected), abs=4 * np.std(expected) / 600**0.5)
    assert (instruments[:, 0] != instruments[:, 1]).all()  # it is held already
    account = keep_account(known(close), RULES, range(1, 10), champion)[1]
    assert account.trades == 3
    assert account.exposure == pytest.approx(100 * (3 + 2 + 2) / 3 / 9)
    for other in random_positions(known(close), RULES, champion, 5):
        same = keep_account(known(close), RULES, range(1, 10), other)[1]
        assert (same.trades, same.exposure) == (account.trades, account.exposure)
        assert same.total_return == pytest.approx(other.profit.sum() / 3)


def test_what_does_not_trade_is_not_drawn_and_the_number_of_trades_stays():
    close = np.full((DAYS, 3), 100.0)
    close[4:6, 1:] = np.nan  # only the first can be bought, also by those that hold it
    instruments, _ = drawn(close, positions((3, 6), (4, 6), (5, 7), (6, 9)), 60)
    assert set(instruments[:, 0]) == {0, 1, 2}
    assert (instruments[:, 1:3] == 0).all()
    assert set(instruments[:, 3]) == {1, 2}  # the first is held until 7


def test_a_position_held_as_long_earns_what_the_market_pays_for_it():
    close = np.linspace(100.0, 120.0, DAYS)[:, None]
    close[16:19] = np.nan  # delisted on day 17, sold there at the last close less the loss
    env = MarketEnv(known(close), RULES)
    env.reset(options={"start": 10})
    buy, wait = np.array([[0.9, 50.0]], np.float32), np.array([[0.0, 50.0]], np.float32)
    trades = [env.step(action)[-1].get("trade") for action in (buy, wait, wait, wait, buy)]
    bought = [trade for trade in trades if trade is not None]
    assert [trade.reason for trade in bought] == ["time", "delisted"]
    _, profits = drawn(close, positions(*((trade.entry_day, trade.exit_day) for trade in bought)), 2)
    np.testing.assert_allclose(profits, [[trade.profit for trade in bought]] * 2, rtol=1e-4)


def test_a_champion_without_trades_has_random_agents_without_trades():
    nothing = Positions(*np.zeros((3, 0), int), np.zeros(0))
    close = np.full((DAYS, 2), 100.0)
    others = list(random_positions(known(close), RULES, nothing, 4))
    assert [keep_account(known(close), RULES, range(1, 10), other)[1].trades for other in others] == [0] * 4
