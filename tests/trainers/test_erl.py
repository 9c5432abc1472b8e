"""The ERL trainer on a tiny market: what it records, saves, resumes, refuses and evaluates."""

import contextlib
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jax
import numpy as np
import pytest
import safetensors.numpy
from benchmarks import market_study
from tiny_market import TINY

import lakepond as lp
from faults.training import fingerprint
from lakepond.cli import main
from lakepond.cli.train import TrainErl, _line
from lakepond.cli.train_games import TrainMixture
from lakepond.envs.market import Panel, Rules, functional, synthetic
from lakepond.envs.market.history import History
from lakepond.envs.market_rules import REASONS
from lakepond.errors import ConfigError, MarketDataError, RunCorrupt, RunMismatch
from lakepond.lake.read.lake import Lake
from lakepond.report.view.api import Api
from lakepond.runs import Run
from lakepond.trainers import erl, evaluate_market
from lakepond.trainers.evaluate_market import Positions


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    erl.train(TINY, folder)
    return folder


def history(folder: Path) -> list[dict]:
    return list(Run.open(folder).history())


def test_every_generation_is_logged_once_with_the_steps_it_added(run):
    lines = history(run)
    assert [line["step"] for line in lines] == list(range(1, 26))
    assert [line["recorded"] for line in lines] == [6 * 15 * g for g in range(1, 26)]
    assert [line["gradient_steps"] for line in lines[:3]] == [0, 32, 32]  # from 150 steps on
    assert all(line["held_seconds"] <= line["seconds"] for line in lines)


def test_the_lake_holds_the_true_windows_of_training_days_only(run):
    market = erl.open_market(TINY)
    rows, train = market.history.rows, market.history.splits.train
    with Lake.open(run / "lake") as lake:
        batch = lake.steps(lake.commit.recorded - 180, lake.commit.recorded)
    days = batch.extras["day"]
    assert train.start <= days.min()
    assert batch.extras["next_day"].max() < train.stop
    for k in range(0, 180, 7):
        for observed, day in ((batch.obs, days[k]), (batch.next_obs, batch.extras["next_day"][k])):
            np.testing.assert_array_equal(observed["window"][k], rows[day - 19 : day + 1])
    assert not batch.terminated.any()  # no observation tells the end, so the learner bootstraps there
    assert batch.truncated.sum() == 12
    assert (batch.extras["next_day"] - days)[batch.truncated].tolist() == [5] * 12  # settlement in one step
    assert set(batch.stream.tolist()) == set(range(6))


def test_the_noise_is_a_share_of_the_range_of_coefficients_and_of_sale_targets(capsys, monkeypatch):
    config = replace(TINY, noise=0.05, episodes=8)  # actions in the middle of their ranges: none is clipped
    market = erl.open_market(config)
    agents = jax.tree.map(np.zeros_like, erl.first_generation(config, market.inputs).population)
    seen = erl.explore(config, market, agents, erl.Chance.of(config, market, 1))
    may_buy = seen.position[:, :, :-1, :, 3] * (1 - seen.position[:, :, :-1, :, 0]) > 0
    coefficient, target = (seen.action[..., k][may_buy] for k in (0, 1))
    low, high = config.rules.target_low, config.rules.target_high
    assert (coefficient - 0.5).std() == pytest.approx(0.05, rel=0.1)
    assert (target - (low + high) / 2).std() == pytest.approx(0.05 * (high - low), rel=0.1)
    monkeypatch.setenv("COLUMNS", "100")
    assert main(["train", "erl", "--help"]) == 0
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "noise on actions while recording, as a share of the range of each" in words


def test_prices_of_the_holdout_do_not_reach_training(run, tmp_path):
    panel = synthetic(400, 6, seed=0, signal=TINY.signal)
    start = erl.open_market(TINY).history.splits.holdout.start
    changed = {
        name: np.concatenate([getattr(panel, name)[:start], 2 * getattr(panel, name)[start:]])
        for name in ("open", "high", "low", "close")
    }
    file = Panel(panel.dates, panel.symbols, **changed).save(tmp_path / "changed.npz")
    erl.train(replace(TINY, panel=file, generations=3), tmp_path / "run")
    keys = ("fitness_best", "fitness_mean", "validation", "critic_loss")
    for here, there in zip(history(run), history(tmp_path / "run"), strict=False):
        assert [here.get(key) for key in keys] == [there.get(key) for key in keys]


