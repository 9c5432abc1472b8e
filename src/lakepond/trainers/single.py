"""`single`: one agent learns with PQN from N steps. The baseline that `mixture` is measured against (A).

while env_steps < N:
    train a portion           pure, jitted: train(state, history, updates) -> state, history, sums of metrics
    evaluate                  in environments of its own
    log, save a checkpoint    killed and started again, it resumes bit for bit

With `replay_share` every epoch is partly drawn from all steps so far: they are poured into a lake in the
background, and what is drawn from is on the device (`agents/replay.py`). Which of them is set by
`replay_newest` and `replay_rewarded`.

    agent ──add──▶ recent ──pour──▶ lake ──fill──▶ filled ──draw──▶ agent
                     └────────────────draw────────────────────────▶

`recent` holds the steps between two checkpoints, or half of all that is held if they are more. When it is
full, and before every checkpoint, the lake is filled into the other pond, all of it if it fits and else a
uniform sample, and `recent` starts empty. So a checkpoint needs no pond: its commit of the lake and the
number of the update determine what it held. A history of the newest N steps is filled from the newest
N - `recent` steps of the lake, so that it holds no older step when `recent` is full: it has all of the newest
N steps only then, and N - `recent` of them right after a fill.

With `seeds` several agents train in one program, each as a run of its own that can be resumed by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lakepond import lazy, stopping
from lakepond.agents.settings import PQNSettings
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers.limits import ABOVE_0, Limits, check_limits
from lakepond.trainers.loop import LAKE, Loop, create_run
from lakepond.trainers.pushing import Pushing
from lakepond.types import Field

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from lakepond.agents import fleet, replay
    from lakepond.agents import pqn as agents_pqn
    from lakepond.agents.pqn import PQN, PQNMetrics, PQNState
    from lakepond.agents.replay import HistoryPonds, HistoryState
    from lakepond.flow import device_fill
    from lakepond.pond import device_memory
    from lakepond.trainers import arena
    from lakepond.trainers.arena import Evaluator
else:  # `lakepond train single --help` reads the settings below and imports none of these
    jax, jnp = lazy.Module("jax"), lazy.Module("jax.numpy")
    agents_pqn, replay = lazy.Module("lakepond.agents.pqn"), lazy.Module("lakepond.agents.replay")
    fleet, arena = lazy.Module("lakepond.agents.fleet"), lazy.Module("lakepond.trainers.arena")
    device_fill = lazy.Module("lakepond.flow.device_fill")
    device_memory = lazy.Module("lakepond.pond.device_memory")


@dataclass(frozen=True)
class SingleConfig:
    """All settings of a run."""

    game: str = "Breakout"
    """game of the suite; for gymnasium and gymnax an id, or MODULE:ID; for module MODULE:FUNCTION"""
    suite: Literal["minatar", "atari", "gymnasium", "gymnax", "module"] = "minatar"
    """minatar, gymnax: on the device; atari: ale-py; gymnasium: on the host; module: your own"""
    frame_stack: int = 4
    """frames per observation, on Atari"""
    env_steps: int = 1_000_000
    """total environment steps; on Atari each is four frames of the emulator"""
    evaluate_every: int = 40_960
    """environment steps between two evaluations"""
    seed: int = field(default=0, compare=False)  # not compared: programs are shared
    """random seed"""
    network: Literal["mlp", "cnn", "nature"] = "mlp"
    """mlp, cnn (as published for MinAtar) or nature (for Atari)"""
    hidden: tuple[int, ...] = (256, 128)
    """widths of the layers of the mlp"""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """of the products in the network; bfloat16 is faster on an accelerator"""
    pqn: PQNSettings = field(default_factory=PQNSettings)
    epsilon_kind: Literal["linear", "exponential", "constant"] = "linear"
    """schedule of epsilon"""
    epsilon_start: float = 1.0
    """initial probability of a random action"""
    epsilon_end: float = 0.05
    """final probability of a random action"""
    epsilon_share: float = 0.1
    """share of the steps until epsilon_end is reached"""
    evaluation_episodes: int = 64
    """episodes per evaluation"""
    evaluation_epsilon: float = 0.001
    """probability of a random action in evaluations"""
    evaluation_greedy: bool = True
    """also evaluate without random actions; takes twice the time"""
    evaluation_steps: int = 27_000
    """steps after which an evaluation episode is cut off"""
    checkpoint_every: int = 4
    """evaluations between two checkpoints; the end always writes one"""
    keep_every: int = field(default=1, compare=False)
    """keep every n-th checkpoint besides the last three; 1: all, 0: none"""
    recompute_targets: bool = False
    """compute the targets of every epoch with the current weights; replay always does"""
    replay_share: float = 0.0
    """share of each PQN epoch that is drawn from all steps so far, from a lake; 0: PQN without replay"""
    replay_pond: int = 1_000_000
    """steps held on the device for replay; if the run has more, they are drawn from the lake"""
    replay_newest: int | None = None
    """replay only from this many newest steps, at least half of them at any time; not given: from all"""
    replay_rewarded: float = 0.0
    """share of the replayed sequences that are drawn by a reward in them; the others are drawn uniformly"""
    max_steps: int | None = None
    """steps to keep in the lake, older ones are dropped; not given: all"""
    keep_last: int | None = None
    """newest commits of the lake to keep besides those of checkpoints; not given: all"""
    min_free: str = "1GB"
    """free disk space below which nothing is written to the lake"""
    push_to: str | None = None
    """URL to push the run to in the background, like gs://bucket/demo"""
    push_every: int = 4
    """checkpoints between two pushes; the end is always pushed"""


