"""`lakepond train`: the trainers."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg, subcommand

from lakepond.cli import words
from lakepond.cli.settings import options_of, with_options
from lakepond.cli.train_games import Live, Mixture, Single
from lakepond.trainers import erl, programs

ErlOptions: Any = options_of(erl.Config)
NOTHING_GIVEN = ErlOptions()
NOWHERE = "none"
"""for --push-to: do not push"""


@dataclass(frozen=True)
class Erl:
    """Evolve and train a population of agents on a market; a run can be killed and resumed at any moment.

    Example: lakepond train erl --preset demo

    Example: lakepond train erl --preset eigen2 --out runs/eigen2 --seed 1

    Example: lakepond train erl --resume --out runs/eigen2
    """

    preset: Literal["demo", "eigen2", "gpu"] = "demo"
    """demo: about a minute; eigen2: (504, 108, 9), 50,000 steps; gpu: that, larger networks and batches"""
    out: Annotated[Path | None, arg(help_behavior_hint="(default: the next runs/erl-<preset>-<n>)")] = None
    """folder of the run"""
    resume: bool = False
    """continue from the newest checkpoint of --out that can be used, with its settings and its replay"""
    resume_from: Annotated[int | None, arg(metavar="GENERATION")] = None
    """continue from that checkpoint of --out instead; later ones are renamed to *.dropped"""
    start_over: bool = False
    """move what --out holds to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """also log to these; wandb stays offline unless a key is there"""
    evaluate: Literal["holdout", "validation", "nothing"] = "holdout"
    """days on which the champion is compared with buy-and-hold and random agents when all is done"""
    json: bool = False
    """print JSON instead of tables"""
    settings: Annotated[ErlOptions, arg(name="")] = NOTHING_GIVEN

    def run(self) -> None:
        """Train, evaluate, tell."""
        from lakepond.errors import ConfigError

        programs.prepare_jax()
        resumes = self.resume or self.resume_from is not None
        if resumes and self.out is None:
            raise ConfigError("name the run to resume: lakepond train erl --resume --out runs/NAME.")
        folder = self.out or _next_free(self.preset)
        base = _settings_there(folder, self.settings.push_to) if resumes else erl.PRESETS[self.preset]
        config = with_options(base, self.settings)
        if config.push_to == NOWHERE:
            config = replace(config, push_to=None)
        if not self.json:
            prices = f", prices from {config.panel}" if config.panel is not None else ""
            words.talk(f"training into {folder}{prices}; the first generation compiles for a while")
        began = time.perf_counter()
        last = erl.train(
            config,
            folder,
            resume=self.resume,
            resume_from=self.resume_from,
            start_over=self.start_over,
            loggers=self.log,
            on_generation=lambda told: None if self.json else words.talk(_line(told, config.generations)),
        )
        seconds = time.perf_counter() - began
        _tell(folder, config, last, seconds, self.evaluate, as_json=self.json)

    def interrupted(self) -> str:
        """How to go on."""
        out = self.out or "runs/NAME"
        return f"Nothing up to the last checkpoint is lost: lakepond train erl --resume --out {out}"


@dataclass(frozen=True)
class Train:
    """Train agents, with a replay that outlives the machine.

    Example: lakepond train erl --preset demo
    """

    command: Annotated[
        Annotated[Erl, subcommand("erl")]
        | Annotated[Single, subcommand("single")]
        | Annotated[Mixture, subcommand("mixture")]
        | Annotated[Live, subcommand("live")],
        arg(name=""),
    ]

    def run(self) -> None:
        """Pass on to the trainer."""
        self.command.run()

    def interrupted(self) -> str:
        """How to go on."""
        return self.command.interrupted()


def _settings_there(folder: Path, push_to: str | None) -> erl.Config:
    """The settings of the run to resume; refuses to push to a place that only its config.json names."""
    from lakepond.errors import ConfigError, RunMismatch
    from lakepond.runs import Run
    from lakepond.runs.resume import Resume
    from lakepond.trainers.evaluate_market import config_of

    Resume(required=True).find(folder)
    there = Run.open(folder)
    if there.trainer != "erl":
        raise RunMismatch(
            f"{folder} is a run of the trainer {there.trainer!r}, not 'erl'; choose another folder."
        )
    named = there.config.get("push_to")
    if named is not None and push_to is None:
        place = shlex.quote("".join(letter for letter in str(named) if letter.isprintable()))
        raise ConfigError(
            f"the settings in {folder} push this run to {place}; confirm that with --push-to {place}, or "
            f"resume without pushing with --push-to {NOWHERE}."
        )
    return config_of(there, warn=False)  # training warns


def _next_free(preset: str) -> Path:
    number = 1
    while (folder := Path("runs") / f"erl-{preset}-{number}").exists():
        number += 1
    return folder


def _line(told: dict[str, Any], generations: int) -> str:
    """One generation in a line."""
    left = told["seconds_left"]
    return (
        f"generation {told['generation']:>3}/{generations}  best {told['fitness_best']:8.1f}  "
        f"mean {told['fitness_mean']:8.1f}  validation {told['validation_best']:8.1f}  "
        f"{words.count(told['distinct_rows'])} rows  lake {words.size(told['lake_bytes'])}  "
        f"RAM {words.size(told['rss_bytes'])}  {words.duration(left)} left"
    )


def _tell(
    folder: Path, config: erl.Config, last: dict[str, Any], seconds: float, part: str, *, as_json: bool
) -> None:
    """What the run came to: memory, disk, time, and the champion beside its baselines."""
    from lakepond.cli.evaluate import compared, comparison
    from lakepond.lake import commits
    from lakepond.lake.lake import Lake
    from lakepond.report.page import write_report

    with Lake.open(folder / "lake") as lake:
        stats = lake.stats()
    told: dict[str, Any] = {
        "folder": str(folder),
        "seconds": seconds,
        "held_by_saving_seconds": last["held_seconds_total"],
        "training_seconds": last["train_seconds_total"],
        "bytes_plain": last["bytes_plain"],
        "bytes_held": last["bytes_held"],
        "bytes_on_disk": stats.bytes_on_disk,
        "commits": len(commits.numbers(folder / "lake" / "commits")),
    }
    found = None
    if part != "nothing":
        found = comparison(folder, part, None, 100)  # type: ignore[arg-type]
        told |= {"evaluation": compared(found), "evaluation_folder": str(folder / "evaluation" / part)}
    told["report"] = str(write_report([folder], folder / "report.html")[0])
    if as_json:
        words.print_json(told)
        return
    share = told["held_by_saving_seconds"] / max(told["training_seconds"], 1e-9)
    show = words.console()
    rows = [
        ("the replay, plainly", f"{words.count(last['steps'])} steps, {words.size(told['bytes_plain'])}"),
        ("held in memory", words.size(told["bytes_held"])),
        ("on disk, in the lake", f"{words.size(told['bytes_on_disk'])}, saved {told['commits']} times"),
        (
            "training held by saving",
            f"{words.duration(told['held_by_saving_seconds'])}, {share:.2%} of the time",
        ),
    ]
    show.print(words.facts(rows))
    if found is not None:
        from lakepond.cli.evaluate import table

        show.print(table(found))
        files = f"{told['evaluation_folder']}: equity.png, profits.png, trades.csv, result.json"
        rows = [("the evaluation lies in", files)]
    else:
        rows = []
    show.print(words.facts([*rows, ("the run lies in", str(folder)), ("the report lies in", told["report"])]))