@pytest.mark.parametrize(
    ("changed", "learns", "evolves"),
    [
        ({"gradient_steps": 0}, False, True),
        ({"elites": 0, "children": 0, "mutants": 1, "episodes": 6}, True, False),
    ],
)
def test_the_learner_and_the_population_can_be_left_out(run, changed, learns, evolves, tmp_path):
    folder = tmp_path / "run"
    erl.train(replace(TINY, generations=3, **changed), folder)
    lines = history(folder)
    assert [line["recorded"] for line in lines] == [90, 180, 270]  # as many steps as with all parts
    assert [line["gradient_steps"] > 0 for line in lines] == [False, learns, learns]
    assert [line.get("validation_learner") is not None for line in lines] == [learns] * 3
    checkpoint = folder / "checkpoints" / "00000003"
    population = safetensors.numpy.load_file(checkpoint / "population.safetensors")
    learner = safetensors.numpy.load_file(checkpoint / "learner.safetensors")
    assert len(population["out.w"]) == (6 if evolves else 1)
    is_learner = [np.array_equal(one, learner["actor.out.w"]) for one in population["out.w"]]
    assert is_learner == ([False] * 6 if evolves else [True])  # nor does an untrained one take a place


def test_a_checkpoint_can_be_read_by_any_safetensors_reader_and_names_a_commit_of_the_lake(run):
    kept = Run.open(run).checkpoints()
    assert kept == [5, 10, 15, 20, 23, 24, 25]
    folder = run / "checkpoints" / "00000025"
    best = safetensors.numpy.load_file(folder / "best.safetensors")
    assert best["in.w"].shape[1] == 8
    population = safetensors.numpy.load_file(folder / "population.safetensors")
    assert population["out.w"].shape == (6, 8, 2)
    state = json.loads((folder / "state.json").read_text())["state"]
    with Lake.open(run / "lake", state["lake_commit"]) as lake:
        assert lake.commit.note == {"generation": 25}
        assert lake.commit.recorded == 25 * 90


def test_the_view_tells_the_trades_of_a_recorded_episode_as_the_market_made_them(run):
    market = erl.open_market(TINY)
    found, late = [], 0
    with contextlib.closing(Api(run / "lake")) as lake_api:
        api = lake_api.of({})
        assert api.spec({})["symbols"] == list(market.history.symbols)
        newest = api.episodes({"limit": "12"})["episodes"]
        for one in newest:
            words = {name: str(one[name]) for name in ("stream", "first", "last")}
            found.append((words, api.episode(words)["trades"]))
    with Lake.open(run / "lake") as lake:
        for words, trades in found:
            batch = lake.steps(int(words["first"]), int(words["last"]) + 1)
            state = functional.reset(market.world.prices, TINY.rules, int(batch.extras["day"][0]))
            expected = []
            for at, action in enumerate(batch.action):
                state, result = functional.step(market.world.prices, TINY.rules, state, action)
                if int(result.instrument) >= 0:
                    expected.append((at, jax.device_get(result)))
            assert [(t["at"], t["column"]) for t in trades] == [(at, int(r.instrument)) for at, r in expected]
            for trade, (at, result) in zip(trades, expected, strict=True):
                last = int(batch.extras["day"][-1])
                seen = int(result.exit_day) <= last
                late += not seen
                assert trade["profit"] == pytest.approx(float(result.profit), abs=1e-4)
                assert trade["symbol"] == market.history.symbols[int(result.instrument)]
                assert trade["date"] == str(market.history.dates[batch.extras["day"][at]])
                reason = REASONS[int(result.reason)]
                if seen:
                    assert trade["exit_date"] == str(market.history.dates[int(result.exit_day)])
                    assert int(batch.extras["day"][trade["exit_at"]]) == int(result.exit_day)
                    assert trade["closed_by"] == reason
                else:
                    assert trade["exit_at"] is None
                    assert trade["exit_until"] == str(market.history.dates[last + 5])
                    assert trade["closed_by"] == ("target" if reason == "target" else "settlement")
    assert sum(len(trades) for _, trades in found) > 20
    assert late > 0


def test_mutation_grows_while_validation_stalls_up_to_its_bound_and_falls_back_after():
    config = replace(TINY, mutation_std=0.1, mutation_std_max=0.2, patience=3)
    counters, seen = erl.Counters(std=0.1), []
    for stalled in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0):
        counters = counters._replace(stalled=stalled)
        counters = counters._replace(std=erl.mutation_std(config, counters))
        seen.append(round(counters.std, 4))
    assert seen == [0.1, 0.1, 0.1, 0.15, 0.15, 0.15, 0.2, 0.2, 0.2, 0.2, 0.1]