PRESETS: dict[str, SingleConfig] = {
    "minatar": SingleConfig(),
    "published": SingleConfig(env_steps=10_000_000, evaluate_every=409_600, network="cnn"),
    "atari": SingleConfig(
        suite="atari",
        env_steps=10_000_000,
        evaluate_every=500_000,
        network="nature",
        pqn=PQNSettings(learning_rate=2.5e-4),
        evaluation_episodes=8,
    ),
    "tiny": SingleConfig(
        env_steps=8_192,
        evaluate_every=1_024,
        hidden=(16,),
        pqn=PQNSettings(envs=8, minibatches=2),
        evaluation_episodes=4,
    ),
}
"""minatar: minutes; published: the settings of PQN's authors; tiny: seconds, to test an installation"""

LIMITS: Limits = {
    name: limits
    for limits, names in {
        (1, inf): "env_steps evaluate_every frame_stack hidden evaluation_episodes evaluation_steps "
        "checkpoint_every push_every envs rollout epochs minibatches replay_pond replay_newest max_steps "
        "keep_last",
        (0, 1): "epsilon_start epsilon_end epsilon_share evaluation_epsilon gamma lam replay_share "
        "replay_rewarded",
        (0, inf): "seed keep_every learning_rate",
        (ABOVE_0, inf): "max_gradient",
    }.items()
    for name in names.split()
}
"""of every number, those of PQN included"""


def build(config: SingleConfig) -> PQN:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, LIMITS)
    for name in ("replay_newest", "replay_rewarded"):
        if getattr(config, name) and not config.replay_share:
            raise ConfigError(f"{name} has no effect without replay_share; set that too, to 0.5 for example.")
    arena.check_budget(config.env_steps, "evaluate_every", config.evaluate_every, config.pqn.update_steps)
    env = arena.make_env(config)
    epsilon = arena.make_epsilon(
        config.epsilon_kind,
        config.epsilon_start,
        config.epsilon_end,
        int(config.env_steps * config.epsilon_share),
    )
    network = arena.network_of(config, env)
    updates = config.env_steps // config.pqn.update_steps
    return agents_pqn.PQN(env, network, epsilon, config.pqn, updates, spread=env.resumes)


# --- the history of a run ------------------------------------------------------------------------------


