"""`compare`: does the mixture beat one agent? Many runs in one folder, as many processes as you like.

    runs/compare/
      settings.json                      written once: a folder is one comparison
      <game>/<arm>/<seed>/               a run of `single`, `mixture` or `live`; resumable like any
        result.json                      written when it is done
      <game>/<arm>/<seed>.lock           locked by the process that does it

Every process takes the next run that is neither done nor locked by another, so starting the command twice
uses two cores, and starting it again continues. The arms, with equal environment steps:

    single           A: one agent, PQN
    mixture          B: four agents, a quarter of the steps each, with resets from one that learned from all
    mixture-last     the best B that was found: epochs as in `single-epochs`, BigAgents that learn twice as
                     often and faster, and one more after the last step, which is what is deployed
    mixture-acts     B whose BigAgent acts on half of the lanes and learns all the time, half from its newest
                     rollout and half from all steps so far; the four are cloned from it 32 times
    live             four agents and a fifth that learns from them as they go
    apart            control: four agents that never meet
    clone-best       control: B whose agents continue as copies of the best one; nothing is learned at a reset
    single-resets    control: one agent with resets from its own lake
    single-epochs-4  control: A with four epochs of PQN
    single-epochs    control: A with more epochs of PQN, so that it takes as many gradient samples as B
    single-fresh     control: the same, with targets of the current weights before each of those epochs
    single-lake      A with a lake: the same, and half of each of those epochs is drawn from all steps so far
    single-newest    the same, from the newest fifth of the run's steps
    single-rewarded  the same, from all steps so far; half of the sequences contain a reward
"""

from __future__ import annotations

import dataclasses
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from lakepond import lazy, stopping, untrusted
from lakepond._version import __version__
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError, LakeLocked, RunCorrupt, RunLocked
from lakepond.lake.files import write_bytes
from lakepond.lake.format.sealed import as_stored, strict
from lakepond.lake.lock import WriterLock
from lakepond.paths import on_disk
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.settings import as_json, flat, renamed
from lakepond.trainers import live, mixture, programs, single
from lakepond.trainers.limits import Limits, check_limits
from lakepond.trainers.live import LiveConfig
from lakepond.trainers.loop import MAY_CHANGE
from lakepond.trainers.mixture import MixtureConfig
from lakepond.trainers.single import SingleConfig

if TYPE_CHECKING:
    import jax

    from lakepond.trainers import arena
else:  # `lakepond compare --help` reads the settings below and imports none of these
    jax, arena = lazy.Module("jax"), lazy.Module("lakepond.trainers.arena")

RESULT, SETTINGS = "result.json", "settings.json"
ARMS = (
    "single",
    "single-fresh",
    "single-lake",
    "single-newest",
    "single-rewarded",
    "mixture",
    "mixture-last",
    "mixture-acts",
    "live",
    "apart",
    "clone-best",
    "single-resets",
    "single-epochs-4",
    "single-epochs",
)
"""what can be compared; see above"""


@dataclass(frozen=True)
class CompareConfig:
    """All settings of a comparison."""

    games: tuple[str, ...] = ("Breakout", "Asterix", "Freeway", "SpaceInvaders")
    """names of the games"""
    arms: tuple[str, ...] = (
        "single",
        "single-epochs",
        "single-fresh",
        "single-lake",
        "mixture",
        "mixture-acts",
        "live",
        "apart",
        "clone-best",
        "single-resets",
    )
    """algorithms to compare; may be changed later"""
    seeds: int = 5
    """runs of each arm on each game; may be raised later"""
    first_seed: int = 0
    """seed of the first of them; choose another one than in runs that were used to choose settings"""
    env_steps: int = 524_288
    """environment steps of each run, over all its agents; rounded down to whole evaluations"""
    reset_parts: int = 4
    """equal parts of a run of mixture, with a reset between two of them"""
    evaluations: int = 16
    """evaluations per run; a multiple of reset_parts"""
    evaluation_episodes: int = 32
    """episodes per evaluation"""
    network: Literal["mlp", "cnn", "nature"] = "mlp"
    """mlp, cnn (as published for MinAtar) or nature (for Atari)"""
    hidden: tuple[int, ...] = (128,)
    """widths of the layers of the mlp"""
    learning_rate: float = PQNSettings.learning_rate
    """initial learning rate of the agents of all arms; decays linearly to 0 over the run. That of a BigAgent
    that learns with DQN changes by the same factor"""
    rates: tuple[str, ...] = ()
    """learning rates of single arms, as ARM=RATE"""
    big_replay_ratio: float = 4.0
    """average number of times the big agent trains on a transition; 0: `mixture` learns nothing at a reset"""
    suite: Literal["minatar", "atari", "gymnasium", "gymnax", "module"] = "minatar"
    """minatar, gymnax: on the device; atari: ale-py; gymnasium: on the host; module: your own"""


