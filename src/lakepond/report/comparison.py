"""A comparison as a page: tables with intervals, learning curves with the resets marked, recovery.

Reads the `result.json` of every finished run. What was written by hand above the marker of a page stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import RunCorrupt, RunNotFound
from lakepond.report.statistics import chance_of_improvement, interval, iqm
from lakepond.runs.metrics import is_number
from lakepond.types import Array
from lakepond.untrusted import blaming, read_json

MARKER = "<!-- all below is written by `lakepond compare --only-report` -->"
BASELINES = ("single", "single-epochs")
"""what the others are compared with: the first of these that has runs, or else the first arm"""
LEARNED = 1.0
"""a game whose best arm scores less than this has not been learned by any"""
COLOURS = {  # of the arms, in the order in which they are shown
    "single": "#1f3b5c",
    "single-lake": "#00a6a6",
    "single-newest": "#6a994e",
    "single-rewarded": "#e07be0",
    "mixture": "#d1495b",
    "mixture-restart": "#edae49",
    "mixture-keep": "#a05195",
    "mixture-last": "#7b1e3a",
    "mixture-acts": "#ff7f51",
    "live": "#2e933c",
    "apart": "#8d99ae",
    "clone-best": "#c9ada7",
    "single-resets": "#4ea5d9",
    "single-epochs-4": "#b08968",
    "single-epochs": "#7a5230",
}

Results = dict[str, dict[str, dict[int, dict[str, Any]]]]
"""by arm, game and seed"""


def read(folder: Path) -> Results:
    """All finished runs."""
    found: Results = {}
    for file in sorted(folder.glob("*/*/*/result.json")):
        with blaming(file, RunCorrupt, "delete it, and `lakepond compare` makes that run again"):
            result = _checked(read_json(file))
        found.setdefault(result["arm"], {}).setdefault(result["game"], {})[result["seed"]] = result
    if not found:
        raise RunNotFound(f"{folder} holds no finished run of a comparison; `lakepond compare` makes them.")
    return {arm: found[arm] for arm in [*(arm for arm in COLOURS if arm in found), *found]}


def _checked(result: dict[str, Any]) -> dict[str, Any]:
    """The result of one run; ValueError, KeyError or TypeError unless it has all that is drawn."""
    numbers = [result.get("gradient_steps", 0), *(result[name] for name in ("score", "frames", "samples"))]
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


def write(folder: Path, page: Path) -> dict[str, Any]:
    """Write the page and its pictures; returns the figures."""
    results = read(folder)
    summary = figures(results)
    page.parent.mkdir(parents=True, exist_ok=True)
    pictures = page.parent / page.stem
    pictures.mkdir(exist_ok=True)
    draw_curves(results, pictures / "curves.png")
    draw_scores(summary, pictures / "scores.png")
    recovered = draw_recovery(results, pictures / "recovery.png")
    above = page.read_text().partition(MARKER)[0] if page.exists() else "# One agent or the mixture\n\n"
    page.write_text(above + MARKER + "\n\n" + _body(folder, results, summary, pictures.name, recovered))
    return summary


def figures(results: Results) -> dict[str, Any]:
    """Per arm: scores over the best arm's mean on each game, summed up; frames and samples of a run.

    A game on which no arm has learned anything yet says nothing, and is left out of what is summed up.
    """
    baseline = next((arm for arm in BASELINES if arm in results), next(iter(results)))
    best: dict[str, float] = {}
    for games in results.values():
        for game, seeds in games.items():
            best[game] = max(best.get(game, 0.0), float(np.mean([run["score"] for run in seeds.values()])))
    learned = {game for game, score in best.items() if score >= LEARNED}
    arms: dict[str, Any] = {}
    for arm, games in results.items():
        runs = _runs(games)
        common = [game for game in results[baseline] if game in games]
        shared = [game for game in common if game in learned]
        ours, theirs = _paired(results, arm, baseline, shared)
        fractions = ours / [best[game] for game in shared]
        arms[arm] = {
            "runs": len(runs),
            "frames": float(np.mean([run["frames"] for run in runs])),
            "samples": float(np.mean([run["samples"] for run in runs])),
            "gradient_steps": float(np.mean([run.get("gradient_steps", np.nan) for run in runs])),
            "games": {game: sorted(run["score"] for run in seeds.values()) for game, seeds in games.items()},
            "differences": {game: _difference(results, arm, baseline, game) for game in common},
            "mean": _estimate(fractions, figure=np.mean),
            "iqm": _estimate(fractions, figure=iqm),
            "beats": _estimate(ours, theirs, figure=chance_of_improvement),
        }
    return {"arms": arms, "baseline": baseline, "left_out": sorted(best.keys() - learned)}


def _difference(results: Results, arm: str, baseline: str, game: str) -> list[float]:
    """Mean score of an arm on a game minus that of the baseline, of the seeds that both have."""
    ours, theirs = _paired(results, arm, baseline, [game])
    return _estimate(ours - theirs, figure=np.mean)


def _estimate(*scores: Array, figure: Callable[..., float]) -> list[float]:
    """Value, low and high; NaN for the interval of one seed, and for everything of none."""
    if not scores[0].size:
        return [np.nan] * 3
    value, low, high = interval(*scores, figure=figure)
    return [float(value), low, high] if len(scores[0]) > 1 else [float(value), np.nan, np.nan]


def _paired(results: Results, arm: str, baseline: str, games: list[str]) -> tuple[Array, Array]:
    """Scores (seeds, games) of an arm and of the baseline, for the seeds that all games of both have."""
    both = [results[a][game].keys() for game in games for a in (arm, baseline)]
    seeds = sorted(set.intersection(*map(set, both))) if both else []
    scores = [
        [[results[a][game][seed]["score"] for game in games] for seed in seeds] for a in (arm, baseline)
    ]
    ours, theirs = np.reshape(scores, (2, len(seeds), len(games)))
    return ours, theirs


# --- pictures ------------------------------------------------------------------------------------


def draw_curves(results: Results, path: Path) -> None:
    """One panel a game: the mean over seeds of each arm, with the range of the seeds; resets dotted."""
    games = sorted({game for arm in results.values() for game in arm})
    columns = min(2, len(games))
    rows = -(-len(games) // columns)
    figure = _figure(5.5 * columns, 3.4 * rows)
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel, game in zip(panels, games, strict=False):
        resets: set[int] = set()
        for arm, by_game in results.items():
            runs = list(by_game.get(game, {}).values())
            if not runs:
                continue
            frames = runs[0]["curve"][:, 0]
            scores = np.array([np.interp(frames, *run["curve"].T) for run in runs])
            _band(panel, arm, frames / 1e3, scores.mean(0), (scores.min(0), scores.max(0)), arm)
            resets |= {reset["frames"] for run in runs for reset in run["resets"]}
        for at in resets:
            panel.axvline(at / 1e3, color="black", linestyle=":", linewidth=0.7)
        panel.set(title=game, xlabel="thousand environment steps, all agents", ylabel="evaluation")
    for panel in panels[len(games) :]:
        panel.set_visible(False)
    known = [panel.get_legend_handles_labels() for panel in panels]
    by_arm = {arm: line for lines, arms in known for line, arm in zip(lines, arms, strict=True)}
    figure.legend(by_arm.values(), by_arm.keys(), loc="lower center", ncols=len(by_arm), frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    figure.savefig(path, dpi=130)


def draw_scores(summary: dict[str, Any], path: Path) -> None:
    """The interquartile mean of each arm, with its interval."""
    arms = [arm for arm, each in summary["arms"].items() if np.isfinite(each["iqm"][0])][::-1]
    figure = _figure(7, 0.5 * len(arms) + 1.2)
    axis = figure.subplots()
    for i, arm in enumerate(arms):
        value, low, high = summary["arms"][arm]["iqm"]
        if np.isfinite(low):
            axis.barh(i, high - low, left=low, height=0.5, color=COLOURS.get(arm), alpha=0.35)
        axis.plot([value, value], [i - 0.3, i + 0.3], color=COLOURS.get(arm), linewidth=2.5)
    axis.axvline(1.0, color="black", linestyle=":", linewidth=0.8)
    axis.margins(x=0.08)
    axis.set_xlim(left=0)
    axis.set_yticks(range(len(arms)), arms)
    axis.set_xlabel("score over the best arm's mean; IQM and 95 % interval")
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def draw_recovery(results: Results, path: Path) -> dict[str, list[dict[str, Any]]]:
    """Evaluation right after a reset, and then, over that right before it; returns the resets by arm."""
    figure = _figure(7, 3.6)
    axis = figure.subplots()
    found: dict[str, list[dict[str, Any]]] = {}
    for arm, games in results.items():
        lines = []
        for run in _runs(games):
            stops = [reset["frames"] for reset in run["resets"][1:]] + [run["frames"]]
            for reset, stop in zip(run["resets"], stops, strict=False):
                found.setdefault(arm, []).append({**reset, "total": run["frames"]})
                if reset["before"] <= 0:
                    continue
                later = [
                    ((at - reset["frames"]) / run["frames"], score / reset["before"])
                    for at, score in run["curve"]
                    if reset["frames"] < at <= stop
                ]
                lines.append([(0.0, reset["after"] / reset["before"]), *later])
        if lines:
            grid = np.linspace(0, min(line[-1][0] for line in lines), 20)
            values = np.array([np.interp(grid, *np.transpose(line)) for line in lines])
            low, middle, high = np.percentile(values, [25, 50, 75], axis=0)
            _band(axis, arm, 100 * grid, middle, (low, high), f"{arm} ({len(lines)} resets)")
    axis.axhline(1.0, color="black", linestyle=":", linewidth=0.8)
    axis.set(xlabel="steps since the reset, % of all steps", ylabel="evaluation over that before the reset")
    if found:
        axis.legend(frameon=False)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    return found


def _figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _band(axis: Any, arm: str, x: Array, y: Array, band: tuple[Array, Array], label: str) -> None:
    """A curve of an arm, with a shaded range."""
    axis.plot(x, y, color=COLOURS.get(arm), label=label, linewidth=1.6)
    axis.fill_between(x, *band, color=COLOURS.get(arm), alpha=0.1, linewidth=0)


# --- the page ------------------------------------------------------------------------------------


def _body(
    folder: Path, results: Results, summary: dict[str, Any], pictures: str, recovered: dict[str, list[Any]]
) -> str:
    games = sorted({game for arm in results.values() for game in arm})
    arms, baseline, runs = summary["arms"], summary["baseline"], Path("runs") / folder.name
    differences = [
        [arm, *(_interval(each["differences"].get(game, [np.nan])) for game in games)]
        for arm, each in arms.items()
        if arm != baseline
    ]
    scores = [[arm, *(_spread(each["games"].get(game, [])) for game in games)] for arm, each in arms.items()]
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
        ]
        for arm, each in arms.items()
    ]
    lines = [
        f"{sum(each['runs'] for each in arms.values())} runs so far. A run's score is that of the policy it "
        "ends with, the same for all arms.",
        "",
        f"Difference from `{baseline}` on each game: the mean over the seeds that both have, with the 95 %",
        "interval of a bootstrap over these seeds.",
        *_table(["arm", *games], differences),
        "Scores: the mean over seeds, and their range in brackets.",
        *_table(["arm", *games], scores),
        "All games together, as a fraction of the best arm's mean on each game: the plain mean and the",
        "interquartile mean, each with the 95 % interval of a stratified bootstrap, and the chance that one",
        f"run beats one of `{baseline}` on a game at random. The interquartile mean of a few games leaves",
        "out most of the best and of the worst game. Of a run: its environment steps, its gradient samples,",
        "and its gradient steps one after the other, where agents that learn side by side count once.",
        *(
            f"Left out of this, for no arm scores {LEARNED} there yet: {game}."
            for game in summary["left_out"]
        ),
        *_table(
            ["arm", "runs", "mean", "IQM", f"beats `{baseline}`", "steps", "samples", "gradient steps"],
            totals,
        ),
        f"![scores]({pictures}/scores.png)",
        "",
        f"![learning curves]({pictures}/curves.png)",
        "",
        "The range of the seeds is shaded; dotted lines are resets.",
        "",
        *_recovery(recovered),
        f"![recovery]({pictures}/recovery.png)",
        "",
        "## Commands",
        "",
        "```sh",
        f"lakepond compare --folder {runs}        # trains; again: goes on; twice: two cores",
        f"lakepond compare --folder {runs} --only-report --report docs/results/{folder.name}.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _recovery(recovered: dict[str, list[Any]]) -> list[str]:
    heads = ["resets", "at once", "within 4 %", "not before the end", "median", "median, 95 % of the level"]
    rows = []
    for arm, resets in recovered.items():
        share, near = (
            [None if r[name] is None else 100 * r[name] / r["total"] for r in resets]
            for name in ("recovery", "recovery_95")
        )
        counts = [
            sum(s == 0 for s in share),
            sum(s is not None and s <= 4.5 for s in share),
            sum(s is None for s in share),
        ]
        shares = (f"{100 * count / len(resets):.0f} %" for count in counts)
        rows.append([arm, str(len(resets)), *shares, _median(share), _median(near)])
    return [
        "## Recovery after a reset",
        "",
        "Steps until the evaluation is again at least what it was before the reset, in % of all steps;",
        "0: the clones are at once as good. The last column allows 5 % less, for an evaluation is noisy. The",
        "agents of `clone-best` learn nothing at a reset, so what they show is noise: the null of this.",
        *_table(["arm", *heads], rows),
    ]


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table in Markdown, between two empty lines; all columns but the first are right-aligned."""
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return ["", *(f"| {' | '.join(cells)} |" for cells in lines), ""]


def _spread(scores: list[float]) -> str:
    return f"{np.mean(scores):.1f} [{min(scores):.1f}, {max(scores):.1f}]" if scores else ""


def _interval(three: list[float]) -> str:
    if not np.isfinite(three[0]):
        return ""
    return f"{three[0]:.2f} [{three[1]:.2f}, {three[2]:.2f}]" if np.isfinite(three[1]) else f"{three[0]:.2f}"


def _median(values: list[float | None]) -> str:
    found = float(np.median([np.inf if value is None else value for value in values]))
    return f"{found:.0f} %" if np.isfinite(found) else "not reached"
