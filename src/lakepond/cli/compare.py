"""`lakepond compare`: one agent against the mixture, on many games and seeds, and what came out of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import words
from lakepond.cli.settings import options_of, with_options
from lakepond.trainers import compare, programs

Options: Any = options_of(compare.CompareConfig)
NOTHING_GIVEN = Options()


@dataclass(frozen=True)
class Compare:
    """Compare one agent with the mixture and its controls: many runs, resumable, with intervals.

    Start it twice on one folder and two processes share the work; start it again and it goes on.

    Example: lakepond compare --folder runs/mixture --seeds 5

    Example: lakepond compare --folder runs/mixture --only-report --report docs/results/mixture.md
    """

    folder: Path = Path("runs/mixture")
    """of all runs; one that is there is gone on with"""
    preset: Literal["minatar", "debug"] = "minatar"
    """debug, or just --debug: seconds a run, checks for NaN"""
    report: Annotated[Path | None, arg(help_behavior_hint="(default: <folder>/report.md)")] = None
    """page to write, with its pictures beside it"""
    only_report: bool = False
    """train nothing: report what is done"""
    json: bool = False
    """print JSON instead of a table"""
    settings: Annotated[Options, arg(name="")] = NOTHING_GIVEN

    def run(self) -> None:
        """Train what is not done, report what is."""
        from contextlib import nullcontext

        import jax

        from lakepond.report.comparison import write

        programs.prepare_jax()
        config = with_options(compare.PRESETS[self.preset], self.settings)
        if not self.only_report:
            checks = jax.debug_nans(True) if self.preset == "debug" else nullcontext()
            with checks:
                left = compare.run(config, self.folder, tell=words.talk)
            if left:
                words.talk(f"{left} runs are being done by other processes")
        page = self.report or self.folder / "report.md"
        found = write(self.folder, page)
        if self.json:
            words.print_json({**found, "report": str(page)})
            return
        rows = [
            (arm, str(told["runs"]), *(f"{figure:.2f}" for figure in told["iqm"]))
            for arm, told in found["arms"].items()
        ]
        show = words.console()
        show.print(
            words.table("score over the best arm's", ("arm", "runs", "IQM", "at least", "at most"), rows)
        )
        show.print(words.facts([("the report lies in", str(page))]))

    def interrupted(self) -> str:
        """How to go on."""
        return f"What is done is kept: lakepond compare --folder {self.folder} goes on."
