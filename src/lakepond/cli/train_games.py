"""`lakepond train single | mixture | live`: agents that learn games, ponds on the device, a lake on disk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from lakepond.cli import where, words
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
class _Game:
    """The options that the trainers of games have in common."""

    trainer: ClassVar[str]
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
    settings: Any = None

    def run(self) -> None:
        """Train and print the result."""
        import jax

        from lakepond.trainers import programs

        programs.prepare_jax()
        if not self.json:
            words.talk(f"Training in {self.folder}; compiling takes a while at first.")
        began = time.perf_counter()
        checks = jax.debug_nans(True) if self.preset == "tiny" else nullcontext()
        with checks:
            result = import_module(f"lakepond.trainers.{self.trainer}").run(
                self.config,
                self.folder,
                loggers=self.log,
                start_over=self.start_over,
                tell=(lambda _: None) if self.json else words.talk,
            )
        if self.json:
            seconds = time.perf_counter() - began
            words.print_json({"folder": str(self.folder), "seconds": seconds, **result})
            return
        rows = [("evaluation", f"{result['evaluation']:.2f}")] if "evaluation" in result else []
        words.console().print(words.facts([*rows, ("run", str(self.folder))]))

    def interrupted(self) -> str:
        """How to continue after an interrupt."""
        same = "the same command" if self.out else f"the same command with --out {self.folder}"
        return where.nothing_saved(self.folder) or (
            f"Everything up to the last checkpoint is saved; {same} resumes the run."
        )

    @cached_property
    def config(self) -> Any:
        """The settings of the preset with those that were given."""
        return with_options(getattr(game_settings, self.trainer.upper())[self.preset], self.settings)

    @cached_property
    def folder(self) -> Path:
        """The folder of the run."""
        game = "".join(each if each.isalnum() or each in "-_" else "-" for each in self.config.game.lower())
        return self.out or where.next_run(f"{self.trainer}-{game}")


@dataclass(frozen=True)
class Single(_Game):
    """Train one agent on a game with PQN; started again with the same --out it resumes exactly.

    Example: lakepond train single --game breakout --frames 1000000 --out runs/single
    """

    trainer: ClassVar[str] = "single"
    settings: Annotated[SingleOptions, arg(name="")] = NO_SINGLE


@dataclass(frozen=True)
class Mixture(_Game):
    """Train four agents that are periodically replaced by one that learned from all of them.

    Example: lakepond train mixture --game breakout --frames 1000000 --portion 249856 --out runs/mixture-1
    """

    trainer: ClassVar[str] = "mixture"
    settings: Annotated[MixtureOptions, arg(name="")] = NO_MIXTURE


@dataclass(frozen=True)
class Live(_Game):
    """Train four agents and a fifth, larger one that learns from their steps while they train.

    Example: lakepond train live --game breakout --frames 1000000 --out runs/live
    """

    trainer: ClassVar[str] = "live"
    settings: Annotated[LiveOptions, arg(name="")] = NO_LIVE
