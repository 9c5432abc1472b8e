"""`python -m benchmarks.market_study`: whether ERL finds anything on a market, and which of its parts does.

    FOLDER/settings.json                     written once: a folder is one study
    FOLDER/prices/<market>.npz               the panel of each real market
    FOLDER/<market>/<arm>/<seed>/            a run of `erl`; resumed if it was stopped
      evaluation/holdout/result.json         written once, when the run has ended; then the run is done
    FOLDER/results.json                      all of it, rewritten after each run

The page is made from the files result.json alone, which `make keep-results` copies to docs/results/erl/runs.

The markets: a synthetic one for each seed with a planted signal (a positive control), the
Philippine Stock Exchange, twenty S&P 500 names, Dutch day-ahead power by hour of delivery. The arms, all but
the last with equal numbers of recorded steps:

    erl              the population and the learner
    no-gradient      evolution alone
    no-population    the learner alone
    untrained        one generation: the best of random networks by validation

The champion of every run is compared with buy-and-hold and with random agents that buy on the same days and
have its exposure, or its sale targets, on the holdout; those of `erl` also at other costs and slippage.
docs/results/erl.md has the design and the answer.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lakepond import untrusted
from lakepond.envs.market import Panel, fetch_power, fetch_pse, fetch_sp500
from lakepond.envs.market.history import split
from lakepond.errors import ConfigError
from lakepond.lake.files import write_bytes
from lakepond.lake.format.sealed import strict
from lakepond.report import statistics
from lakepond.runs.settings import as_json, flat
from lakepond.trainers import erl, evaluate_market, programs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "trainers"))
from tiny_market import TINY

SEEDS = 8
BASE = replace(erl.PRESETS["demo"], keep_checkpoints=1, keep_every=0)
ARMS: dict[str, Callable[[erl.Config], dict[str, Any]]] = {
    "erl": lambda _: {},
    "no-gradient": lambda _: {"gradient_steps": 0},
    "no-population": lambda all_: {"elites": 0, "children": 0, "mutants": 1, "episodes": all_.sizes.total},
    "untrained": lambda _: {"generations": 1},
}
"""changed settings"""
RANDOM = {"random": "exposure", "random_same_targets": "sale targets"}
"""random agents, and what they have of the champion beside its days of entry"""
Runs = dict[str, dict[str, Any]]
"""results by arm and seed"""
Results = dict[str, Runs]
"""by market"""


@dataclass(frozen=True)
class Study:
    """What is run."""

    config: erl.Config = BASE
    markets: tuple[str, ...] = ("synthetic", "pse", "sp500", "power")
    seeds: int = SEEDS
    random_agents: int = 100
    sweep: tuple[tuple[float, float], ...] = evaluate_market.SWEEP


QUICK = Study(
    replace(TINY, generations=2, learn_from=90, keep_checkpoints=1, keep_every=0),
    markets=("synthetic",),
    seeds=1,
    random_agents=5,
    sweep=((1.0, 0.5),),
)


def prices(config: erl.Config, market: str, folder: Path) -> erl.Config:
    """The settings with the prices of a market; a synthetic one differs with the seed."""
    if market == "synthetic":
        return replace(config, market_seed=config.seed)
    file = folder / "prices" / f"{market}.npz"
    if not file.exists():
        fetch: Callable[..., Any] = {"pse": fetch_pse, "sp500": fetch_sp500, "power": fetch_power}[market]
        panel = fetch(folder / "prices" / f"all-of-{market}.npz").panel.last(2500)
        before_validation(panel, config, min(24, panel.shape[1])).save(file)
    return replace(config, panel=file, days=0, instruments=0)


def before_validation(panel: Panel, config: erl.Config, instruments: int) -> Panel:
    """The instruments with the most trading days before validation: no choice by what survived later."""
    stop = split(len(panel.dates), config.rules, config.validation, config.holdout).train.stop
    order = np.argsort(-panel.traded[:stop].sum(axis=0), kind="stable")
    kept = sorted(order[:instruments].tolist())
    columns = (getattr(panel, name)[:, kept] for name in ("open", "high", "low", "close"))
    return Panel(panel.dates, tuple(panel.symbols[i] for i in kept), *columns)


def claim(study: Study, folder: Path) -> None:
    """Write the settings of the study to its folder; `ConfigError` if its results are of others."""
    file, wanted = folder / "settings.json", flat(as_json(study))
    if file.exists():
        there = flat(as_json(Study())) | untrusted.read_json(file)  # a setting that is newer: its default
        for name, value in there.items():
            if value != wanted.get(name):
                raise ConfigError(
                    f"{file} has {name}={value!r}, not {wanted.get(name)!r}; choose another folder."
                )
    elif any(folder.glob("*/*/*/evaluation")):
        raise ConfigError(
            f"{folder} has results of an earlier version, whose random agents differ; choose another folder."
        )
    else:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder, file.name, strict(wanted, indent=1))


def run(study: Study, folder: Path, say: Callable[[str], None] = print) -> Results:
    """Train and evaluate what is not done yet, seed by seed; returns all results."""
    claim(study, folder)
    programs.prepare_jax()
    jobs = itertools.product(range(study.seeds), study.markets, ARMS)
    for seed, market, arm in jobs:
        home = folder / market / arm / str(seed)
        if evaluate_market.recorded(home, "holdout") is not None:
            continue
        began = time.perf_counter()
        config = prices(replace(study.config, seed=seed), market, folder)
        config = replace(config, **ARMS[arm](config))
        erl.train(config, home, resume=(home / "config.json").exists())
        found = evaluate_market.evaluate(
            home, "holdout", random_agents=study.random_agents, sweep=study.sweep if arm == "erl" else ()
        )
        result = evaluate_market.record(found, home)
        (folder / "results.json").write_text(json.dumps(collect(study, folder), indent=1))
        shutil.rmtree(home / "lake")  # its steps are not needed any more
        champion, random = (result[name]["total_return"] for name in ("champion", "random"))
        seconds = time.perf_counter() - began
        say(f"{market} {arm} {seed}: {champion:+.1f} %, random {random:+.1f} %, {seconds:.0f} s")
    return collect(study, folder)


def collect(study: Study, folder: Path) -> Results:
    """The recorded results by market, arm and seed."""
    return {
        market: {
            arm: {
                str(seed): {name: value for name, value in found.items() if name != "random_returns"}
                for seed in range(study.seeds)
                if (found := evaluate_market.recorded(folder / market / arm / str(seed), "holdout"))
            }
            for arm in ARMS
        }
        for market in study.markets
    }


# --- the page ------------------------------------------------------------------------------------------


def gap(runs: Runs, arm: str, other: str) -> list[float]:
    """Total return of an arm's champions less that of another arm's, or of a baseline's, seed by seed."""
    there = runs.get(other)
    return [
        found["champion"]["total_return"]
        - (found[other] if there is None else there[seed]["champion"])["total_return"]
        for seed, found in runs[arm].items()
        if there is None or seed in there
    ]


