"""`lakepond play`: see what an agent of a run does."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond.cli import words


@dataclass(frozen=True)
class Play:
    """Play a game with the policy of a run's checkpoint, and make a video of it.

    Example: lakepond play runs/mixture-breakout-1 --video out.gif
    """

    folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """folder of a run of single, mixture or live"""
    video: Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="(default: none)")] = None
    """GIF to write"""
    checkpoint: Annotated[int | None, arg(metavar="NUMBER", help_behavior_hint="(default: newest)")] = None
    """whose policy"""
    seed: int = 0
    """of the game"""
    epsilon: float = 0.001
    """share of random actions"""
    trust_module: Annotated[str | None, arg(metavar="MODULE", help_behavior_hint="(default: none)")] = None
    """Python module that a game module:id of this run may import"""
    json: bool = False
    """print JSON instead of a table"""

    def run(self) -> None:
        """Play, write, tell."""
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
        told = {
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
        if self.json:
            words.print_json(told)
            return
        rows = [(name, str(value)) for name, value in told.items() if value is not None]
        words.console().print(words.facts(rows))
