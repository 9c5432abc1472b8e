"""`compare`: does the mixture beat one agent? Many runs in one folder, as many processes as you like.

    runs/compare/
      settings.json                      written once: a folder is one comparison
      <game>/<arm>/<seed>/               a run of `single`, `mixture` or `live`; resumable like any
        result.json                      written when it is done
      <game>/<arm>/<seed>.lock           locked by the process that does it

Every process takes the next run that is neither done nor locked by another, so starting the command twice
uses two cores, and starting it again continues. The arms, with equal frames:

    single           A: one agent, PQN
    mixture          B: four agents, a quarter of the frames each, with resets from one that learned from all
    mixture-restart  B with epsilon back to 1 at each reset
    mixture-keep     B with epsilon going on at each reset
    mixture-last     the best B that was found: epochs as in `single-epochs`, BigAgents that learn twice as
                     often and faster, and one more after the last frame, which is what is deployed
    live             four agents and a fifth that learns from them as they go
    apart            control: four agents that never meet
    single-resets    control: one agent with resets from its own lake
    single-epochs    control: A with more epochs of PQN, so that it takes as many gradient samples as B
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lakepond import stopping, untrusted
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError, LakeLocked, RunCorrupt, RunLocked
from lakepond.lake.files import write_bytes
from lakepond.lake.lock import WriterLock
from lakepond.runs import Run
from lakepond.trainers import arena, game_settings, live, mixture, programs, single
from lakepond.trainers.game_settings import ARMS, CompareConfig
from lakepond.trainers.limits import check_limits

PRESETS = game_settings.COMPARE
RESULT = "result.json"


@dataclass(frozen=True)
class Job:
    """One run."""

    game: str
    arm: str
    seed: int
    folder: Path

    @property
    def done(self) -> bool:
        """Whether it has come to its end."""
        return (self.folder / RESULT).exists()

    @property
    def checkpoints(self) -> Path:
        """What a run that is not done resumes from; removed when it is, for there are many runs."""
        return self.folder / "checkpoints"


def jobs(config: CompareConfig, folder: Path) -> list[Job]:
    """All runs, so ordered that whatever has been done so far is a fair comparison."""
    for arm in config.arms:
        if arm not in ARMS:
            raise ConfigError(f"there is no arm {arm!r}; choose from {', '.join(ARMS)}.")
    games = [arena.make_env(config.suite, game).name for game in config.games]
    return [
        Job(game, arm, seed, folder / game / arm / str(seed))
        for seed in range(config.seeds)
        for game in games
        for arm in config.arms
    ]


@stopping.deferring("portion")
def run(config: CompareConfig, folder: str | Path, *, tell: Callable[[str], None] = lambda _: None) -> int:
    """Do every run that is not done, and return how many are still being done by others."""
    folder = Path(folder)
    check_limits(config, game_settings.LIMITS)
    todo = jobs(config, folder)
    _settle(config, folder)
    while waiting := [job for job in todo if not job.done or job.checkpoints.exists()]:
        took = [_try(config, job, tell) for job in waiting]
        if not any(took):
            return len(waiting)
    return 0


def _settle(config: CompareConfig, folder: Path) -> None:
    """A folder is one comparison: the settings that decide the runs are written once."""
    told = json.loads(json.dumps(dataclasses.asdict(config)))
    fixed = {name: value for name, value in told.items() if name not in ("games", "arms", "seeds")}
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.json"
    if not file.exists():
        write_bytes(folder, file.name, json.dumps(fixed, indent=1).encode())
        return
    with untrusted.blaming(file, RunCorrupt, "restore it, or choose another folder"):
        there = untrusted.read_json(file)
    for name, value in fixed.items():
        if there.get(name) != value:
            raise ConfigError(
                f"{folder} is a comparison with {name}={there.get(name)!r}, not {value!r}; "
                "choose another folder."
            )


def _try(config: CompareConfig, job: Job, tell: Callable[[str], None]) -> bool:
    """Do one run unless another process does; whether something was done here.

    The lock is held from before the run is looked at until its result is written and its checkpoints are
    removed, so no other process can start on a run that is about to be done.
    """
    stopping.check()
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WriterLock(job.folder.with_suffix(".lock")):
            if not job.done:
                _do(config, job, tell)
            elif not job.checkpoints.exists():  # another process has done it since
                return False
            if job.checkpoints.exists():
                shutil.rmtree(job.checkpoints)
    except (LakeLocked, RunLocked):
        return False
    return True


def _do(config: CompareConfig, job: Job, tell: Callable[[str], None]) -> None:
    settings, trainer = arm_settings(config, job)
    began = time.perf_counter()
    trainer.run(settings, job.folder)
    programs.forget()  # or 120 runs end with the memory of the programs of all
    result = {**result_of(job.folder), "game": job.game, "arm": job.arm, "seed": job.seed}
    write_bytes(job.folder, RESULT, json.dumps(result).encode())
    took = time.perf_counter() - began
    tell(f"{job.game} {job.arm} seed {job.seed}: {result['score']:.2f} in {took:.0f} s")


def arm_settings(config: CompareConfig, job: Job) -> tuple[Any, Any]:
    """The settings of a run, and its trainer."""
    update = PQNSettings().frames
    if config.frames < config.portions * update:
        raise ConfigError(
            f"{config.frames:,} frames are too few for {config.portions} portions; "
            f"take at least {config.portions * update:,}."
        )
    portion = config.frames // config.portions // update * update
    each = max(update, config.frames // config.evaluations // update * update)
    shared: dict[str, Any] = {
        "game": job.game,
        "suite": config.suite,
        "frames": portion * config.portions,  # or there were a reset right before the end
        "seed": job.seed,
        "network": config.network,
        "hidden": config.hidden,
        "evaluation_episodes": config.evaluation_episodes,
        "evaluation_greedy": False,  # not compared, and a tenth to a third of a run's time
        "checkpoint_every": 6,
        "keep_every": 0,
    }
    big: dict[str, Any] = {"big_samples": config.big_samples}
    mixed: dict[str, Any] = {**shared, **big, "portion": portion, "evaluate_every": each}
    one: dict[str, Any] = {"agents": 1, "pqn": PQNSettings(), "pond": 65_536}
    four = game_settings.MixtureConfig().pqn
    # B learns from the steps of portion i at every later reset
    epochs = round(four.epochs + config.big_samples * (config.portions - 1) / 2)
    more: dict[str, Any] = {
        **mixed,
        "pqn": dataclasses.replace(four, epochs=epochs),
        "big_samples": 2 * config.big_samples,
        "big_last": 2 * config.big_samples,
        "big_target_every": 100,
        "big_learning_rate": 1e-3,
    }
    makers: dict[str, Callable[[], tuple[Any, Any]]] = {
        "single": lambda: (game_settings.SingleConfig(**shared, portion=each), single),
        "mixture": lambda: (game_settings.MixtureConfig(**mixed), mixture),
        "mixture-restart": lambda: (game_settings.MixtureConfig(**mixed, epsilon_reset=1.0), mixture),
        "mixture-keep": lambda: (game_settings.MixtureConfig(**mixed, epsilon_reset="keep"), mixture),
        "mixture-last": lambda: (game_settings.MixtureConfig(**more), mixture),
        "live": lambda: (game_settings.LiveConfig(**shared, **big, portion=max(each, 2 * update)), live),
        "apart": lambda: (game_settings.MixtureConfig(**mixed, share=False), mixture),
        "single-resets": lambda: (game_settings.MixtureConfig(**mixed, **one), mixture),
        "single-epochs": lambda: (
            game_settings.SingleConfig(**shared, portion=each, pqn=PQNSettings(epochs=epochs)),
            single,
        ),
    }
    return makers[job.arm]()


def result_of(folder: Path) -> dict[str, Any]:
    """The result of a finished run: curve, resets, and score, the mean of its last three evaluations.

    A run that trained a BigAgent after its last frame ends with that one: the score is the mean of as many
    evaluations of it, and `agents_score` that of the agents before.
    """
    curve: list[tuple[int, float]] = []
    resets: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for line in Run.open(folder).history():
        if "reset" in line:
            resets.append(line)
        elif "evaluation" in line:
            curve.append((line["step"], line["evaluation"]))
            last = line
    score = sum(score for _, score in curve[-3:]) / len(curve[-3:])
    ended: dict[str, Any] = {}
    if resets and resets[-1]["step"] == last["step"]:
        final = resets.pop()
        ended = {"score": final["evaluation_after"], "samples": final["samples"], "agents_score": score}
    return {
        "score": score,
        "curve": curve,
        "resets": [_recovered(reset, curve) for reset in resets],
        "frames": last["step"],
        "samples": last["samples"],
        "seconds": {name: value for name, value in last.items() if name.startswith("seconds_")},
        **ended,
    }


def _recovered(reset: dict[str, Any], curve: list[tuple[int, float]]) -> dict[str, Any]:
    frames, scores = [at for at, _ in curve], [score for _, score in curve]
    before = reset["evaluation_before"]
    after = reset["evaluation_after"]
    recovery = 0 if after >= before else arena.recovery(frames, scores, reset["step"], before)
    near = 0 if after >= 0.95 * before else arena.recovery(frames, scores, reset["step"], 0.95 * before)
    return {
        "frames": reset["step"],
        "before": before,
        "after": after,
        "recovery": recovery,
        "recovery_95": near,
    }


def results(folder: str | Path) -> Iterator[dict[str, Any]]:
    """The results of the finished runs of a comparison."""
    for file in sorted(Path(folder).glob(f"*/*/*/{RESULT}")):
        with untrusted.blaming(file, RunCorrupt, "delete it, and the run is made again"):
            result = untrusted.read_json(file)
        yield result
