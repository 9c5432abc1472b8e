"""The market environment: rules by hand, its JAX twin step by step, and no look into the future."""

from collections import Counter
from dataclasses import replace

import jax
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import lakepond as lp
from lakepond.adapters.gymnasium import Recorder
from lakepond.envs.market import History, MarketEnv, Panel, Rules, functional, synthetic
from lakepond.envs.market.observe import normalise, relative, spans, summaries
from lakepond.envs.market_rules import REASONS
from lakepond.errors import MarketDataError

RULES = Rules(
    context=4, trading_days=6, settlement_days=3, max_holding=3, cost=0.0, inaction_penalty=0.5,
    zero_trade_penalty=7.0, delisted_after=2, delisting_loss=40.0,
)  # fmt: skip


def flat() -> dict[str, np.ndarray]:
    """Prices of 100 that do not move, to write events into."""
    return {name: np.full((60, 3), 100.0) for name in ("open", "high", "low", "close")}


def market(prices: dict[str, np.ndarray], rules: Rules = RULES) -> MarketEnv:
    """An episode that starts on day 10."""
    dates = np.datetime64("2020-01-01") + np.arange(len(prices["close"]))
    env = MarketEnv(History.of(Panel(dates, tuple("ABC"), **prices), rules), rules)
    env.reset(options={"start": 10})
    return env


def buy(instrument: int, target: float = 10.0, coefficient: float = 0.9) -> np.ndarray:
    action = np.zeros((3, 2), np.float32)
    action[:, 1] = 50.0
    action[instrument] = coefficient, target
    return action


NOTHING = np.zeros((3, 2), np.float32)


def test_a_position_closes_at_its_target_on_the_first_day_whose_high_reaches_it():
    prices = flat()
    prices["high"][12, 0], prices["high"][13, 0] = 109.9, 115.0
    obs, reward, *_, info = market(prices).step(buy(0, target=10.0))
    assert info["trade"].exit_day == 13
    assert info["trade"].exit_price == pytest.approx(110.0)
    assert reward == pytest.approx(10.0, abs=1e-4)
    assert obs["position"][0].tolist() == [1, 0, np.float32(1 / 3), 1]


def test_it_closes_at_the_close_after_max_holding_days():
    prices = flat()
    for name in prices:
        prices[name][13:, 0] = 95.0
    trade = market(prices).step(buy(0))[-1]["trade"]
    assert (trade.exit_day, trade.reason, trade.exit_price) == (13, "time", 95.0)
    assert trade.profit == pytest.approx(-5.0, abs=1e-4)


def test_on_its_last_day_a_position_may_still_reach_its_target_and_never_gets_more():
    prices = flat()
    prices["high"][13, 0] = prices["high"][14, 1] = 130.0
    env = market(prices)
    for instrument in (0, 1):  # each on its third day, which is also the last one
        trade = env.step(buy(instrument, target=10.0))[-1]["trade"]
        assert (trade.exit_day, trade.reason) == (13 + instrument, "target")
        assert trade.exit_price == pytest.approx(110.0)  # the target, not the high of the day


def test_costs_are_paid_at_both_ends():
    _, reward, *_ = market(flat(), replace(RULES, cost=1.0)).step(buy(0))
    assert reward == pytest.approx(100 * (0.99 / 1.01 - 1), abs=1e-4)


def test_with_slippage_closes_are_missed_and_a_high_must_exceed_the_target():
    prices = flat()
    prices["high"][12, :2] = 111.5, 112.3  # the target is 101 x 1.1 = 111.1; with slippage 112.211
    env = market(prices, replace(RULES, slippage=1.0))
    missed, reached = (env.step(buy(instrument))[-1]["trade"] for instrument in (0, 1))
    assert (missed.reason, missed.exit_day) == ("time", 13)
    assert (missed.entry_price, missed.exit_price) == pytest.approx((101.0, 99.0))
    assert missed.profit == pytest.approx(100 * (99 / 101 - 1), abs=1e-4)
    assert (reached.reason, reached.exit_price) == ("target", pytest.approx(111.1))
    assert reached.profit == pytest.approx(10.0, abs=1e-4)


