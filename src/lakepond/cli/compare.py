"""`lakepond compare`: one agent against the mixture, on many games and seeds."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import words
from lakepond.cli.options import Flag, Json, at_least, optional
from lakepond.cli.settings import options_of, with_options
from lakepond.cli.training import GpuShare, Log, Ray, Workers
from lakepond.trainers.compare import ARMS, PRESETS, CompareConfig

Options: Any = options_of(CompareConfig, PRESETS, {"": " ".join(CompareConfig.__dataclass_fields__)})
NOTHING_GIVEN = Options()


if TYPE_CHECKING:
    from rich.console import RenderableType


@dataclass(frozen=True)
class Compare:
    """Compare one agent with the mixture and its controls: many runs, with confidence intervals.

    Start it twice on one folder and two processes share the work; start it again and it continues.

    Example: lakepond compare --folder runs/mixture --seeds 5

    Example: lakepond compare --folder runs/mixture --only-report --report docs/results/mixture.md

    Example: lakepond compare --folder runs/mixture --ray auto --workers 20 --cloud gs://bucket/mixture
    """

    folder: Path = Path("runs/mixture")
    """folder of all runs; existing runs are resumed"""
    preset: Literal["minatar", "tiny"] = "minatar"
    """minatar: hours; tiny: seconds per run, checks for NaN"""
    report: Annotated[Path | None, optional("PATH", "<folder>/report.md")] = None
    """page to write, with its figures next to it"""
    only_report: Flag = False
    """do not train; report the runs that are finished"""
    baseline: Annotated[str | None, optional("ARM", "single-epochs if it has runs, or else single")] = None
    """arm that the others are compared with in the report"""
    ray: Ray = None
    """do the runs on workers of a Ray cluster: started on this machine, the one here, or that one"""
    workers: Workers = 2
    """Ray workers, each of which does one run at a time on one CPU"""
    gpus_per_worker: GpuShare = 0.0
    """share of a GPU that each Ray worker gets; without one it uses its CPU"""
    cloud: Annotated[str | None, optional("URL", "none")] = None
    """with --ray, keep the runs in a bucket, and in --folder only their results"""
    log: Log = ()
    """also log each run to these; wandb stays offline without an API key"""
    json: Json = False
    settings: Annotated[Options, arg(name="")] = NOTHING_GIVEN

    def run(self) -> None:
        import jax

        from lakepond.errors import ConfigError
        from lakepond.report.comparison import write
        from lakepond.trainers import programs

        at_least(1, workers=self.workers)
        at_least(0, gpus_per_worker=self.gpus_per_worker)
        programs.prepare_jax()
        config = with_options(PRESETS[self.preset], self.settings)
        if self.cloud is not None and self.ray is None and not self.only_report:
            raise ConfigError("--cloud needs --ray: lakepond compare --ray local --cloud URL.")
        if self.baseline not in (None, *ARMS):
            raise ConfigError(f"there is no arm {self.baseline!r}; choose from {', '.join(ARMS)}.")
        if not self.only_report:
            with jax.debug_nans(True) if self.preset == "tiny" else nullcontext():
                left = self._train(config)
            if left:
                words.talk(f"Other processes are training {left} runs.")
        elif self.cloud is not None:
            from lakepond.trainers.compare_workers import fetch_results

            fetch_results(config, self.folder, self.cloud)
        page = self.report or self.folder / "report.md"
        found = write(self.folder, page, self.baseline)
        if self.json:
            words.print_json({**found, "report": str(page)})
            return
        show = words.console()
        show.print(table(found["arms"]))
        show.print(words.facts([("report", str(page))]))

    def _train(self, config: CompareConfig) -> int:
        """Do the runs here or on a cluster; returns how many are being done by others."""
        if self.ray is None:
            from lakepond.trainers import compare

            return compare.run(config, self.folder, loggers=self.log, tell=words.talk)
        from lakepond.trainers import compare_workers

        return compare_workers.run(
            config,
            self.folder,
            self.ray,
            workers=self.workers,
            gpus_per_worker=self.gpus_per_worker,
            cloud=self.cloud,
            loggers=self.log,
            tell=words.talk,
        )

    def interrupted(self) -> str:
        return "Finished runs are kept, the others continue from their checkpoints with the same command."


def table(arms: dict[str, Any]) -> RenderableType:
    """The scores of all arms, as a fraction of the baseline's."""
    rows = [
        (arm, str(found["runs"]), *(f"{figure:.2f}" for figure in (*found["mean"], found["iqm"][0])))
        for arm, found in arms.items()
    ]
    heads = ("arm", "runs", "mean", "95 % from", "to", "IQM")
    return words.NumberTable("Score as a fraction of the baseline's", heads, rows)