PRESETS: dict[str, CompareConfig] = {
    "minatar": CompareConfig(),
    "tiny": CompareConfig(
        games=("Breakout",),
        arms=ARMS,
        seeds=2,
        env_steps=4 * 4096,
        evaluations=4,
        evaluation_episodes=4,
        hidden=(16,),
        big_replay_ratio=0.25,
    ),
}
LIMITS: Limits = dict.fromkeys(
    ("seeds", "env_steps", "reset_parts", "evaluations", "evaluation_episodes", "hidden"), (1, inf)
) | {"first_seed": (0, inf), "learning_rate": (0, inf), "big_replay_ratio": (0, inf)}


@dataclass(frozen=True)
class Job:
    """One run."""

    game: str
    arm: str
    seed: int
    folder: Path

    @property
    def done(self) -> bool:
        """Whether the run has ended and its result is written."""
        return (self.folder / RESULT).exists()

    @property
    def checkpoints(self) -> Path:
        """What a run that is not done resumes from; removed when it is, for there are many runs."""
        return self.folder / "checkpoints"


def jobs(config: CompareConfig, folder: Path) -> list[Job]:
    """All runs, in an order in which the finished ones are a fair comparison at any time."""
    for arm in (*config.arms, *learning_rates(config)):
        if arm not in ARMS:
            raise ConfigError(f"there is no arm {arm!r}; choose from {', '.join(ARMS)}.")
    games = [arena.make_env(SingleConfig(game, config.suite)).name for game in config.games]
    return [
        Job(game, arm, seed, folder / game / arm / str(seed))
        for seed in range(config.first_seed, config.first_seed + config.seeds)
        for game in games
        for arm in config.arms
    ]


def learning_rates(config: CompareConfig) -> dict[str, float]:
    """The learning rates of the arms that have one of their own; `ConfigError` if one is invalid."""
    found: dict[str, float] = {}
    for each in config.rates:
        arm, _, rate = each.partition("=")
        try:
            found[arm] = float(rate)
        except ValueError:
            found[arm] = nan
        if not 0 < found[arm] < inf:
            raise ConfigError(f"rates has {each!r}; give ARM=RATE, like mixture=0.001.")
    return found


