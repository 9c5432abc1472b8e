"""`lakepond train single | mixture | live`: agents that learn games, ponds on the device, a lake on disk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import words
from lakepond.cli.settings import options_of, with_options
from lakepond.trainers import live, mixture, programs, single

Preset = Literal["minatar", "published", "atari", "debug"]
Log = tuple[Literal["tensorboard", "wandb"], ...]
Out = Annotated[Path | None, arg(help_behavior_hint="(default: the next runs/<trainer>-<game>-<n>)")]

SingleOptions: Any = options_of(single.SingleConfig)
MixtureOptions: Any = options_of(mixture.MixtureConfig)
LiveOptions: Any = options_of(live.LiveConfig)
NO_SINGLE, NO_MIXTURE, NO_LIVE = SingleOptions(), MixtureOptions(), LiveOptions()


@dataclass(frozen=True)
class Single:
    """Train one agent on a game with PQN; killed and started again it goes on exactly.

    Example: lakepond train single --game breakout --frames 1000000 --out runs/single
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; debug, or --debug: seconds"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: bool = False
    """move what --out holds to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline unless a key is there"""
    json: bool = False
    """print JSON instead of a table"""
    settings: Annotated[SingleOptions, arg(name="")] = NO_SINGLE

    def run(self) -> None:
        """Train and tell."""
        _train("single", single, self)

    def interrupted(self) -> str:
        """How to go on."""
        return _hint("single", self.out)


@dataclass(frozen=True)
class Mixture:
    """Train four agents that now and then begin again from one that learned from all of them.

    Example: lakepond train mixture --game breakout --frames 1000000 --portion 249856 --out runs/mixture-1
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; debug, or --debug: seconds"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: bool = False
    """move what --out holds to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline unless a key is there"""
    json: bool = False
    """print JSON instead of a table"""
    settings: Annotated[MixtureOptions, arg(name="")] = NO_MIXTURE

    def run(self) -> None:
        """Train and tell."""
        _train("mixture", mixture, self)

    def interrupted(self) -> str:
        """How to go on."""
        return _hint("mixture", self.out)


@dataclass(frozen=True)
class Live:
    """Train four agents, and a fifth that learns from them as they go and acts a little itself.

    Example: lakepond train live --game breakout --frames 1000000 --out runs/live
    """

    preset: Preset = "minatar"
    """minatar: minutes; published: the authors' network, 10M frames; atari; debug, or --debug: seconds"""
    out: Out = None
    """folder of the run; an existing run is resumed"""
    start_over: bool = False
    """move what --out holds to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline unless a key is there"""
    json: bool = False
    """print JSON instead of a table"""
    settings: Annotated[LiveOptions, arg(name="")] = NO_LIVE

    def run(self) -> None:
        """Train and tell."""
        _train("live", live, self)

    def interrupted(self) -> str:
        """How to go on."""
        return _hint("live", self.out)


def _train(name: str, trainer: Any, asked: Single | Mixture | Live) -> None:
    import jax

    programs.prepare_jax()
    config = with_options(trainer.PRESETS[asked.preset], asked.settings)
    folder = asked.out or _next_free(name, config.game)
    if not asked.json:
        words.talk(f"training into {folder}; it compiles for a while first")
    began = time.perf_counter()
    checks = jax.debug_nans(True) if asked.preset == "debug" else nullcontext()
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
    words.console().print(words.facts([*rows, ("the run lies in", str(folder))]))


def _next_free(trainer: str, game: str) -> Path:
    number = 1
    plain = "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in game.lower())
    while (folder := Path("runs") / f"{trainer}-{plain}-{number}").exists():
        number += 1
    return folder


def _hint(trainer: str, out: Path | None) -> str:
    return (
        "Nothing up to the last checkpoint is lost: the same command resumes it "
        f"(lakepond train {trainer} --out {out or 'runs/NAME'} ...)."
    )