def mean(values: list[float]) -> str:
    """The mean with its 95 % t interval over seeds, if there are several."""
    if not values:
        return "–"
    found, _ = statistics.t_interval(np.array(values))
    return f"{found.value:+.1f}" + (f" ({found.low:+.1f} to {found.high:+.1f})" if len(values) > 1 else "")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in [heads, ["---"] * len(heads), *rows])


def returns(runs: Runs, arm: str) -> list[float]:
    """Total return of each champion of an arm."""
    return [found["champion"]["total_return"] for found in runs[arm].values()]


def verdict(values: list[float], enough: bool = True) -> str:
    """What the interval of the values says, and the interval. `enough`: it takes more than that for a yes."""
    found, _ = statistics.t_interval(np.array(values))
    said = "yes" if found.low > 0 and enough else "no, worse" if found.high < 0 else "not shown"
    return f"**{said}**: {mean(values)}"


def highest_cost(runs: Runs) -> str:
    """The highest cost without slippage at which `erl` beats random agents and earns something."""
    found = "none"
    for lines in zip(*(found["sweep"] for found in runs["erl"].values()), strict=True):
        less, _ = statistics.t_interval(np.array([line["champion"] - line["random"] for line in lines]))
        if not lines[0]["slippage"] and less.low > 0 and np.mean([line["champion"] for line in lines]) > 0:
            found = f"{lines[0]['cost']:g} %"
    return found


def answers(results: Results) -> str:
    """The questions of the study, answered by the rules that the page fixes."""
    found = [one for runs in results.values() for arm in runs.values() for one in arm.values()]
    dates = sorted(str(one["evaluated"])[:10] for one in found)
    seeds = {seed for runs in results.values() for arm in runs.values() for seed in arm}
    count = f"{len(found)} of {len(results) * len(ARMS) * len(seeds)} runs, {dates[0]} to {dates[-1]}"
    rows = []
    for whom, what in RANDOM.items():
        rows.append([f"earns more than random agents with its trades and its {what}"])
        for runs in results.values():
            beaten = float(np.mean([one[f"champion_beats_{whom}"] for one in runs["erl"].values()]))
            said = verdict(gap(runs, "erl", whom), enough=beaten >= 0.95)
            rows[-1].append(f"{said}; {100 * beaten:.0f} % of them beaten")
    rows.append(["highest cost per side, of 0 to 1 %", *map(highest_cost, results.values())])
    parts = {"learner": "no-gradient", "population": "no-population", "training": "untrained"}
    for part, other in parts.items():
        gaps = [gap(runs, "erl", other) for runs in results.values()]
        rows.append([f"the {part} helps (`erl` less `{other}`)", *map(verdict, gaps)])
    return f"{count}.\n\n{table(['`erl`', *results], rows)}"


