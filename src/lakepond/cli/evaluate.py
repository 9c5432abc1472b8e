"""`lakepond evaluate` and `lakepond play`: the trained agents of a run, on a market and in a game."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import Flag, Json, at_least, between, optional

if TYPE_CHECKING:
    from rich.console import RenderableType

RunFolder = Annotated[Positional[Path], arg(metavar="RUN")]
FILES = "equity.png, profits.png, equity.csv, trades.csv, result.json"
FORMATS = {
    "total_return": "{:+.1f} %",
    "sharpe": "{:.2f}",
    "max_drawdown": "{:.1f} %",
    "trades": "{:,.0f}",
    "win_rate": "{:.0f} %",
    "exposure": "{:.0f} %",
}
ACCOUNTS = {
    "champion": "champion",
    "buy_and_hold": "buy and hold",
    "random": "random",
    "random_same_targets": "random, same targets",
}


@dataclass(frozen=True)
class Evaluate:
    """Compare a market run's champion with buy-and-hold and random agents on days it was not trained on.

    Validation days selected the champion, so its result there is too good. The holdout is evaluated once per
    run, and the result is recorded: choosing between runs or settings by it would make it a validation set.

    Example: lakepond evaluate runs/erl-demo-1 --sweep

    Example: lakepond evaluate runs/erl-demo-1 --holdout --json
    """

    folder: RunFolder
    """folder of the run"""
    holdout: Flag = False
    """the holdout instead of the validation days; if it was evaluated before, show the recorded result"""
    checkpoint: Annotated[int | None, optional("GENERATION", "the newest")] = None
    """checkpoint whose champion is evaluated"""
    random_agents: int = 100
    """number of random agents to compare with"""
    sweep: Flag = False
    """also at costs of 0 to 1 % and slippage of 0.25 and 1 %"""
    json: Json = False

    def run(self) -> None:
        at_least(1, random_agents=self.random_agents)
        from lakepond.trainers import evaluate_market

        part: Any = "holdout" if self.holdout else "validation"
        home = evaluate_market.folder_of(self.folder, part)
        before = evaluate_market.recorded(self.folder, part) if self.holdout else None
        result = before or evaluated(
            self.folder,
            part,
            checkpoint=self.checkpoint,
            random_agents=self.random_agents,
            sweep=evaluate_market.SWEEP if self.sweep else (),
        )
        if self.json:
            words.print_json(result | {"report": str(home), "recorded_before": before is not None})
            return
        show = words.console()
        for each in tables(result):
            show.print(each)
        if before is not None:
            when, version = before.get("evaluated", "an unknown day"), before.get("version", "unknown")
            words.talk(
                f"This is the result recorded on {when} by lakepond {version}, of generation "
                f"{before.get('generation')}; the holdout was not evaluated again."
            )
        show.print(words.facts([("written to", f"{home}: {FILES}")]))


def evaluated(folder: Path, part: Any, **how: Any) -> dict[str, Any]:
    """Evaluate a run as `evaluate_market.evaluate` does, and record it in the run's folder."""
    from lakepond.trainers import evaluate_market, programs

    programs.prepare_jax()
    return evaluate_market.record(evaluate_market.evaluate(folder, part, **how), folder)


def tables(result: dict[str, Any]) -> Iterator[RenderableType]:
    """The champion and the baselines side by side; the same at other costs, if that was evaluated."""
    names = [name for name in ACCOUNTS if name in result]
    rows = [
        (measure.replace("_", " "), *(how.format(result[name][measure]) for name in names))
        for measure, how in FORMATS.items()
    ]
    beaten = [f"{100 * result[key]:.0f} %" if (key := f"champion_beats_{n}") in result else "" for n in names]
    rows.append(("beaten by champion", *beaten))
    title = f"{result['part']} days, {result['first_day']} to {result['last_day']}"
    yield words.NumberTable(title, ("", *(ACCOUNTS[name] for name in names)), rows)
    if sweep := result.get("sweep"):
        heads = ("cost", "slippage", "champion", "buy and hold", "random", "random beaten")
        forms = ("{:g} %", "{:g} %", "{:+.1f} %", "{:+.1f} %", "{:+.1f} %", "{:.0%}")
        swept = [
            tuple(form.format(value) for form, value in zip(forms, each.values(), strict=True))
            for each in sweep
        ]
        yield words.NumberTable("total return by cost and slippage", heads, swept)


@dataclass(frozen=True)
class Play:
    """Play a game with the policy of a checkpoint, and write a video of it.

    Example: lakepond play runs/mixture-breakout-1 --video out.gif
    """

    folder: RunFolder
    """folder of a run of single, mixture or live"""
    video: Annotated[Path | None, optional("PATH", "none")] = None
    """GIF file to write"""
    checkpoint: Annotated[int | None, optional("NUMBER", "the newest")] = None
    """checkpoint whose policy plays"""
    seed: int = 0
    """random seed of the game"""
    epsilon: float = 0.001
    """probability of a random action, 0 to 1"""
    trust_module: Annotated[str | None, optional("MODULE", "none")] = None
    """Python module that may be imported if the run's game is MODULE:ID"""
    json: Json = False

    def run(self) -> None:
        between(0, 1, epsilon=self.epsilon)
        at_least(0, seed=self.seed)
        from lakepond.trainers import programs
        from lakepond.trainers.play import play

        programs.prepare_jax()
        episode = play(
            self.folder,
            checkpoint=self.checkpoint,
            seed=self.seed,
            epsilon=self.epsilon,
            trust_module=self.trust_module,
        )
        result = {
            "game": episode.game,
            "checkpoint": episode.checkpoint,
            "steps": len(episode.observations) - 1,
            "score": episode.score,
            "ended": episode.ended,
            "video": None if self.video is None else str(self.video),
        }
        if self.video is not None:
            from lakepond.report.video import save_gif

            save_gif(episode.observations, self.video)
        rows = [
            (name, formats.number(value) if isinstance(value, float) else str(value))
            for name, value in result.items()
            if value is not None
        ]
        words.print_result(result, words.facts(rows), as_json=self.json)