@stopping.deferring("portion")
def run(
    config: CompareConfig,
    folder: str | Path,
    *,
    loggers: Sequence[Logger] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> int:
    """Do every run that is not done, and return how many are still being done by others."""
    folder = on_disk(folder)
    check_limits(config, LIMITS)
    todo = jobs(config, folder)
    for job in todo:
        arm_settings(config, job)  # invalid ones are refused before anything is written
    settle(config, folder)
    check_results(config, todo)
    while waiting := [job for job in todo if not job.done or job.checkpoints.exists()]:
        took = [attempt(config, job, tell, loggers=loggers) for job in waiting]
        if not any(took):
            return len(waiting)
    return 0


def settle(config: CompareConfig, folder: Path) -> bytes:
    """Write the settings that all runs share, or check that they are the same; returns the file."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS
    if not file.exists():
        write_bytes(folder, file.name, strict(_fixed(config), indent=1))
    check_settings(config, file.read_bytes(), folder)
    return file.read_bytes()


def check_settings(config: CompareConfig, file: bytes, place: object) -> None:
    """`ConfigError` if the comparison in a folder or bucket has other settings."""
    with untrusted.blaming(f"{place}/{SETTINGS}", RunCorrupt, "restore it, or choose another folder"):
        there = renamed(as_stored(dict(untrusted.parse_json(file))), "compare")
    there = _fixed(CompareConfig()) | there  # written before a setting was there: its default
    for name, value in _fixed(config).items():
        if there[name] != value:
            raise ConfigError(
                f"{place} is a comparison with {name}={there[name]!r}, not {value!r}; choose another folder."
            )


def check_results(config: CompareConfig, jobs: Sequence[Job]) -> None:
    """`ConfigError` if a run that is done had other settings than it would have now, or unknown ones."""
    for job in jobs:
        if not job.done:
            continue
        file, settings = job.folder / RESULT, arm_settings(config, job)[0]
        with untrusted.blaming(file, RunCorrupt, "delete it, and the run is made again"):
            there = untrusted.read_json(file).get("settings")
            if there is None:
                why = "does not say with which settings it was made"
            else:
                there, wanted = _settings_of(type(settings)()) | there, _settings_of(settings)
                names = wanted.keys() ^ there.keys() or [n for n in wanted if wanted[n] != there[n]]
                if not names:
                    continue
                name = min(names)
                why = f"was made with {name}={there.get(name)!r}, not {wanted.get(name)!r}"
        raise ConfigError(f"{file} {why}; delete {job.folder} to do it again, or choose another folder.")


def _settings_of(settings: Any) -> dict[str, Any]:
    """All settings that decide what a run does, by their full names."""
    named = flat(as_json(settings))
    return {name: value for name, value in named.items() if name not in MAY_CHANGE}


def _fixed(config: CompareConfig) -> dict[str, Any]:
    """The settings that all runs of a comparison have in common, as JSON has them."""
    settings = as_stored(dataclasses.asdict(config))
    return {name: value for name, value in settings.items() if name not in ("games", "arms", "seeds")}


def attempt(
    config: CompareConfig,
    job: Job,
    tell: Callable[[str], None],
    *,
    loggers: Sequence[Logger] = (),
    push_to: str | None = None,
) -> bool:
    """Do one run unless another process does; whether something was done here.

    push_to: URL to push the run to whenever it has written a checkpoint.

    The lock is held from before the run is looked at until its result is written and its checkpoints are
    removed, so no other process can start on a run that is about to be done.
    """
    stopping.check()
    job.folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        with WriterLock(job.folder.with_suffix(".lock")):
            if not job.done:
                _do(config, job, tell, loggers, push_to)
            elif not job.checkpoints.exists():  # another process has done it since
                return False
            if job.checkpoints.exists():
                shutil.rmtree(job.checkpoints)
    except (LakeLocked, RunLocked):
        return False
    return True


def _do(
    config: CompareConfig,
    job: Job,
    tell: Callable[[str], None],
    loggers: Sequence[Logger],
    push_to: str | None,
) -> None:
    settings, trainer = arm_settings(config, job)
    if push_to is not None:
        settings = dataclasses.replace(settings, push_to=push_to, push_every=1)
    began, cpu, resumed = time.perf_counter(), time.process_time(), job.checkpoints.exists()
    trainer.run(settings, job.folder, loggers=loggers)
    cpu = time.process_time() - cpu
    programs.forget()  # or 120 runs end with the memory of the programs of all
    result = {**result_of(job.folder), "score": final_score(settings, job.folder)}
    result |= {"game": job.game, "arm": job.arm, "seed": job.seed}
    result |= {"lakepond": __version__, "settings": _settings_of(settings)}
    if not resumed:  # or a part of it was not measured
        result["seconds"]["cpu"] = round(cpu, 3)
    write_bytes(job.folder, RESULT, strict(result))
    took = time.perf_counter() - began
    tell(f"{job.game} {job.arm} seed {job.seed}: {result['score']:.2f} in {took:.0f} s")


def arm_settings(config: CompareConfig, job: Job) -> tuple[Any, Any]:
    """The settings of a run, and its trainer."""
    update, count = PQNSettings().update_steps, config.evaluations
    if count % config.reset_parts:
        raise ConfigError(
            f"{count} evaluations cannot be divided into {config.reset_parts} parts between resets; "
            f"take {-(-count // config.reset_parts) * config.reset_parts}."
        )
    portion = config.env_steps // count // update * update
    if portion == 0:
        raise ConfigError(
            f"{config.env_steps:,} steps are too few for {count} evaluations; "
            f"take at least {count * update:,}."
        )
    rate = learning_rates(config).get(job.arm, config.learning_rate)
    rate_factor = rate / PQNSettings.learning_rate
    shared: dict[str, Any] = {
        "game": job.game,
        "suite": config.suite,
        "env_steps": portion * count,
        "evaluate_every": portion,
        "seed": job.seed,
        "network": config.network,
        "hidden": config.hidden,
        "evaluation_episodes": config.evaluation_episodes,
        "evaluation_greedy": False,  # not compared, and a tenth to a third of a run's time
        "checkpoint_every": 6,
        "keep_every": 0,
    }
    big: dict[str, Any] = {"big_replay_ratio": config.big_replay_ratio}
    big["big_learning_rate"] = rate_factor * MixtureConfig.big_learning_rate
    pqn = PQNSettings(learning_rate=rate)
    four = dataclasses.replace(MixtureConfig().pqn, learning_rate=rate)
    mixed: dict[str, Any] = {**shared, **big, "pqn": four}
    mixed["reset_every"] = portion * (count // config.reset_parts)
    mixed["big_pond"] = shared["env_steps"]  # all of the Lake, or long runs take fewer samples per step
    # B learns from the steps of part i at every later reset
    epochs = round(four.epochs + config.big_replay_ratio * (config.reset_parts - 1) / 2)
    more: dict[str, Any] = {
        **mixed,
        "pqn": dataclasses.replace(four, epochs=epochs),
        "big_replay_ratio": 2 * config.big_replay_ratio,
        "big_last": 2 * config.big_replay_ratio,
        "big_target_every": 100,
        "big_learning_rate": rate_factor * 1e-3,
    }
    more_epochs: dict[str, Any] = {**shared, "pqn": dataclasses.replace(pqn, epochs=epochs)}
    lake = {**more_epochs, "replay_share": 0.5}
    lake["replay_pond"] = 2 * shared["env_steps"]  # all steps so far, never a sample of them
    newest = max(2 * update, shared["env_steps"] // 5)
    acts: dict[str, Any] = {
        **shared,
        "pqn": dataclasses.replace(four, envs=16, minibatches=4),
        "big_envs": 64,
        "big_pond": shared["env_steps"],
        "big_learner": "pqn",
        "big_replay_ratio": epochs - 1.0,  # and the four, on half of the lanes, take 2 epochs
        "clone_every": shared["env_steps"] // 32,
    }
    arms: dict[str, tuple[Any, dict[str, Any]]] = {
        "single": (SingleConfig, {**shared, "pqn": pqn}),
        "mixture": (MixtureConfig, mixed),
        "mixture-last": (MixtureConfig, more),
        "mixture-acts": (LiveConfig, acts),
        "live": (LiveConfig, {**shared, **big, "pqn": four, "evaluate_every": max(portion, 2 * update)}),
        "apart": (MixtureConfig, {**mixed, "share": False}),
        "clone-best": (MixtureConfig, {**mixed, "big_replay_ratio": 0.0}),
        "single-resets": (MixtureConfig, {**mixed, "agents": 1, "pqn": pqn, "pond": 65_536}),
        "single-epochs-4": (SingleConfig, {**more_epochs, "pqn": dataclasses.replace(pqn, epochs=4)}),
        "single-epochs": (SingleConfig, more_epochs),
        "single-fresh": (SingleConfig, {**more_epochs, "recompute_targets": True}),
        "single-lake": (SingleConfig, lake),
        "single-newest": (SingleConfig, {**lake, "replay_newest": newest}),
        "single-rewarded": (SingleConfig, {**lake, "replay_rewarded": 0.5}),
    }
    kind, settings = arms[job.arm]
    trainer: Any = {SingleConfig: single, MixtureConfig: mixture, LiveConfig: live}[kind]
    made = kind(**settings)
    check_limits(made, trainer.LIMITS)
    return made, trainer


def final_score(config: Any, folder: Path) -> float:
    """The mean score of the policy that a run ends with, in three times the episodes of an evaluation.

    Runs with another seed play other episodes. It is the same for all arms: `single` ends with its agent,
    `mixture` with the agent that had the best training scores since the last reset, or with the BigAgent
    trained after the last step, and `live` with the big agent.
    """
    network = arena.network_of(config, arena.make_env(config))
    policy = Run.open(folder).load(like={"policy": network.init(jax.random.PRNGKey(0))}).arrays["policy"]
    evaluate = arena.evaluator_of(config, network, episodes=3 * config.evaluation_episodes)
    return float(evaluate(policy, final_key(config.seed)).mean())


def final_key(seed: int) -> jax.Array:
    """The key of the episodes of a run's final score."""
    return jax.random.fold_in(arena.evaluation_key(0), seed)


def result_of(folder: Path) -> dict[str, Any]:
    """The result of a finished run but its score: the curve of its evaluations, and its resets."""
    curve: list[tuple[int, float]] = []
    resets: list[dict[str, Any]] = []
    last: dict[str, Any] = {}
    for line in Run.open(folder).history():
        if "reset" in line:
            resets.append(line)
        elif "evaluation" in line:
            curve.append((line["step"], line["evaluation"]))
            last = line
    ends = (last, *resets)  # a reset may come after the last evaluation
    return {
        "curve": curve,
        "resets": [_recovered(reset, curve) for reset in resets if reset["step"] < last["step"]],
        "frames": last["step"],  # environment steps; the name that older results have
        "samples": max(line["samples"] for line in ends),
        "gradient_steps": max(line["gradient_steps"] for line in ends),
        "seconds": {name: value for name, value in last.items() if name.startswith("seconds_")},
    }


def _recovered(reset: dict[str, Any], curve: list[tuple[int, float]]) -> dict[str, Any]:
    """A reset with the environment steps from it until an evaluation as good as before it; None: none was."""
    step, before, after = reset["step"], reset["evaluation_before"], reset["evaluation_after"]

    def until(score: float) -> int | None:
        reached = (at - step for at, found in curve if at > step and found >= score)
        return 0 if after >= score else next(reached, None)

    return {
        "frames": step,
        "before": before,
        "after": after,
        "recovery": until(before),
        "recovery_95": until(0.95 * before),
    }