def test_only_the_highest_coefficient_above_the_threshold_buys_and_only_what_is_not_held():
    env = market(flat())
    action = buy(1, coefficient=0.8)
    action[0, 0] = 0.7
    *_, info = env.step(action)
    assert info["trade"].instrument == 1
    _, reward, *_, info = env.step(action)  # 1 is held and still the highest: nothing is bought
    assert "trade" not in info
    assert reward == pytest.approx(-0.5)
    assert "trade" not in env.step(buy(2, coefficient=0.5))[-1]  # at the threshold, not above it
    assert "trade" in env.step(buy(1))[-1]  # three days on it is free again


def test_a_day_without_a_trade_fills_no_order_and_no_exit():
    prices = flat()
    for name in prices:
        prices[name][10, 0] = prices[name][14, 1] = np.nan  # on its first day, and when its time is up
        prices[name][15, 1] = 90.0
    env = market(prices)
    assert "trade" not in env.step(buy(0))[-1]
    *_, info = env.step(buy(1))
    assert (info["trade"].exit_day, info["trade"].exit_price, info["trade"].reason) == (15, 90.0, "time")


def test_what_trades_no_more_is_written_down_as_delisted():
    prices = flat()
    for name in prices:
        prices[name][12:, 2] = np.nan
    trade = market(prices).step(buy(2))[-1]["trade"]
    assert (trade.exit_day, trade.reason) == (13, "delisted")  # the second day without a trade
    assert trade.profit == pytest.approx(-40.0, abs=1e-4)


def test_the_last_step_settles_and_an_episode_without_a_trade_is_punished_once():
    env = market(flat())
    rewards, ended = [], False
    while not ended:
        _, reward, terminated, ended, info = env.step(NOTHING)
        rewards.append(reward)
        assert not terminated
    np.testing.assert_allclose(rewards, [-0.5] * 5 + [-7.5])
    assert info["day"] == 10 + RULES.episode_days - 1
    with pytest.raises(MarketDataError, match="reset"):
        env.step(NOTHING)


def test_credit_at_exit_moves_rewards_in_time_and_keeps_their_sum():
    history = History.of(synthetic(400, 3, seed=1), RULES)
    total = {}
    for credit in ("entry", "exit"):
        env = MarketEnv(history, replace(RULES, credit=credit))
        env.reset(options={"start": 60})
        rng, rewards, ended = np.random.default_rng(0), [], False
        while not ended:
            action = rng.random((3, 2), np.float32) * np.float32([1, 40]) + np.float32([0, 10])
            _, reward, _, ended, _ = env.step(action)
            rewards.append(reward)
        total[credit] = rewards
    assert sum(total["entry"]) == pytest.approx(sum(total["exit"]), abs=1e-3)
    assert total["entry"] != total["exit"]


