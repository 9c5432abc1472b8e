"""`lakepond train single | mixture | live`: agents that learn games, ponds on the device, a lake on disk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import words
from lakepond.cli.flag import Flag
from lakepond.cli.settings import options_of, with_options
from lakepond.trainers import game_settings

Preset = Literal["minatar", "published", "atari", "tiny"]
Log = Annotated[
    tuple[Literal["tensorboard", "wandb"], ...],
    arg(metavar="tensorboard|wandb ...", help_behavior_hint="(default: none)"),
]
Out = Annotated[
    Path | None, arg(metavar="PATH", help_behavior_hint="(default: the next runs/<trainer>-<game>-<n>)")
]

HEADINGS = game_settings.HEADINGS
SingleOptions: Any = options_of(game_settings.SingleConfig, game_settings.SINGLE, HEADINGS)
MixtureOptions: Any = options_of(game_settings.MixtureConfig, game_settings.MIXTURE, HEADINGS)
LiveOptions: Any = options_of(game_settings.LiveConfig, game_settings.LIVE, HEADINGS)
NO_SINGLE, NO_MIXTURE, NO_LIVE = SingleOptions(), MixtureOptions(), LiveOptions()


@dataclass(frozen=True)
class Single:
    """Train one agent on a game with PQN; started again with the same --out it resumes exactly.

    Example: lakepond train single --game breakout --frames 1000000 --out runs/single
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; tiny: seconds, checks for NaN"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: Flag = False
    """move the contents of --out to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline without an API key"""
    json: Flag = False
    """print JSON instead of a table"""
    settings: Annotated[SingleOptions, arg(name="")] = NO_SINGLE

    def run(self) -> None:
        """Train and print the result."""
        _train("single", self)

    def interrupted(self) -> str:
        """How to continue after an interrupt."""
        return _hint("single", self.out)


@dataclass(frozen=True)
class Mixture:
    """Train four agents that are periodically replaced by one that learned from all of them.

    Example: lakepond train mixture --game breakout --frames 1000000 --portion 249856 --out runs/mixture-1
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; tiny: seconds, checks for NaN"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: Flag = False
    """move the contents of --out to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline without an API key"""
    json: Flag = False
    """print JSON instead of a table"""
    settings: Annotated[MixtureOptions, arg(name="")] = NO_MIXTURE

    def run(self) -> None:
        """Train and print the result."""
        _train("mixture", self)

    def interrupted(self) -> str:
        """How to continue after an interrupt."""
        return _hint("mixture", self.out)


@dataclass(frozen=True)
class Live:
    """Train four agents and a fifth, larger one that learns from their steps while they train.

    Example: lakepond train live --game breakout --frames 1000000 --out runs/live
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; tiny: seconds, checks for NaN"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: Flag = False
    """move the contents of --out to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline without an API key"""
    json: Flag = False
    """print JSON instead of a table"""
    settings: Annotated[LiveOptions, arg(name="")] = NO_LIVE

    def run(self) -> None:
        """Train and print the result."""
        _train("live", self)

    def interrupted(self) -> str:
        """How to continue after an interrupt."""
        return _hint("live", self.out)


def _train(name: str, asked: Single | Mixture | Live) -> None:
    import jax

    from lakepond.trainers import programs

    programs.prepare_jax()
    trainer = import_module(f"lakepond.trainers.{name}")
    config = with_options(trainer.PRESETS[asked.preset], asked.settings)
    folder = asked.out or _next_free(name, config.game)
    if not asked.json:
        words.talk(f"Training in {folder}; compiling takes a while at first.")
    began = time.perf_counter()
    checks = jax.debug_nans(True) if asked.preset == "tiny" else nullcontext()
    with checks:
        told = trainer.run(
            config,
            folder,
            loggers=asked.log,
            start_over=asked.start_over,
            tell=(lambda _: None) if asked.json else words.talk,
        )
    found = {"folder": str(folder), "seconds": time.perf_counter() - began, **told}
    if asked.json:
        words.print_json(found)
        return
    rows = [("evaluation", f"{told['evaluation']:.2f}")] if "evaluation" in told else []
    words.console().print(words.facts([*rows, ("run", str(folder))]))


def _next_free(trainer: str, game: str) -> Path:
    number = 1
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in game.lower())
    while (folder := Path("runs") / f"{trainer}-{plain}-{number}").exists():
        number += 1
    return folder


def _hint(trainer: str, out: Path | None) -> str:
    return (
        "Everything up to the last checkpoint is saved; the same command resumes the run "
        f"(lakepond train {trainer} --out {out or 'runs/NAME'} ...)."
    )
