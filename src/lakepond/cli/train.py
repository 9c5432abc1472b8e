"""`lakepond train erl`: train a population on a market."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import at_least, optional
from lakepond.cli.settings import options_of
from lakepond.cli.training import GpuShare, Ray, TrainCommand, Workers, after_interrupt, check_free, next_run
from lakepond.envs.market_rules import Rules
from lakepond.trainers.erl import PRESETS, Config

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = {
    "": "generations seed panel days instruments capacity gradient_steps batch_size min_free push_to",
    "market": "signal market_seed validation holdout",
    "population": "elites children mutants tournament blend_low blend_high mutation_rate mutation_std "
    "mutation_std_max patience inject_every",
    "episode": "episodes noise fitness_episodes validation_slices",
    "learner": "learn_from critics gamma tau actor_rate critic_rate reward_scale width dtype together",
    "saving": "keep_checkpoints keep_every warn_free at_floor push_every",
    "rules": " ".join(Rules.__dataclass_fields__),
}
"""the settings in `--help`, by heading; those without one are changed most often"""

ErlOptions: Any = options_of(Config, PRESETS, HEADINGS)
NOTHING_GIVEN = ErlOptions()


@dataclass(frozen=True)
class TrainErl(TrainCommand):
    """Evolve and train a population of agents on a market; a run can be resumed at any time.

    Example: lakepond train erl --preset demo

    Example: lakepond train erl --preset eigen2 --out runs/eigen2 --seed 1

    Example: lakepond train erl --resume --out runs/eigen2

    Example: lakepond train erl --preset eigen2 --ray auto --workers 8 --cloud gs://bucket/eigen2
    """

    trainer: ClassVar[str] = "erl"
    preset: Literal["demo", "eigen2", "gpu"] = "demo"
    """demo: about a minute; eigen2: 16 agents, windows of 504 days x 108 instruments; gpu: larger networks"""
    out: Annotated[Path | None, optional("PATH", "the next runs/erl-<preset>-<n>")] = None
    """folder of the run; a run in it is continued from its newest intact checkpoint"""
    ray: Ray = None
    """play the population on workers of a Ray cluster: started on this machine, the one here, or that one"""
    workers: Workers = 2
    """Ray workers; the result does not depend on their number"""
    gpus_per_worker: GpuShare = 0.0
    """share of a GPU that each Ray worker gets; without one it uses its CPU"""
    cloud: Annotated[str | None, optional("URL", "none")] = None
    """push the run there after every generation; with --resume, fetch it from there if --out is empty"""
    evaluate: Literal["validation", "nothing"] = "validation"
    """days on which the champion is compared with buy-and-hold and random agents at the end"""
    settings: Annotated[ErlOptions, arg(name="")] = NOTHING_GIVEN

    def run(self) -> None:
        from lakepond.trainers import erl, programs

        arguments, folder = self.arguments(), self.folder
        at_least(1, workers=self.workers)
        at_least(0, gpus_per_worker=self.gpus_per_worker)
        programs.prepare_jax()
        if self.resumes and self.out is not None:
            _fetch(folder, self.cloud)
        config = self.configured(self.cloud)
        erl.check(config)  # before it is said that training starts
        required = self.cloud is not None
        option = "--cloud" if required else "--push-to"
        check_free(config.push_to, folder, option, start_over=self.start_over, required=required)
        if not self.json:
            prices = f" with the prices of {config.panel}" if config.panel is not None else ""
            words.talk(f"Training in {folder}{prices}; compiling takes a while in the first generation.")
        width = words.console().width

        def show(metrics: dict[str, Any]) -> None:
            if not self.json:
                words.talk(_line(metrics, config.generations, width))

        began = time.perf_counter()
        last = erl.train(
            config,
            folder,
            **arguments,
            ray=self.ray,
            workers=self.workers,
            gpus_per_worker=self.gpus_per_worker,
            on_generation=show,
        )
        seconds = time.perf_counter() - began
        _print_result(folder, last, seconds, self.evaluate, as_json=self.json)

    def interrupted(self) -> str:
        return after_interrupt(self.folder, f": lakepond train erl --resume --out {self.folder}")

    @cached_property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.out or next_run(f"erl-{self.preset}")


def _fetch(folder: Path, url: str | None) -> None:
    """Fetch the run from the bucket, unless it is here; killed meanwhile, it is fetched again."""
    if url is None or (folder / "config.json").exists():
        return
    from lakepond.cloud.place import Cloud
    from lakepond.lake.files import sync_folder
    from lakepond.runs.copies import pull_run

    words.talk(f"Fetching {url} to {folder}.")
    new = folder.absolute().with_name(f"{folder.name}.fetching")
    shutil.rmtree(new, ignore_errors=True)
    pull_run(new, Cloud.of(url))
    with suppress(FileNotFoundError):
        folder.rmdir()  # an empty one
    new.rename(folder)
    sync_folder(new.parent)


def _line(metrics: dict[str, Any], generations: int, width: int) -> str:
    """One generation as a line; where that does not fit `width` columns, without mean, rows and RAM."""
    start = f"generation {metrics['generation']:>3}/{generations}  best {metrics['fitness_best']:6.1f}"
    validation = f"validation {metrics['validation_best']:6.1f}"
    lake = f"lake {formats.size(metrics['lake_bytes'])}"
    left = f"{formats.duration(metrics['seconds_left'])} left"
    mean = f"mean {metrics['fitness_mean']:6.1f}"
    rows = formats.counted(metrics["distinct_rows"], "row")
    line = "  ".join((start, mean, validation, rows, lake, f"RAM {formats.size(metrics['rss_bytes'])}", left))
    return line if len(line) <= width else "  ".join((start, validation, lake, left))


def _print_result(folder: Path, last: dict[str, Any], seconds: float, part: str, *, as_json: bool) -> None:
    """Print memory, disk and time of the run, and the champion with its baselines."""
    from lakepond.cli.evaluate import evaluated
    from lakepond.lake.format import commits
    from lakepond.lake.read.lake import Lake
    from lakepond.report.page import write_report

    with Lake.open(folder / "lake") as lake:
        stats = lake.stats()
    result: dict[str, Any] = {
        "folder": str(folder),
        "steps": last["steps"],
        "seconds": seconds,
        "blocked_on_saving_seconds": last["held_seconds_total"],
        "training_seconds": last["train_seconds_total"],
        "bytes_plain": last["bytes_plain"],
        "bytes_held": last["bytes_held"],
        "bytes_on_disk": stats.bytes_on_disk,
        "commits": len(commits.numbers(folder / "lake" / "commits")),
    }
    if part != "nothing":
        result["evaluation"] = evaluated(folder, part)
        result["evaluation_folder"] = str(folder / "evaluation" / part)
    result["report"] = str(write_report([folder], folder / "report.html")[0])
    if as_json:
        words.print_json(result)
        return
    show = words.console()
    for each in summary(result):
        show.print(each)


def summary(result: dict[str, Any]) -> Iterator[RenderableType]:
    """The result of a run for people: the facts and the table of its evaluation."""
    from lakepond.cli.evaluate import FILES, tables

    plain, held, stored = (formats.size(result[f"bytes_{what}"]) for what in ("plain", "held", "on_disk"))
    blocked = result["blocked_on_saving_seconds"]
    share = 100 * blocked / max(result["training_seconds"], 1e-9)
    yield words.facts(
        [
            ("replay", f"{formats.number(result['steps'])} steps, {plain} uncompressed"),
            ("in memory", held),
            ("on disk", f"{stored} in the lake, {result['commits']:,} commits"),
            ("blocked on saving", f"{formats.duration(blocked)}, {share:.2f} % of the time"),
        ]
    )
    files = []
    if "evaluation" in result:
        yield from tables(result["evaluation"])
        files = [("evaluation", f"{result['evaluation_folder']}: {FILES}")]
    yield words.facts([*files, ("run", result["folder"]), ("report", result["report"])])