@pytest.mark.parametrize(("credit", "slippage"), [("entry", 0.0), ("exit", 0.5)])
def test_the_jax_twin_gives_the_same_numbers_step_by_step(credit, slippage):
    rules = Rules(
        context=30, trading_days=40, target_low=2.0, target_high=20.0, credit=credit, delisted_after=3,
        slippage=slippage,
    )  # fmt: skip
    history = History.of(synthetic(700, 12, seed=3), rules)
    env, prices = MarketEnv(history, rules), functional.Prices.of(history)
    step = jax.jit(lambda state, action: functional.step(prices, rules, state, action))
    position = jax.jit(lambda state: functional.position(prices, rules, state))
    window = jax.jit(lambda day: functional.window(jax.numpy.asarray(history.rows), rules, day))
    rng, reasons, steps = np.random.default_rng(0), Counter(), 0
    for start in rng.choice(history.splits.starts("train", rules), 8).tolist():
        obs, _ = env.reset(options={"start": start})
        state, ended = functional.reset(prices, rules, start), False
        while not ended:
            np.testing.assert_array_equal(window(state.day), obs["window"])
            np.testing.assert_allclose(position(state), obs["position"], atol=1e-6)
            action = rng.random((12, 2), np.float32)
            action[:, 0] *= rng.choice([1.0, 0.5])  # on some days nothing passes the threshold
            action[:, 1] = 22 * action[:, 1]  # also below and above what is allowed
            obs, reward, _, ended, info = env.step(action)
            state, result = step(state, action)
            assert float(result.reward) == pytest.approx(reward, rel=1e-5, abs=2e-5)
            assert (int(state.day), bool(result.truncated)) == (info["day"], ended)
            assert (int(result.instrument) >= 0) == ("trade" in info)
            if "trade" in info:
                trade = info["trade"]
                assert (int(result.instrument), int(result.exit_day)) == (trade.instrument, trade.exit_day)
                assert REASONS[int(result.reason)] == trade.reason
                assert float(result.exit_price) == pytest.approx(trade.exit_price, rel=1e-6)
                reasons[trade.reason] += 1
            steps += 1
    assert steps == 8 * 40
    assert min(reasons["target"], reasons["time"]) > 10


def test_gymnasium_finds_nothing_wrong_with_it():
    rules = Rules(context=5, trading_days=5, settlement_days=2)
    env = MarketEnv(History.of(synthetic(100, 3, seed=0), rules), rules)
    check_env(env, skip_render_check=True)


def test_the_same_seed_starts_on_the_same_day():
    env = MarketEnv(History.of(synthetic(400, 3, seed=0), RULES), RULES)
    days = [env.reset(seed=seed)[1]["day"] for seed in (1, 2, 1)]
    assert days[0] == days[2] != days[1]


def test_recorded_by_reference_or_by_value_the_replay_holds_the_same_windows():
    history = History.of(synthetic(200, 3, seed=0), RULES)
    env = MarketEnv(history, RULES)
    spec = lp.Spec.from_spaces(env.observation_space, env.action_space)
    by_value, by_reference = lp.Replay(spec, 50), lp.Replay(spec, 50)
    recorder = Recorder(env, by_value)
    obs, info = recorder.reset(options={"start": 20})
    ended, rng = False, np.random.default_rng(0)
    while not ended:
        action = rng.random((3, 2), np.float32) * np.float32([1, 40]) + np.float32([0, 10])
        day, before = info["day"], obs
        obs, reward, _, ended, info = recorder.step(action)
        by_reference.record(
            obs={"window": env.window_ref(day), "position": before["position"]},
            action=action,
            reward=reward,
            next_obs={"window": env.window_ref(info["day"]), "position": obs["position"]},
            terminated=False,
            truncated=ended,
        )
    one, other = by_value.recent(6), by_reference.recent(6)
    for name in ("window", "position"):
        np.testing.assert_array_equal(one.obs[name], other.obs[name])
        np.testing.assert_array_equal(one.next_obs[name], other.next_obs[name])


# --- time ------------------------------------------------------------------------------------------


def test_nothing_of_validation_or_holdout_reaches_the_rows_of_training():
    rules = Rules(context=20, trading_days=20, settlement_days=5)
    panel = synthetic(400, 5, seed=0)
    history = History.of(panel, rules)
    stop = history.splits.train.stop
    changed = {
        name: np.concatenate([getattr(panel, name)[:stop], 3 * getattr(panel, name)[stop:]])
        for name in ("open", "high", "low", "close")
    }
    other = History.of(Panel(panel.dates, panel.symbols, **changed), rules)
    np.testing.assert_array_equal(history.rows[:stop], other.rows[:stop])
    assert not np.array_equal(history.rows[stop:], other.rows[stop:])
    np.testing.assert_array_equal(summaries(history.rows, 20)[:stop], summaries(other.rows, 20)[:stop])


