"""`lakepond evaluate`: the champion of a market run on days it was not trained on."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from lakepond.cli import words
from lakepond.cli.flag import Flag
from lakepond.cli.limits import at_least

if TYPE_CHECKING:
    from rich.console import RenderableType

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
    """holdout: days that training never used; validation: days that selected the champion"""
    checkpoint: Annotated[
        int | None, arg(metavar="GENERATION", help_behavior_hint="(default: the newest)")
    ] = None
    """checkpoint whose champion is evaluated"""
    random_agents: int = 100
    """number of random agents to compare with"""
    json: Flag = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Evaluate, write the files, print the table."""
        at_least(1, random_agents=self.random_agents)
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
    """Evaluate, and write the figures and lists into the run's folder."""
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


def table(found: Evaluation) -> RenderableType:
    """The champion and the baselines side by side."""
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
