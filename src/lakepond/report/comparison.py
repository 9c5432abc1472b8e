"""A comparison as a page: tables with intervals, learning curves with the resets marked, recovery.

Reads the `result.json` of every finished run. What was written by hand above the marker of a page stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import ConfigError, RunCorrupt, RunNotFound
from lakepond.report import png
from lakepond.report.chart import Chart, Line, mean_line
from lakepond.report.statistics import (
    Figure,
    Interval,
    chance_of_improvement,
    holm,
    interval,
    iqm,
    mean,
    t_interval,
)
from lakepond.runs.metrics import is_number
from lakepond.trainers.compare import ARMS
from lakepond.types import Array
from lakepond.untrusted import blaming, read_json

MARKER = "<!-- all below is written by `lakepond compare --only-report` -->"
BASELINES = ("single-epochs", "single")
"""what the others are compared with: the first of these that has runs, or else the first arm"""
LEARNED = 1.0
"""a game on which the baseline scores less than this has not been learned by it: a fraction means nothing"""
NULL = "clone-best"
"""the arm whose agents learn nothing at a reset: the control of what is recovered after one"""
PRIMARY = ("score", "curve")
"""what arms are compared by on each game: the final score, and the mean of a run's evaluations"""

HOLM = "†"
"""marks a difference that remains after Holm's correction"""

Results = dict[str, dict[str, dict[int, dict[str, Any]]]]
"""by arm, game and seed"""


def write(folder: Path, page: Path, baseline: str | None = None) -> dict[str, Any]:
    """Write the page and its pictures; returns the figures. baseline: arm; None: the first of BASELINES."""
    results = read(folder)
    summary = figures(results, baseline)
    pictures = page.parent / page.stem
    pictures.mkdir(parents=True, exist_ok=True)
    png.save(learning_curves(results), [pictures / "curves.png"])
    draw_scores(summary["arms"], pictures / "scores.png")
    png.save([recovery(results)], [pictures / "recovery.png"])
    above = page.read_text().partition(MARKER)[0] if page.exists() else "# One agent or the mixture\n\n"
    page.write_text(above + MARKER + "\n\n" + _body(folder, results, summary, pictures.name))
    return summary


def read(folder: Path) -> Results:
    """All finished runs."""
    found: Results = {}
    for file in sorted(folder.glob("*/*/*/result.json")):
        with blaming(file, RunCorrupt, "delete it, and `lakepond compare` makes that run again"):
            result = _checked(read_json(file))
        found.setdefault(result["arm"], {}).setdefault(result["game"], {})[result["seed"]] = result
    if not found:
        raise RunNotFound(f"{folder} holds no finished run of a comparison; `lakepond compare` makes them.")
    return {arm: found[arm] for arm in dict.fromkeys([*ARMS, *found]) if arm in found}


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    """The result of one run; ValueError, KeyError or TypeError unless it has all that is drawn."""
    numbers = [result.get("gradient_steps", 0), result.get("seconds", {}).get("cpu", 0)]
    numbers += [result[name] for name in ("score", "frames", "samples")]
    numbers += [number for at, score in result["curve"] for number in (at, score)]
    for reset in result["resets"]:
        numbers += [reset[name] for name in ("frames", "before", "after")]
        numbers += [reset[name] for name in ("recovery", "recovery_95") if reset[name] is not None]
    if not all(map(is_number, numbers)):
        raise ValueError("it has a value that is not a finite number")
    named = isinstance(result["arm"], str) and isinstance(result["game"], str) and type(result["seed"]) is int
    if not named or not result["curve"] or not result["frames"]:
        raise ValueError("it has no arm, game, seed, frames or curve")
    floats = {name: float(result[name]) for name in ("score", "frames", "samples")}
    return result | floats | {"curve": np.array(result["curve"], np.float64)}


def _runs(games: dict[str, dict[int, dict[str, Any]]]) -> list[dict[str, Any]]:
    """The runs of an arm on all games."""
    return [run for seeds in games.values() for run in seeds.values()]


def _games(results: Results) -> list[str]:
    return sorted({game for games in results.values() for game in games})