def test_memory_does_not_grow_from_generation_3_to_25(run):
    rss = [line["rss_bytes"] for line in history(run)]
    assert rss[24] - rss[2] < 24 << 20


def test_a_run_that_stopped_and_went_on_equals_one_that_did_not(run, tmp_path):
    folder = tmp_path / "parts"
    erl.train(replace(TINY, generations=7), folder)
    erl.train(TINY, folder, resume=True)
    assert fingerprint(folder) == fingerprint(run)


def test_any_kept_checkpoint_can_be_gone_on_from_with_its_buffer(run, tmp_path):
    folder = tmp_path / "again"
    erl.train(replace(TINY, generations=12), folder)
    erl.train(TINY, folder, resume_from=5)  # sets 10, 11 and 12 aside
    assert fingerprint(folder) == fingerprint(run)


def test_a_run_that_has_ended_is_not_changed_by_the_same_command(run):
    before = fingerprint(run)
    assert erl.train(TINY, run)["generation"] == 25
    assert fingerprint(run) == before


def test_a_checkpoint_of_other_settings_is_refused_with_the_difference(run):
    with pytest.raises(RunMismatch, match="width 8 there, 16 here"):
        erl.train(replace(TINY, width=16), run, resume=True)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"mutants": 1}, "mutants must be at least 2"),
        ({"elites": 0}, "elites must be at least 1"),
        ({"elites": 0, "children": 0, "mutants": 1, "gradient_steps": 0}, "learner needs gradient_steps"),
        ({"capacity": 50}, r"records 90 steps.*holds 50"),
        ({"batch_size": 0}, "batch_size"),
        ({"generations": 0}, "generations must be at least 1"),
        ({"instruments": 20_000, "capacity": 10_000_000}, r"needs about .* [GT]B of memory.*B is available"),
    ],
)
def test_settings_that_cannot_be_are_refused_before_anything_is_written(wrong, says, tmp_path):
    with pytest.raises(ConfigError, match=says):
        erl.train(replace(TINY, **wrong), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_panel_too_short_for_the_context_is_refused(tmp_path):
    with pytest.raises(MarketDataError, match="take a longer history"):
        erl.train(replace(TINY, days=90), tmp_path / "run")


def test_the_full_size_fits_in_four_gigabytes():
    config = erl.PRESETS["eigen2"]
    assert config.sizes.total * config.rules.trading_days == 2_000
    assert sum(erl.memory_needed(config, (2500, 108, 9)).values()) < 4e9


# --- evaluation --------------------------------------------------------------------------------------


def test_evaluation_compares_the_champion_and_writes_pictures_and_trades(run, capsys):
    assert main(["evaluate", str(run), "--random-agents", "5", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["part"], result["generation"]) == ("validation", 25)
    assert len(result["random_returns"]) == 5
    home = Path(result["report"])
    trades = (home / "trades.csv").read_text().splitlines()
    assert len(trades) == 1 + result["champion"]["trades"]
    for name in ("equity.png", "profits.png", "equity.csv", "result.json"):
        assert (home / name).exists()
    curve = np.loadtxt(home / "equity.csv", delimiter=",", skiprows=1, usecols=1)
    assert 100 * (curve[-1] - 1) == pytest.approx(result["champion"]["total_return"])
    days = erl.open_market(TINY).history.splits.validation
    assert len(curve) == len(days)


def test_the_holdout_is_evaluated_once_and_recorded_in_the_run(run, capsys):
    result = run / "evaluation" / "holdout" / "result.json"
    assert not result.exists()  # nothing else has looked at it
    words = ["evaluate", str(run), "--holdout", "--random-agents"]
    assert main([*words, "5", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["part"], first["version"], first["recorded_before"]) == ("holdout", lp.__version__, False)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(first["evaluated"])) < timedelta(hours=1)
    days = erl.open_market(TINY).history
    assert first["first_day"] == str(days.dates[days.splits.holdout.start])
    written = result.read_bytes()
    assert main([*words, "7", "--checkpoint", "5", "--json"]) == 0  # whatever is asked for
    again = json.loads(capsys.readouterr().out)
    assert again == first | {"recorded_before": True}
    assert result.read_bytes() == written
    assert main([*words, "7"]) == 0
    printed = capsys.readouterr()
    assert f"recorded on {first['evaluated']} by lakepond {lp.__version__}" in " ".join(printed.err.split())
    assert f"{first['champion']['total_return']:+.1f} %" in printed.out


@pytest.mark.parametrize(
    "content", ["[", "{}", '{"part": "holdout", "first_day": 1, "last_day": 2, "sweep": 3}']
)
def test_a_record_that_cannot_be_read_is_one_sentence(content, tmp_path):
    file = tmp_path / "evaluation" / "holdout" / "result.json"
    file.parent.mkdir(parents=True)
    file.write_text(content)
    with pytest.raises(RunCorrupt, match="move it away to evaluate again"):
        evaluate_market.recorded(tmp_path, "holdout")


def test_a_result_with_numbers_that_are_not_finite_is_strict_json_and_is_read_back(tmp_path, monkeypatch):
    def refused(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    account = evaluate_market.Account(float("nan"), float("-inf"), 0.0, 0, 0.0, 0.0)
    numbers = asdict(account)
    days = {"part": "holdout", "first_day": "2020-01-01", "last_day": "2020-01-02"}
    found = evaluate_market.Evaluation({**days, "buy_and_hold": numbers}, np.array([]), {}, [])
    monkeypatch.setattr(evaluate_market, "_draw", lambda *_: None)
    evaluate_market.record(found, tmp_path)
    file = tmp_path / "evaluation" / "holdout" / "result.json"
    stored = json.loads(file.read_text(), parse_constant=refused)
    assert stored["buy_and_hold"]["total_return"] == "NaN"
    again = evaluate_market.recorded(tmp_path, "holdout")
    assert again is not None
    np.testing.assert_equal(again["buy_and_hold"], numbers)


def test_random_agents_have_the_trades_and_the_exposure_of_the_champion(run):
    found = evaluate_market.evaluate(run, random_agents=20, sweep=[(0.1, 0.0), (2.0, 0.0), (0.1, 1.0)]).result
    assert found["champion"]["trades"] > 10
    for measure in ("trades", "exposure"):
        assert found["random"][measure] == pytest.approx(found["champion"][measure], rel=1e-12)
    for measure, off in (("trades", 0.1), ("exposure", 0.25)):  # on some days nothing can be bought
        assert found["random_same_targets"][measure] == pytest.approx(found["champion"][measure], rel=off)
    assert len(set(found["random_returns"])) == 20
    as_is, dear, slipping = found["sweep"]
    assert as_is["champion"] == pytest.approx(found["champion"]["total_return"])
    for name in ("champion", "buy_and_hold", "random"):
        assert max(dear[name], slipping[name]) < as_is[name]
    market = erl.open_market(TINY)
    rules = replace(TINY.rules, trading_days=40)
    plans = np.zeros((3, 40), np.float32)
    plans[:, [3, 4, 30]] = 10.0, 20.0, 30.0
    start = market.history.splits.validation.start
    seen = evaluate_market.random_play(jax.random.key(1), plans, start, market.world, rules)
    bought = np.asarray(seen.instrument) >= 0
    assert [np.flatnonzero(one).tolist() for one in bought] == [[3, 4, 30]] * 3
    np.testing.assert_array_equal(np.asarray(seen.target)[bought].reshape(3, 3), [[10.0, 20.0, 30.0]] * 3)


def account_of(
    closes: list[float], trades: list[tuple[int, int, float]]
) -> tuple[np.ndarray, evaluate_market.Account]:
    """One instrument; trades as (entry, exit, profit in percent)."""
    rules = Rules(context=2, trading_days=1, settlement_days=1, max_holding=2, cost=0.0)
    price = np.array(closes)[:, None]
    dates = np.datetime64("2020-01-01") + np.arange(len(closes))
    known = History.of(Panel(dates, ("A",), price, price, price, price), rules)
    entry, left, profit = np.array(trades).T
    positions = Positions(entry.astype(int), left.astype(int), np.zeros(len(trades), int), profit)
    return evaluate_market.keep_account(known, rules, range(len(closes)), positions)


def test_an_account_by_hand():
    closes = [100.0] * 12
    closes[3], closes[4] = 110.0, 90.0
    curve, account = account_of(closes, [(2, 4, -10.0), (5, 6, 20.0)])
    # half the capital a stake: 1, 1, 1, 1.05, 0.95, 0.95, 1.05 ...
    np.testing.assert_allclose(curve[:8], [1, 1, 1, 1.05, 0.95, 0.95, 1.05, 1.05])
    assert account.total_return == pytest.approx(5.0)
    assert account.max_drawdown == pytest.approx(100 * (1 - 0.95 / 1.05))
    assert (account.trades, account.win_rate) == (2, 50.0)
    assert account.exposure == pytest.approx(100 * (2 * 0.5 + 1 * 0.5) / 12)
    change = np.diff(curve) / curve[:-1]
    assert account.sharpe == pytest.approx(change.mean() / change.std() * np.sqrt(252))


def test_buy_and_hold_by_hand():
    rules = Rules(
        context=2, trading_days=1, settlement_days=1, cost=1.0, delisted_after=2, delisting_loss=50.0
    )
    price = np.full((12, 3), 100.0)
    price[-1, 0] = 120.0
    price[5:, 1] = np.nan  # delisted: half of it is lost
    price[:4, 2] = np.nan  # not there on the first day: not bought
    dates = np.datetime64("2020-01-01") + np.arange(12)
    known = History.of(Panel(dates, ("A", "B", "C"), price, price, price, price), rules)
    curve, account = evaluate_market.buy_and_hold(known, rules, range(12))
    assert curve[-1] == pytest.approx(0.99 / 1.01 * (1.2 + 0.5) / 2)
    assert account.trades == 2


# --- command line ------------------------------------------------------------------------------------


def test_the_command_resumes_a_run_with_its_own_settings_and_ends_with_a_table(run, capsys):
    assert main(["train", "erl", "--out", str(run), "--resume"]) == 0
    out = capsys.readouterr().out
    for text in ("uncompressed", "in memory", "on disk", "blocked on saving"):
        assert text in out
    for text in ("champion", "buy and hold", "random", "total return", "report"):
        assert text in out


def test_an_interrupt_names_a_run_to_resume_only_if_there_is_one(run, tmp_path):
    assert TrainErl(out=run).interrupted().endswith(f"lakepond train erl --resume --out {run}")
    assert TrainErl(out=tmp_path / "new").interrupted() == (
        f"Nothing was saved in {tmp_path / 'new'} yet; start the run again."
    )


@pytest.mark.parametrize(
    ("command", "name", "resumes"),
    [
        (TrainErl, "erl-demo-2", "lakepond train erl --resume --out runs/erl-demo-2"),
        (
            TrainMixture,
            "mixture-breakout-1",
            "the same command with --out runs/mixture-breakout-1 resumes the run.",
        ),
    ],
)
def test_an_interrupt_without_out_names_the_folder_of_the_run(command, name, resumes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/erl-demo-1").mkdir(parents=True)
    asked = command()
    assert asked.folder == Path("runs") / name
    (asked.folder / "checkpoints").mkdir(parents=True)  # as training does; the folder stays the same
    assert asked.interrupted().endswith(resumes)


def test_the_line_of_a_generation_fits_the_terminal():
    metrics = {
        "generation": 12,
        "fitness_best": 1120.9,
        "fitness_mean": -111.0,
        "validation_best": 75.1,
        "distinct_rows": 11_967,
        "lake_bytes": 3_110_000,
        "rss_bytes": 761_000_000,
        "seconds_left": 11_520.0,
    }
    narrow, wide = (_line(metrics, 25, width) for width in (80, 140))
    assert len(narrow) <= 80
    for text in ("generation  12/25", "best 1120.9", "validation   75.1", "lake 3.11 MB", "3 h 12 min left"):
        assert text in narrow
        assert text in wide
    for text in ("mean -111.0", "11,967 rows", "RAM 761 MB"):
        assert text in wide


def test_a_wrong_setting_on_the_command_line_is_one_sentence(tmp_path, capsys):
    for trainer, setting in (
        ("erl", "mutants"),
        ("single", "env-steps"),
        ("mixture", "agents"),
        ("live", "agents"),
    ):
        assert main(["train", trainer, "--out", str(tmp_path / "run"), f"--{setting}", "-1"]) == 2
        err = capsys.readouterr().err  # and nothing that says that training starts
        assert err.startswith(f"lakepond: {setting.replace('-', '_')} must be at least ")
    assert main(["train", "erl", "--resume"]) == 2
    assert "--resume needs --out" in capsys.readouterr().err


# --- the study of docs/results/erl.md, small ------------------------------------------------------------


def test_the_study_runs_every_arm_once_and_writes_its_page(tmp_path, capsys):
    page = tmp_path / "page.md"
    marked = ["\nformer\n".join(market_study.marks(part)) for part in ("answers", "tables")]
    page.write_text("\n".join(["before", marked[0], "between", marked[1], "after\n"]))
    words = ["--quick", "--folder", str(tmp_path / "study"), "--page", str(page)]
    market_study.main(words)
    printed = capsys.readouterr().out
    assert [line.split(":")[0] for line in printed.splitlines()[:4]] == [
        f"synthetic {arm} 0" for arm in market_study.ARMS
    ]
    found = json.loads((tmp_path / "study" / "results.json").read_text())["synthetic"]
    assert [by_seed["0"]["part"] for by_seed in found.values()] == ["holdout"] * 4
    assert [by_seed["0"]["generation"] for by_seed in found.values()] == [2, 2, 2, 1]
    assert [(one["cost"], one["slippage"]) for one in found["erl"]["0"]["sweep"]] == [(1.0, 0.5)]
    assert found["erl"]["0"]["sweep"][0]["champion"] < found["erl"]["0"]["champion"]["total_return"]
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "former" not in text
    answers, tables = text.split("\nbetween\n")
    assert "4 of 4 runs" in answers
    assert "the population helps" in answers
    assert tables.count("| synthetic | 0 |") == 1
    assert "erl less no-gradient" in text
    market_study.main(words)  # all is done: nothing is trained or evaluated again
    assert "synthetic erl 0" not in capsys.readouterr().out
    assert page.read_text() == text
    for file in list((tmp_path / "study").rglob("*")):  # the page is made from the kept files alone
        if file.is_file() and file.name not in ("settings.json", "result.json"):
            file.unlink()
    market_study.main(words)
    assert page.read_text() == text


def test_a_folder_has_the_results_of_one_study(tmp_path):
    market_study.claim(market_study.QUICK, tmp_path / "one")
    market_study.claim(market_study.QUICK, tmp_path / "one")
    with pytest.raises(ConfigError, match="generations=2, not 12; choose another folder"):
        market_study.claim(market_study.Study(), tmp_path / "one")
    result = tmp_path / "old" / "pse" / "erl" / "0" / "evaluation" / "holdout" / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text("{}")
    with pytest.raises(ConfigError, match="results of an earlier version"):
        market_study.claim(market_study.Study(), tmp_path / "old")


def test_the_study_compares_arms_seed_by_seed():
    def runs(*returns: float) -> dict:
        return {
            str(seed): {"champion": {"total_return": value}, "random": {"total_return": 1.0}}
            for seed, value in enumerate(returns)
        }

    arms = {"erl": runs(3.0, 5.0, 9.0), "no-gradient": runs(1.0, 5.0)}
    assert market_study.gap(arms, "erl", "no-gradient") == [2.0, 0.0]  # the third is not there yet
    assert market_study.gap(arms, "erl", "random") == [2.0, 4.0, 8.0]
    assert market_study.mean([2.0, 2.0]) == "+2.0 (+2.0 to +2.0)"
    assert market_study.verdict([1.0, 2.0, 3.0, 2.0]) == "**yes**: +2.0 (+0.7 to +3.3)"
    assert market_study.verdict([1.0, 2.0, 3.0, 2.0], enough=False).startswith("**not shown**")
    assert market_study.verdict([-1.0, -2.0, -3.0, -2.0]) == "**no, worse**: -2.0 (-3.3 to -0.7)"
    assert market_study.verdict([2.0, -1.0, 3.0, -2.0]).startswith("**not shown**")
    low, high = (float(x) for x in market_study.mean([0.0, 10.0] * 4).split("(")[1].rstrip(")").split(" to "))
    assert 0 < low < 5 < high < 10


def test_the_highest_cost_is_one_at_which_all_champions_together_earn_more_than_nothing_and_than_random():
    def line(cost: float, champion: float, slippage: float = 0.0) -> dict:
        return {"cost": cost, "slippage": slippage, "champion": champion, "random": -9.0 - champion / 100}

    by_cost = [(0.0, 4.0), (0.5, 2.0), (1.0, -1.0), (0.1, 3.0, 2.0)]
    runs = {"erl": {str(seed): {"sweep": [line(*each) for each in by_cost]} for seed in range(3)}}
    assert market_study.highest_cost(runs) == "0.5 %"
    runs["erl"]["3"] = {"sweep": [line(cost, -90.0) for cost, *_ in by_cost]}
    assert market_study.highest_cost(runs) == "none"