def test_episodes_of_each_part_end_within_it_and_the_parts_do_not_overlap():
    rules = Rules(context=20, trading_days=20, settlement_days=5)
    splits = History.of(synthetic(400, 3, seed=0), rules).splits
    assert splits.train.stop == splits.validation.start
    assert splits.validation.stop == splits.holdout.start
    assert splits.holdout.stop == 400
    for part in ("train", "validation", "holdout"):
        starts = splits.starts(part, rules)
        assert starts[0] == splits[part].start
        assert starts[-1] + rules.episode_days == splits[part].stop
        slices = splits.slices(part, rules, 3)
        assert slices == sorted(slices)
        assert set(slices) <= set(starts)
    env = MarketEnv(History.of(synthetic(400, 3, seed=0), rules), rules)
    with pytest.raises(MarketDataError, match="may start on days"):
        env.reset(options={"start": splits.validation.start - 1})


def test_too_few_days_are_refused_with_the_number_that_would_do():
    with pytest.raises(MarketDataError, match=r"has 900 days.*504.*need about"):
        History.of(synthetic(900, 3), Rules())


def test_an_instrument_that_never_traded_is_refused_by_name():
    prices = flat()
    for name in prices:
        prices[name][:, 1] = np.nan
    with pytest.raises(MarketDataError, match="B never traded"):
        market(prices)


def test_rows_have_mean_zero_and_variance_one_over_the_training_days():
    rng = np.random.default_rng(0)
    raw = rng.normal(3, 2, (300, 4, 9))
    raw[:100, 2] = np.nan  # listed late: 50 training days are too few for statistics of its own
    rows = normalise(raw, 150)
    np.testing.assert_allclose(rows[:150, 0].mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(rows[:150, 0].std(axis=0), 1, atol=1e-4)
    assert (rows[:100, 2] == 0).all()
    assert np.abs(rows[150:, 2].mean()) < 0.3  # by the statistics of all


def test_relative_features_have_no_unit_of_price():
    table = np.full((2, 1, 9), 7.0, np.float32)
    table[0, 0, :4], table[1, 0, :4] = (100, 100, 100, 100), (102, 110, 120, 99)
    table[:, 0, 4:7] = 70, 1.1, 2.2
    answer = relative(table)[1, 0]
    logs = [np.log(102 / 110), np.log(110 / 100), np.log(120 / 110), np.log(99 / 110)]
    np.testing.assert_allclose(answer, [*(100 * x for x in logs), 20, 1, 2, 7, 7], rtol=1e-6)
    np.testing.assert_allclose(
        relative(table * np.float32([5, 5, 5, 5, 1, 5, 5, 1, 1]))[1, 0], answer, rtol=1e-5
    )


def test_summaries_are_those_of_the_window():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(90, 3, 2)).astype(np.float32)
    context = 30
    answer = summaries(rows, context)
    assert spans(context) == (1, 5, 21, 30)
    for day in (29, 57, 89):
        window = rows[day + 1 - context : day + 1].astype(np.float64)
        by_hand = [window[-span:].sum(axis=0) / np.sqrt(span) for span in spans(context)]
        by_hand.append(window.std(axis=0))
        np.testing.assert_allclose(answer[day], np.concatenate(by_hand, axis=-1), atol=1e-5)
    assert (answer[:29] == 0).all()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"context": 0}, "context"), ({"target_low": -1.0}, "sale targets"), ({"slippage": 120.0}, "percent")],
)
def test_rules_that_cannot_be_are_refused(wrong, says):
    with pytest.raises(MarketDataError, match=says):
        Rules(**wrong)


def test_an_action_with_nan_is_refused():
    env = market(flat())
    with pytest.raises(MarketDataError, match="NaN"):
        env.step(np.full((3, 2), np.nan, np.float32))