def figures(results: Results, baseline: str | None = None) -> dict[str, Any]:
    """Per arm: differences from the baseline on each game; scores over the baseline's mean, summed up.

    A game that the baseline has not learned yet is left out of what is summed up.
    """
    baseline = baseline or next((arm for arm in BASELINES if arm in results), next(iter(results)))
    if baseline not in results:
        raise ConfigError(f"the baseline {baseline!r} has no finished run; choose from {', '.join(results)}.")
    usual = {
        game: float(np.mean([run["score"] for run in seeds.values()]))
        for game, seeds in results[baseline].items()
    }
    arms: dict[str, Any] = {}
    for arm, games in results.items():
        runs = _runs(games)
        common = [game for game in usual if game in games]
        shared = [game for game in common if usual[game] >= LEARNED]
        ours, theirs = _paired(results, arm, baseline, shared)
        fractions = ours / [usual[game] for game in shared]
        cpu = [run["seconds"]["cpu"] for run in runs if "cpu" in run.get("seconds", {})]
        arms[arm] = {
            "runs": len(runs),
            "frames": float(np.mean([run["frames"] for run in runs])),
            "samples": float(np.mean([run["samples"] for run in runs])),
            "gradient_steps": float(np.mean([run.get("gradient_steps", np.nan) for run in runs])),
            "cpu_seconds": float(np.mean(cpu)) if cpu else np.nan,
            "games": {game: sorted(run["score"] for run in seeds.values()) for game, seeds in games.items()},
            "mean": _estimate(fractions, figure=mean),
            "iqm": _estimate(fractions, figure=iqm),
            "beats": _estimate(ours, theirs, figure=chance_of_improvement),
        }
    for what in PRIMARY:
        _compare(results, baseline, what, arms)
    return {"arms": arms, "baseline": baseline, "left_out": [g for g in usual if usual[g] < LEARNED]}


def _compare(results: Results, baseline: str, what: str, arms: dict[str, Any]) -> None:
    """Add the differences of `what` to each arm: mean, low, high and whether it is one after Holm's test.

    The test is over all games and arms.
    """
    found: dict[tuple[str, str], tuple[Interval, float]] = {}
    for arm, games in results.items():
        for game in (game for game in results[baseline] if game in games and arm != baseline):
            differences = np.subtract(*_paired(results, arm, baseline, [game], what)).reshape(-1)
            if differences.size:
                found[arm, game] = t_interval(differences)
    kept = dict(zip(found, holm([p for _, p in found.values()]), strict=True))
    for arm in arms:
        arms[arm][f"{what}_differences"] = {
            game: [*found[arm, game][0], kept[arm, game]] for one, game in found if one == arm
        }


def _estimate(*scores: Array, figure: Figure) -> list[float]:
    """Value, low and high; NaN for the interval of one seed, and for everything of none."""
    if not scores[0].size:
        return [np.nan] * 3
    value, low, high = interval(*scores, figure=figure)
    return [value, low, high] if len(scores[0]) > 1 else [value, np.nan, np.nan]


def _paired(
    results: Results, arm: str, baseline: str, games: list[str], what: str = "score"
) -> tuple[Array, Array]:
    """Scores (seeds, games) of an arm and of the baseline, for the seeds that all games of both have.

    what: "curve" for the mean of a run's evaluations instead of its score.
    """
    both = [results[a][game].keys() for game in games for a in (arm, baseline)]
    seeds = sorted(set.intersection(*map(set, both))) if both else []
    scores = [
        [[_value(results[a][game][seed], what) for game in games] for seed in seeds] for a in (arm, baseline)
    ]
    ours, theirs = np.reshape(scores, (2, len(seeds), len(games)))
    return ours, theirs


def _value(run: dict[str, Any], what: str) -> float:
    return float(run["curve"][:, 1].mean() if what == "curve" else run[what])


# --- pictures ------------------------------------------------------------------------------------


def learning_curves(results: Results) -> list[Chart]:
    """One chart a game: the mean over seeds of each arm, with the range of the seeds; resets marked."""
    charts = []
    for game in _games(results):
        seeds = {arm: list(games.get(game, {}).values()) for arm, games in results.items()}
        lines = [
            mean_line(arm, [(run["curve"][:, 0], run["curve"][:, 1]) for run in runs], colour)
            for colour, (arm, runs) in enumerate(seeds.items())
            if runs
        ]
        resets = {reset["frames"] for runs in seeds.values() for run in runs for reset in run["resets"]}
        x_name = "environment steps, all agents"
        charts.append(Chart(game, f"{game}, evaluation", tuple(lines), x_name, marks=tuple(resets)))
    return charts