def skill(results: Results) -> str:
    """The champions of `erl` beside their baselines."""
    rows = []
    for market, runs in results.items():
        seeds = list(runs["erl"].values())
        row = [f"{market}, {seeds[0]['first_day']} to {seeds[0]['last_day']}", str(len(seeds))]
        row += [mean(returns(runs, "erl")), mean(gap(runs, "erl", "buy_and_hold"))]
        for whom in RANDOM:
            beaten = np.mean([found[f"champion_beats_{whom}"] for found in seeds])
            row += [mean(gap(runs, "erl", whom)), f"{100 * beaten:.0f} %"]
        row.append(f"{np.mean([found['champion']['trades'] for found in seeds]):.0f}")
        for who in ("champion", *RANDOM):
            row.append(f"{np.mean([found[who]['exposure'] for found in seeds]):.0f} %")
        rows.append(row)
    heads = "market and holdout|seeds|champion|less buy and hold|less random|those beaten"
    heads += "|less random, same targets|those beaten|trades|exposure|of random|of random, same targets"
    return table(heads.split("|"), rows)


def parts(results: Results) -> str:
    """The arms side by side."""
    others = list(ARMS)[1:]
    rows = [
        [
            market,
            *(mean(returns(runs, arm)) for arm in ARMS),
            *(mean(gap(runs, "erl", other)) for other in others),
        ]
        for market, runs in results.items()
    ]
    return table(["market", *ARMS, *(f"erl less {other}" for other in others)], rows)


def costs(results: Results) -> str:
    """The champions of `erl` at other costs and slippages."""
    rows = []
    for market, runs in results.items():
        for lines in zip(*(found["sweep"] for found in runs["erl"].values()), strict=True):
            ours, held, random = (
                [line[who] for line in lines] for who in ("champion", "buy_and_hold", "random")
            )
            less = [a - b for a, b in zip(ours, random, strict=True)]
            rule = (f"{lines[0][name]:g} %" for name in ("cost", "slippage"))
            rows.append([market, *rule, mean(ours), f"{np.mean(held):+.1f}", mean(less)])
    return table(["market", "cost", "slippage", "champion", "buy and hold", "champion less random"], rows)


def by_seed(results: Results) -> str:
    """Every run."""
    rows = []
    for market, runs in results.items():
        for seed, found in runs["erl"].items():
            row = [runs[arm][seed]["champion"] if seed in runs[arm] else None for arm in ARMS]
            row += [found["random"], found["buy_and_hold"]]
            cells = ["–" if account is None else f"{account['total_return']:+.1f}" for account in row]
            rows.append([market, seed, *cells, f"{100 * found['champion_beats_random']:.0f} %"])
    return table(["market", "seed", *ARMS, "random", "buy and hold", "random beaten"], rows)


def tables(results: Results) -> str:
    """All results in Markdown; percent of the capital, means over the seeds, 95 % intervals."""
    every = "Each seed: the champions, the mean of the random agents of `erl`, and buy-and-hold."
    return "\n\n".join([skill(results), parts(results), costs(results), every, by_seed(results)])


def marks(part: str) -> tuple[str, str]:
    """The lines of the page between which a part of the results is."""
    return f"<!-- market study: {part} -->", f"<!-- end of {part} -->"


def filled(page: str, results: Results) -> str:
    """The page with these results in the place of those that it has."""
    for part, text in (("answers", answers(results)), ("tables", tables(results))):
        begin, end = marks(part)
        before, rest = page.split(begin)
        _, after = rest.split(end)
        page = f"{before}{begin}\n\n{text}\n\n{end}{after}"
    return page


def main(words: list[str] | None = None) -> None:
    """Run, print the tables, write them to the page."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.market_study", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--folder", type=Path, default=Path("runs/market"), help="of the runs (runs/market)")
    parser.add_argument("--page", type=Path, help="Markdown file whose marked parts are replaced")
    parser.add_argument(
        "--quick", action="store_true", help="a small synthetic market: the results mean nothing"
    )
    asked = parser.parse_args(words)
    results = run(QUICK if asked.quick else Study(), asked.folder, lambda line: print(line, flush=True))
    print(f"{answers(results)}\n\n{tables(results)}")
    if asked.page:
        asked.page.write_text(filled(asked.page.read_text(), results))


if __name__ == "__main__":
    main()
