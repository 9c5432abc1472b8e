"""`lakepond train single | mixture | live`: agents that learn games, ponds on the device, a lake on disk."""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from lakepond.cli import words
from lakepond.cli.options import at_least, optional
from lakepond.cli.settings import options_of
from lakepond.cli.training import GpuShare, Ray, TrainCommand, after_interrupt, check_free, next_run
from lakepond.errors import ConfigError
from lakepond.trainers import live, mixture, single
from lakepond.trainers.limits import check_limits

HEADINGS = {
    "": "game suite frame_stack env_steps reset_every evaluate_every seed network hidden dtype agents "
    "envs learning_rate big_replay_ratio",
    "PQN": "rollout epochs minibatches gamma lam max_gradient",
    "epsilon": "epsilon_kind epsilon_start epsilon_end epsilon_share epsilon_reset epsilon_offsets",
    "evaluation": "evaluation_episodes evaluation_epsilon evaluation_greedy evaluation_steps",
    "replay": "replay_share replay_pond replay_newest replay_rewarded",
    "saving": "checkpoint_every keep_every lake max_steps keep_last min_free push_to push_every",
    "reset": "share pond clone_optimiser",
    "big-agent": "dueling big_envs big_pond big_batch big_learning_rate big_target_every big_double "
    "big_start big_shrink big_new_layers big_n_step big_gamma big_rate_end big_distill big_last "
    "big_alpha big_epsilon_start big_learner big_replay_share clone_every",
}
"""the settings in `--help`, by heading; those without one are changed most often"""
SingleOptions: Any = options_of(single.SingleConfig, single.PRESETS, HEADINGS)
MixtureOptions: Any = options_of(mixture.MixtureConfig, mixture.PRESETS, HEADINGS)
LiveOptions: Any = options_of(live.LiveConfig, live.PRESETS, HEADINGS)
TRAINERS: dict[str, Any] = {"single": single, "mixture": mixture, "live": live}
NO_SINGLE, NO_MIXTURE, NO_LIVE = SingleOptions(), MixtureOptions(), LiveOptions()


@dataclass(frozen=True)
class _Game(TrainCommand):
    """The options that the trainers of games have in common."""

    preset: Literal["minatar", "published", "atari", "tiny"] = "minatar"
    """minatar: minutes; published: the authors' network, 10M steps; atari; tiny: seconds, checks for NaN"""
    out: Annotated[Path | None, optional("PATH", "the next runs/<trainer>-<game>-<n>")] = None
    """folder of the run; a run in it is continued from its newest intact checkpoint"""

    def run(self) -> None:
        import jax

        from lakepond.trainers import programs

        arguments = self.arguments()
        check_limits(self.config, TRAINERS[self.trainer].LIMITS)  # before it is said that training starts
        for folder, config in self.runs().items():
            check_free(config.push_to, folder, "--push-to", start_over=self.start_over)
        programs.prepare_jax()
        if not self.json:
            words.talk(f"Training in {self.folder}; compiling takes a while at first.")
        began = time.perf_counter()
        with jax.debug_nans(True) if self.preset == "tiny" else nullcontext():
            tell = (lambda _: None) if self.json else words.talk
            result = TRAINERS[self.trainer].run(self.config, self.folder, **arguments, tell=tell)
        if self.json:
            seconds = time.perf_counter() - began
            words.print_json({"folder": str(self.folder), "seconds": seconds, **result})
            return
        rows = [
            (name, f"{each['evaluation']:.2f}")
            for name, each in self.scored(result).items()
            if "evaluation" in each
        ]
        words.console().print(words.facts([*rows, ("run", str(self.folder))]))

    def scored(self, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The metrics whose evaluations are shown, by what to call them."""
        return {"evaluation": result}

    def runs(self) -> dict[Path, Any]:
        """The settings of each run, by its folder."""
        return {self.folder: self.config}

    def interrupted(self) -> str:
        same = "the same command" if self.out else f"the same command with --out {self.folder}"
        return after_interrupt(next(iter(self.runs())), f"; {same} resumes the run.")

    @cached_property
    def config(self) -> Any:
        """The settings of the preset, or of the run to resume, with those that were given."""
        return self.configured()

    @cached_property
    def folder(self) -> Path:
        """The folder of the run, or of several."""
        game = "".join(each if each.isalnum() or each in "-_" else "-" for each in self.config.game.lower())
        return self.out or next_run(f"{self.trainer}-{game}")


@dataclass(frozen=True)
class TrainSingle(_Game):
    """Train one agent on a game with PQN; started again with the same --out it resumes exactly.

    Example: lakepond train single --game breakout --env-steps 1000000 --out runs/single

    Example: lakepond train single --game breakout --seeds 8 --out runs/eight
    """

    trainer: ClassVar[str] = "single"
    seeds: Annotated[int | None, optional("INT", "one run")] = None
    """train this many agents in one program, from --seed on, each as a run in OUT/seed-<number>"""
    settings: Annotated[SingleOptions, arg(name="")] = NO_SINGLE

    def arguments(self) -> dict[str, Any]:
        """Those of all trainers, and the number of seeds."""
        at_least(1, seeds=self.seeds)
        if self.seeds is not None and self.resumes:
            raise ConfigError(
                "--seeds resumes its runs without --resume; to resume one of them, name its folder: "
                f"lakepond train single --resume --out {self.out or 'OUT'}/seed-<number>."
            )
        return super().arguments() | {"seeds": self.seeds}

    def scored(self, result: dict[str, Any]) -> dict[str, dict[str, Any]]:
        """The metrics of the run, or of each seed."""
        return super().scored(result) if self.seeds is None else result

    def runs(self) -> dict[Path, Any]:
        """The settings of the run, or of each seed."""
        if self.seeds is None:
            return super().runs()
        found: dict[Path, Any] = single.of_seeds(self.config, self.folder, self.seeds)
        return found


@dataclass(frozen=True)
class TrainMixture(_Game):
    """Train four agents that are periodically replaced by one that learned from all of them.

    Example: lakepond train mixture --game breakout --env-steps 1000000 --reset-every 249856 --out runs/m

    Example: lakepond train mixture --game breakout --ray auto --agents 4 --gpus-per-agent 1
    """

    trainer: ClassVar[str] = "mixture"
    ray: Ray = None
    """train each agent on a worker of a Ray cluster: started on this machine, the one here, or that one"""
    gpus_per_agent: GpuShare = 0.0
    """with --ray, share of a GPU that each agent gets; without one it uses a CPU"""
    settings: Annotated[MixtureOptions, arg(name="")] = NO_MIXTURE

    def arguments(self) -> dict[str, Any]:
        """Those of all trainers, and where the agents run."""
        at_least(0, gpus_per_agent=self.gpus_per_agent)
        return super().arguments() | {"ray": self.ray, "gpus_per_agent": self.gpus_per_agent}


@dataclass(frozen=True)
class TrainLive(_Game):
    """Train four agents and a fifth that learns from their steps and its own while they train.

    Example: lakepond train live --game breakout --env-steps 1000000 --out runs/live
    """

    trainer: ClassVar[str] = "live"
    settings: Annotated[LiveOptions, arg(name="")] = NO_LIVE
