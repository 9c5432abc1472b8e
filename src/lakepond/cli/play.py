"""`lakepond play`: play a game with a trained agent."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import Json, at_least, between, optional


@dataclass(frozen=True)
class Play:
    """Play a game with the policy of a checkpoint, and write a video of it.

    Example: lakepond play runs/mixture-breakout-1 --video out.gif
    """

    folder: Annotated[Positional[Path], arg(metavar="RUN")]
    """folder of a run of single, mixture or live"""
    video: Annotated[Path | None, optional("PATH", "none")] = None
    """GIF file to write"""
    checkpoint: Annotated[int | None, optional("NUMBER", "the newest")] = None
    """checkpoint whose policy plays"""
    seed: int = 0
    """random seed of the game"""
    epsilon: float = 0.001
    """probability of a random action, 0 to 1"""
    trust_module: Annotated[str | None, optional("MODULE", "none")] = None
    """Python module that may be imported if the run's game is MODULE:ID"""
    json: Json = False

    def run(self) -> None:
        between(0, 1, epsilon=self.epsilon)
        at_least(0, seed=self.seed)
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
        result = {
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
        rows = [
            (name, formats.number(value) if isinstance(value, float) else str(value))
            for name, value in result.items()
            if value is not None
        ]
        words.print_result(result, words.facts(rows), as_json=self.json)