def draw_scores(arms: dict[str, Any], file: Path) -> None:
    """The interquartile mean of each arm, with its interval."""
    from matplotlib.figure import Figure

    known = {arm: each["iqm"] for arm, each in arms.items() if np.isfinite(each["iqm"][0])}
    value, low, high = np.reshape(list(known.values()), (-1, 3)).T
    figure = Figure(figsize=(png.SIZE[0], 0.3 * len(known) + 1.2), layout="constrained")
    axes = figure.subplots()
    axes.errorbar(value, list(known), xerr=[value - low, high - value], fmt="D", color=png.PALETTE[0])
    axes.axvline(1.0, color=png.MARK, linestyle=":")
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("score over the baseline's mean; IQM and 95 % interval")
    figure.savefig(file, dpi=200)


def recovery(results: Results) -> Chart:
    """Evaluation right after a reset, and then, over that right before it: median and quartiles."""
    lines: list[Line] = []
    for arm, games in results.items():
        curves = [curve for run in _runs(games) for curve in _after_resets(run)]
        if curves:
            grid = np.linspace(0, min(x[-1] for x, _ in curves), 20)
            values = np.array([np.interp(grid, *curve) for curve in curves])
            low, middle, high = np.percentile(values, [25, 50, 75], axis=0).tolist()
            name = f"{arm} ({len(curves)} resets)"
            lines.append(Line(name, grid.tolist(), middle, low, high, colour=len(lines)))
    end = max((one.x[-1] for one in lines), default=1.0)
    lines.append(Line("as before", [0.0, end], [1.0, 1.0], colour=5, thin=True))
    title = "Evaluation over that before the reset"
    return Chart("recovery", title, tuple(lines), "steps since the reset, % of all steps")


def _after_resets(run: dict[str, Any]) -> list[tuple[list[float], list[float]]]:
    """For each reset, the evaluations up to the next one over that before it, by % of the run's steps."""
    found = []
    stops = [*(reset["frames"] for reset in run["resets"]), run["frames"]][1:]
    for reset, stop in zip(run["resets"], stops, strict=True):
        at, score = run["curve"][(reset["frames"] < run["curve"][:, 0]) & (run["curve"][:, 0] <= stop)].T
        if reset["before"] > 0:
            x = [0.0, *(100 * (at - reset["frames"]) / run["frames"])]
            found.append((x, [y / reset["before"] for y in (reset["after"], *score)]))
    return found


# --- the page ------------------------------------------------------------------------------------


def _body(folder: Path, results: Results, summary: dict[str, Any], pictures: str) -> str:
    games, arms, baseline = _games(results), summary["arms"], summary["baseline"]
    scores, curves = (
        [
            [arm, *(_difference(each[f"{what}_differences"].get(game)) for game in games)]
            for arm, each in arms.items()
            if arm != baseline
        ]
        for what in PRIMARY
    )
    tests = sum(not np.isnan(d[1]) for each in arms.values() for d in each["score_differences"].values())
    spreads = [[arm, *(_spread(each["games"].get(game, [])) for game in games)] for arm, each in arms.items()]
    totals = [
        [
            arm,
            str(each["runs"]),
            _interval(each["mean"]),
            _interval(each["iqm"]),
            "" if arm == baseline else _interval(each["beats"]),
            f"{each['frames'] / 1e6:.2f}M",
            f"{each['samples'] / 1e6:.1f}M",
            f"{each['gradient_steps'] / 1e3:.0f}k" if np.isfinite(each["gradient_steps"]) else "",
            f"{each['cpu_seconds']:,.0f}" if np.isfinite(each["cpu_seconds"]) else "",
        ]
        for arm, each in arms.items()
    ]
    heads = ["arm", "runs", "mean", "IQM", f"beats `{baseline}`", "steps", "samples", "gradient steps"]
    heads += ["CPU seconds"]
    left_out = [
        f"Left out of this, for `{baseline}` scores less than {LEARNED} there: {game}.\n"
        for game in summary["left_out"]
    ]
    return f"""\
{sum(each["runs"] for each in arms.values())} runs so far. A run's score is that of the policy it \
ends with, the same for all arms.

Difference of the score from `{baseline}` on each game: the mean over the seeds that both have, with
its 95 % t interval. {HOLM}: it is a difference also after Holm's correction for the {tests} intervals
of the table, at a level of 5 % for all together.
{_table(["arm", *games], scores)}
The same for the mean of a run's evaluations, which is the area under its learning curve.
{_table(["arm", *games], curves)}
Scores: the mean over seeds, and their range in brackets.
{_table(["arm", *games], spreads)}
All games together, as a fraction of the mean of `{baseline}` on each game: the plain mean and the
interquartile mean, each with the 95 % interval of a stratified bootstrap, and the chance that one
run beats one of `{baseline}` on a game at random. The interquartile mean of a few games leaves
out most of the best and of the worst game. Of a run: its environment steps, its gradient samples,
its gradient steps one after the other, where agents that learn side by side count once, and its CPU
seconds, if it ran in one piece.
{"".join(left_out)}{_table(heads, totals)}
![scores]({pictures}/scores.png)

![learning curves]({pictures}/curves.png)

The range of the seeds is shaded; dotted lines are resets.

## Recovery after a reset

Steps until the evaluation is again at least what it was before the reset, in % of all steps;
0: the clones are at once as good. "95 % of the level" allows 5 % less, for an evaluation is noisy.
{_recovery_null(results)}
{_recovery_table(results)}
![recovery]({pictures}/recovery.png)

## Commands

```sh
lakepond compare --folder runs/{folder.name}        # trains or resumes; run two of them to use two cores
lakepond compare --folder runs/{folder.name} --only-report --baseline {baseline} \\
    --report docs/results/{folder.name}.md
```
"""