def make_memory(
    obs: Field,
    pqn: PQNSettings,
    steps: int,
    env_steps: int,
    checkpoint: int,
    *,
    newest: int | None = None,
    rewarded: float = 0.0,
    runs: int = 1,
) -> HistoryPonds:
    """Ponds of at most `steps` steps together, for a run of `env_steps` and `checkpoint` per checkpoint.

    newest: the size of the history, if it is not all steps; rewarded: see `HistoryPonds`; runs: that have
    such ponds at a time. Raises `ConfigError` if the steps are too few, `SpecError` if the ponds do not fit
    the device.
    """
    for name, given in {"replay_pond": steps, "replay_newest": newest}.items():
        if given is not None and given < 2 * pqn.update_steps:
            raise ConfigError(
                f"{name} is {given:,} steps, less than two updates of {pqn.update_steps:,}; raise it."
            )
    steps = steps if newest is None else min(steps, newest)
    recent = max(1, min(steps // 2, checkpoint, env_steps) // pqn.update_steps) * pqn.update_steps
    filled = min(steps - recent, env_steps)
    ponds = arena.make_pond(obs, pqn.envs, recent), device_fill.pond_for(obs, filled)
    memory = replay.HistoryPonds(*ponds, rewarded)
    device_memory.check_fits(runs * (memory.recent.nbytes + memory.filled.nbytes), runs * (recent + filled))
    return memory


class PouredHistory:
    """A history and its lake; `state` is an argument and a result of the jitted functions."""

    def __init__(
        self, memory: HistoryPonds, obs: jax.Array, lake: DeviceLake, newest: int | None = None
    ) -> None:
        """An empty history of at most the `newest` steps; the first ones start from `obs`, (lanes, ...)."""
        self.memory, self.lake = memory, lake
        room = memory.recent.lanes * memory.recent.capacity
        self._newest = None if newest is None else newest - room  # of the lake: `recent` has the others
        recent = memory.recent.begin(memory.recent.init(), obs)
        self.state = replay.HistoryState(recent, memory.filled.init(), jnp.int32(0))
        self._poured = 0  # steps of each lane of `recent` that are in the lake

    def pour(self, note: dict[str, Any]) -> None:
        """Hand new steps over to the lake, which writes them in the background; they stay on the device."""
        recent = self.state.recent
        arena.pour_new(self.memory.recent, recent, self._poured, self.lake, note, "raise replay_pond")
        self._poured = int(recent.steps)

    def durable(self, note: dict[str, Any]) -> Commit | None:
        """The newest commit, once all steps are in it."""
        self.pour(note)
        return self.lake.wait()

    def fill(self, commit: int, seed: tuple[int, int]) -> None:
        """Load a uniform sample of the steps of a commit, the same for the same `seed`; empty `recent`."""
        with Lake.open(self.lake.path, commit) as lake:
            filled, newest = self.state.filled, self._newest
            older = len(lake) if newest is None else min(newest, len(lake))
            self.state = self.state._replace(filled=None)  # type: ignore[arg-type]  # its memory is reused
            rng = np.random.default_rng(seed)
            shape, filled = device_fill.fill(self.memory.filled, filled, lake, rng, newest=newest)
        self.memory = replace(self.memory, filled=shape)
        recent = self.memory.recent.empty(self.state.recent)
        self.state = jax.block_until_ready(replay.HistoryState(recent, filled, jnp.int32(older)))  # type: ignore[no-untyped-call]


# --- training ------------------------------------------------------------------------------------------


@lazy.jit(static_argnames=("pqn", "memory", "share", "recompute"), donate_argnames=("state", "history"))
def train(
    pqn: PQN,
    state: PQNState,
    updates: int,
    memory: HistoryPonds | None = None,
    history: HistoryState | None = None,
    share: float = 0.0,
    recompute: bool = False,
) -> tuple[PQNState, PQNMetrics, HistoryState | None]:
    """A portion of updates, with a `share` of each epoch from a history; metrics are summed over them.

    recompute: compute the targets before every epoch without a history as well.
    """

    def update(
        _: int, carry: tuple[PQNState, PQNMetrics, HistoryState | None]
    ) -> tuple[PQNState, PQNMetrics, HistoryState | None]:
        state, sums, history = carry
        if memory is not None and history is not None:
            seen = pqn.collect(state)
            history = memory.add(history, seen.rollout)
            draw = partial(memory.draw, history)
            state, metrics = replay.learn(pqn, state, seen, draw, share=share)
        elif recompute:
            state, metrics = replay.learn(pqn, state, pqn.collect(state))
        else:
            state, _rollout, metrics = pqn.update(state)
        return state, jax.tree.map(jnp.add, sums, metrics), history

    found: tuple[PQNState, PQNMetrics, HistoryState | None] = jax.lax.fori_loop(
        0, updates, update, (state, agents_pqn.PQNMetrics.zero(), history)
    )
    return found


@lazy.jit(static_argnames=("pqn", "recompute"))
def train_seeds(
    pqn: PQN, states: Sequence[PQNState], updates: int, recompute: bool = False
) -> tuple[list[PQNState], list[PQNMetrics]]:
    """`train` without replay for several agents: one after another on a CPU, under `vmap` elsewhere."""
    alone = replace(pqn, spread=False)  # agents are divided among the devices, not the environments of each
    trained = fleet.over_agents(
        lambda state: train(alone, state, updates, recompute=recompute)[:2],
        fleet.stack(list(states)),
        divide=pqn.env.resumes,
    )
    agents = [fleet.pick(trained, number) for number in range(len(states))]
    return [state for state, _ in agents], [sums for _, sums in agents]


@stopping.deferring("portion")
def run(
    config: SingleConfig,
    folder: str | Path,
    *,
    seeds: int | None = None,
    resume: bool = False,
    resume_from: int | None = None,
    start_over: bool = False,
    loggers: Sequence[Logger] = (),
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train to the end in `folder`, from the newest usable checkpoint there if it has a run; returns metrics.

    `resume`: there must be a run; `resume_from`: continue from that checkpoint; `start_over`: move what the
    folder holds to a dated folder first. `seeds`: train this many agents in one program, from the seed of
    `config` on, each as a run in `folder/seed-<number>`; returns the metrics of each, by that name.
    """
    how = Resume(required=resume or resume_from is not None, number=resume_from, start_over=start_over)
    configs = {on_disk(folder): config} if seeds is None else of_seeds(config, on_disk(folder), seeds)
    for place in configs:
        how.find(place)
    pqn = build(config)
    memory = None
    if config.replay_share:
        memory = make_memory(
            pqn.env.obs,
            config.pqn,
            config.replay_pond,
            config.env_steps,
            config.checkpoint_every * config.evaluate_every,
            newest=config.replay_newest,
            rewarded=config.replay_rewarded,
            runs=len(configs),
        )
    evaluate = arena.evaluator_of(config, pqn.network)
    with ExitStack() as stack:
        trainings: list[_SingleTraining] = []
        for place, own in configs.items():
            kept = stack.enter_context(create_run(place, "single", own, how, loggers))
            talk = tell
            if seeds is not None:
                talk = partial(lambda name, line: tell(f"{name} {line}"), place.name)
            trainings.append(_SingleTraining(own, pqn, memory, evaluate, kept, how, talk))
            stack.enter_context(trainings[-1].loop)
        while going := [each for each in trainings if each.portion()]:
            behind = min(each.updates for each in going)  # after a resume some may be ahead of others
            train_portion([each for each in going if each.updates == behind])
    found = {each.kept.folder.name: each.metrics or each.kept.last_line() for each in trainings}
    return found if seeds is not None else found.popitem()[1]


def of_seeds(config: SingleConfig, folder: Path, count: int) -> dict[Path, SingleConfig]:
    """The settings of several seeds by the folders of their runs, each pushed to a folder of its own."""
    found = {}
    for seed in range(config.seed, config.seed + count):
        name = f"seed-{seed}"
        push_to = config.push_to and f"{config.push_to.rstrip('/')}/{name}"
        found[folder / name] = replace(config, seed=seed, push_to=push_to)
    return found


def train_portion(runs: list[_SingleTraining]) -> None:
    """Train a portion of runs that have made the same number of updates, those without replay together."""
    count, began = runs[0].portion(), time.perf_counter()
    if len(runs) == 1 or runs[0].history is not None:  # ponds are not stacked, which would copy them
        for each in runs:
            each.finish_portion(each.train(count), count)
        return
    recompute = runs[0].config.recompute_targets
    states, sums = train_seeds(runs[0].pqn, [each.state for each in runs], count, recompute)
    sums = jax.tree.map(np.asarray, sums)  # waits until it is done
    spent = time.perf_counter() - began
    for each, state, own in zip(runs, states, sums, strict=True):
        each.state = state
        each.seconds["train"] += spent
        each.finish_portion(own, count)


class _SingleTraining:
    """A run in progress."""

    def __init__(
        self,
        config: SingleConfig,
        pqn: PQN,
        memory: HistoryPonds | None,
        evaluate: Evaluator,
        kept: Run,
        how: Resume,
        tell: Callable[[str], None],
    ) -> None:
        self.config, self.pqn, self.evaluate, self.kept, self.tell = config, pqn, evaluate, kept, tell
        self.state = pqn.init(jax.random.PRNGKey(config.seed))
        self.seconds = dict.fromkeys(("train", "pour", "fill"), 0.0)  # of the whole run
        noted = {"frames": 0} if memory is None else {"frames": 0, "lake_commit": None}
        open_lake = partial(arena.open_lake, config, kept.lake_folder, pqn.env.obs)
        checkpoint, lake = how.take_up(
            kept, self._arrays(), noted, open_lake if config.replay_share else lambda _: None
        )
        if checkpoint is not None:
            self.state = arena.restored(self.state, checkpoint.arrays["agent"], pqn.env)
            self.seconds |= checkpoint.state.get("seconds", {})  # older runs lack them
            tell(f"resuming from checkpoint {checkpoint.number}, {checkpoint.state['frames']:,} steps")
        self.history: PouredHistory | None = None
        self.filled = self.updates
        """the number of the update at which the history was filled"""
        if memory is not None and lake is not None:
            obs, newest = self.state.env.obs, config.replay_newest
            self.history = PouredHistory(memory, obs, lake, newest)
            if checkpoint is not None and 0 < self.updates < pqn.total_updates:
                self.history.fill(checkpoint.state["lake_commit"], (config.seed, self.updates))
        guard = Guard(kept.folder, unit="evaluation")
        self.loop = Loop(kept, lake, guard, pushing=Pushing(kept.folder, config.push_to))
        self.logged = sum(self.seconds.values())  # of them at the last line of the log
        self.metrics: dict[str, Any] = {}
        """of the last portion"""

    @property
    def updates(self) -> int:
        """So far."""
        return int(self.state.updates)

    @property
    def env_steps(self) -> int:
        """So far."""
        return self.updates * self.config.pqn.update_steps

    def _arrays(self) -> dict[str, Any]:
        """The arrays of a checkpoint."""
        return {"agent": self.state, "policy": self.state.params}

    def portion(self) -> int:
        """The number of updates until the next evaluation; 0 if the run has ended or must stop."""
        total, portion = self.pqn.total_updates, self.config.evaluate_every // self.config.pqn.update_steps
        if self.updates >= total or not self.loop.continues():
            return 0
        return min(portion - self.updates % portion, total - self.updates)

    def train(self, count: int) -> PQNMetrics:
        """Train `count` updates; the history is filled again whenever its recent steps are full."""
        stop, sums = self.updates + count, agents_pqn.PQNMetrics.zero()
        while (done := self.updates) < stop:
            began, part = time.perf_counter(), stop - done
            if self.history is None:
                recompute = self.config.recompute_targets
                self.state, new, _ = train(self.pqn, self.state, part, recompute=recompute)
            else:
                room = self.history.memory.recent.capacity // self.config.pqn.rollout
                if done - self.filled == room:
                    self._fill()
                    began = time.perf_counter()
                part = min(part, room - (done - self.filled))
                memory, share = self.history.memory, self.config.replay_share
                self.state, new, after = train(
                    self.pqn, self.state, part, memory, self.history.state, share=share
                )
                assert after is not None
                self.history.state = after
            sums = jax.tree.map(np.add, sums, new)  # waits until it is done
            self.seconds["train"] += time.perf_counter() - began
        if self.history is not None:
            began = time.perf_counter()
            self.loop.make_room(self.history.lake)
            self.history.pour({"env_steps": self.env_steps})
            self.seconds["pour"] += time.perf_counter() - began
        return sums

    def finish_portion(self, sums: PQNMetrics, count: int) -> None:
        """Evaluate after a portion of `count` updates; log, and save a checkpoint if it is due."""
        config, total, loop = self.config, self.pqn.total_updates, self.loop
        number = -(-self.updates // (config.evaluate_every // config.pqn.update_steps))
        due = number % config.checkpoint_every == 0 or self.updates == total
        metrics = arena.means(sums, count)
        metrics |= arena.evaluated(
            self.evaluate, self.state.params, self.env_steps, greedy=config.evaluation_greedy
        )
        if due and self.history is not None:
            self._fill()  # so a checkpoint needs no ponds
        spent = sum(self.seconds.values())
        metrics |= {
            **arena.emulator_frames(config, self.env_steps),
            "samples": self.env_steps * config.pqn.epochs,
            "gradient_steps": self.updates * config.pqn.gradient_steps,
            "env_steps_per_second": count * config.pqn.update_steps / (spent - self.logged),
        }
        if self.history is not None:
            metrics |= {f"seconds_{name}": round(each, 3) for name, each in self.seconds.items()}
        self.logged = spent
        loop.log(self.env_steps, metrics, number)
        self.tell(arena.scores_line(config, self.env_steps, metrics))
        if due:
            loop.take(number, self._arrays(), {"frames": self.env_steps, "seconds": dict(self.seconds)})
        push = number // config.checkpoint_every % config.push_every == 0
        loop.save(loop.write_taken, push=due and push)
        self.metrics = metrics

    def _fill(self) -> None:
        """Wait until the lake has all steps, and fill the history from that commit."""
        assert self.history is not None
        began = time.perf_counter()
        durable = partial(self.history.durable, {"env_steps": self.env_steps})
        commit = self.loop.require(LAKE, durable, "because replay reads all steps from the lake")
        assert commit is not None
        poured = time.perf_counter()
        if self.updates < self.pqn.total_updates:
            self.history.fill(commit.number, (self.config.seed, self.updates))
        self.filled = self.updates
        self.seconds["pour"] += poured - began
        self.seconds["fill"] += time.perf_counter() - poured
