"""`lakepond evaluate`: a run's champion on days it was not trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from lakepond.cli import words

if TYPE_CHECKING:
    from rich.table import Table

    from lakepond.trainers.evaluate_market import Evaluation


@dataclass(frozen=True)
class Evaluate:
    """Compare a market run's champion with buy-and-hold and random agents on days it was not trained on.

    Example: lakepond evaluate runs/erl-demo-1

    Example: lakepond evaluate runs/erl-demo-1 --part validation --json
    """

    folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """folder of the run"""
    part: Literal["holdout", "validation"] = "holdout"
    """holdout: days that training never looked at; validation: days that chose the champion"""
    checkpoint: Annotated[int | None, arg(metavar="GENERATION", help_behavior_hint="(default: newest)")] = (
        None
    )
    """whose champion"""
    random_agents: int = 100
    """agents that pick at random, to compare with"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Play, write, tell."""
        found = comparison(self.folder, self.part, self.checkpoint, self.random_agents)
        if self.json:
            words.print_json(compared(found) | {"report": str(self.folder / "evaluation" / self.part)})
            return
        show = words.console()
        show.print(table(found))
        files = "equity.png, profits.png, equity.csv, trades.csv, result.json"
        show.print(words.facts([("written to", f"{self.folder / 'evaluation' / self.part}: {files}")]))


def comparison(
    folder: Path, part: Literal["holdout", "validation"], checkpoint: int | None, random_agents: int
) -> Evaluation:
    """Evaluate, and write the pictures and lists beside the run."""
    from lakepond.trainers import evaluate_market, programs

    programs.prepare_jax()
    found = evaluate_market.evaluate(folder, part, checkpoint=checkpoint, random_agents=random_agents)
    evaluate_market.write(found, folder / "evaluation" / part)
    return found


def compared(found: Evaluation) -> dict[str, Any]:
    """The figures, as JSON has them."""
    told = {
        name: value
        for name, value in vars(found).items()
        if name not in ("curves", "dates", "list_of_trades")
    }
    return {name: asdict(value) if hasattr(value, "sharpe") else value for name, value in told.items()}


def table(found: Evaluation) -> Table:
    """Champion and baselines side by side."""
    accounts = (found.champion, found.buy_and_hold, found.random)
    form = {
        "total_return": "{:+.1f} %",
        "sharpe": "{:.2f}",
        "max_drawdown": "{:.1f} %",
        "trades": "{:,}",
        "win_rate": "{:.0f} %",
        "exposure": "{:.0f} %",
    }
    rows = [
        (name.replace("_", " "), *(how.format(getattr(account, name)) for account in accounts))
        for name, how in form.items()
    ]
    beaten = f"{100 * found.champion_beats_random:.0f} % of {len(found.random_returns)}"
    rows.append(("random agents beaten", beaten, "", ""))
    title = f"{found.part} days, {found.first_day} to {found.last_day}"
    return words.table(title, ("", "champion", "buy and hold", "random"), rows)