def _recovery_null(results: Results) -> str:
    if NULL not in results:
        return f"There are no runs of `{NULL}`, so how much of this is noise is not known."
    return (
        f"The agents of `{NULL}` learn nothing at a reset: what they show is noise. One column has the\n"
        f"difference from them in % of resets, over runs of the same game and seed, and its 95 % t interval."
    )


def _less_null(results: Results, arm: str) -> str:
    """The share of resets that are recovered at once, less that of the control, in paired runs."""
    if arm == NULL:
        return ""
    pairs = [
        (run["resets"], results[NULL][game][seed]["resets"])
        for game, seeds in results[arm].items()
        for seed, run in seeds.items()
        if seed in results[NULL].get(game, {})
    ]
    shares = [
        [100 * np.mean([reset["recovery"] == 0 for reset in resets]) for resets in pair]
        for pair in pairs
        if all(pair)
    ]
    return _interval(list(t_interval(np.subtract(*np.transpose(shares)))[0]), 0) if shares else ""


def _recovery_table(results: Results) -> str:
    less_null = [f"at once, less `{NULL}`"] if NULL in results else []
    heads = ["arm", "resets", "at once", *less_null, "by the next evaluation", "not before the end"]
    heads += ["median", "median, 95 % of the level"]
    rows = []
    for arm, games in results.items():
        resets = [(reset, run) for run in _runs(games) for reset in run["resets"]]
        if resets:
            share, near = (_shares(resets, name) for name in ("recovery", "recovery_95"))
            soon = share <= [_until_evaluated(*each) for each in resets]
            cells = [f"{100 * np.mean(of):.0f} %" for of in (share == 0, soon, np.isinf(share))]
            cells[1:1] = [_less_null(results, arm)] if less_null else []
            middles = [float(np.median(each)) for each in (share, near)]
            cells += [f"{middle:.0f} %" if np.isfinite(middle) else "not reached" for middle in middles]
            rows.append([arm, str(len(resets)), *cells])
    return _table(heads, rows)


def _shares(resets: Sequence[tuple[dict[str, Any], dict[str, Any]]], name: str) -> Array:
    """Steps to the recovery from each reset, in % of all steps of its run; infinite if there was none."""
    return np.array(
        [np.inf if each[name] is None else 100 * each[name] / run["frames"] for each, run in resets]
    )


def _until_evaluated(reset: dict[str, Any], run: dict[str, Any]) -> float:
    """Steps from a reset to the next evaluation, in % of all steps of the run."""
    later = (at for at in run["curve"][:, 0] if at > reset["frames"])
    return float(100 * (next(later, reset["frames"]) - reset["frames"]) / run["frames"])


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, after an empty line; all columns but the first are right-aligned."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n" + "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _spread(scores: list[float]) -> str:
    return f"{np.mean(scores):.1f} [{min(scores):.1f}, {max(scores):.1f}]" if scores else ""


def _interval(three: list[float], digits: int = 2) -> str:
    value, low, high = (f"{each:.{digits}f}" for each in three)
    if not np.isfinite(three[0]):
        return ""
    return f"{value} [{low}, {high}]" if np.isfinite(three[1]) else value


def _difference(found: list[Any] | None) -> str:
    return "" if found is None else _interval(found[:3]) + (f" {HOLM}" if found[3] else "")
