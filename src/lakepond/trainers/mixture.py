"""`mixture`: four agents learn alone; now and then all begin again from one that learned from them all (B).

The Lake is on disk; the agents' Pond is on the device, with one lane for each environment of each agent.

    while frames < N:
        1  each agent trains by itself with PQN, and adds its steps to the Pond
        2  when the Pond is full, it is poured into the Lake
        3  stop after a portion
        4  fill one BigPond from the Lake, uniformly
        5  train one BigAgent on it with DQN, each transition several times
        6  stop
        7  clone the agents from the BigAgent; reset their epsilon

Frames are counted over all agents, evaluations and resets are logged against them. With `agents=1` this is
one agent with resets from its own Lake, with `share=False` four agents that never meet: the two controls.
Steps 1 to 3 are one jitted function, `train(agents, pond, updates)`, so a run stops, goes on, is saved and
resumed anywhere; pouring and committing go on in the background meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond import stopping
from lakepond.agents.dqn import DQN
from lakepond.agents.fleet import over_agents, pick
from lakepond.agents.pqn import PQN, PQNMetrics, PQNState, Rollout
from lakepond.errors import ConfigError
from lakepond.flow.device_to_lake import DeviceLake
from lakepond.guards import Guard
from lakepond.lake.format.commits import Start
from lakepond.lake.read.lake import Lake
from lakepond.pond.device import DevicePond, PondState
from lakepond.runs import Run
from lakepond.runs.metrics import Logger
from lakepond.runs.resume import Resume
from lakepond.trainers import arena, big_agent, game_settings, ponds
from lakepond.trainers.game_settings import MixtureConfig
from lakepond.trainers.limits import check_limits
from lakepond.trainers.loop import Loop
from lakepond.trainers.saving import LAKE, Unsaved

PRESETS = game_settings.MIXTURE


@dataclass(frozen=True)
class Mixture:
    """What the settings come to; nothing here changes."""

    config: MixtureConfig
    pqn: PQN
    dqn: DQN
    pond: DevicePond
    big_pond: DevicePond

    @property
    def update_frames(self) -> int:
        """Frames of one update of all agents."""
        return self.config.agents * self.config.pqn.frames


class Ends(NamedTuple):
    """Where in a run something happens, in updates."""

    pond: int
    evaluation: int
    portion: int
    total: int

    def next(self, done: int) -> int:
        """Updates until the next of them."""
        steps = [every - done % every for every in self[:3]]
        return min(*steps, self.total - done)


def build(config: MixtureConfig) -> Mixture:
    """The algorithm for these settings; `ConfigError` if they are invalid."""
    check_limits(config, game_settings.LIMITS)
    update = config.agents * config.pqn.frames
    arena.check_budget(config.frames, config.portion, update)
    if config.pond % config.pqn.frames:
        raise ConfigError(
            f"a Pond of {config.pond:,} steps is not a multiple of an agent's update of "
            f"{config.pqn.frames:,} frames; "
            f"take {max(1, config.pond // config.pqn.frames) * config.pqn.frames:,}."
        )
    if config.evaluation_episodes % config.agents:
        raise ConfigError(
            f"{config.evaluation_episodes} episodes cannot be divided evenly among {config.agents} agents; "
            "choose a multiple."
        )
    env = arena.make_env(config.suite, config.game)
    network = arena.make_network(config.network, env, config.hidden, dueling=config.dueling)
    epsilon = arena.make_epsilon(
        config.epsilon_kind,
        config.epsilon_start,
        config.epsilon_end,
        int(config.frames / config.agents * config.epsilon_share),
        config.epsilon_offsets,
    )
    return Mixture(
        config,
        PQN(env, network, epsilon, config.pqn, config.frames // update),
        big_agent.make_dqn(config, network),
        ponds.make_pond(env.obs, config.agents * config.pqn.envs, config.agents * config.pond),
        big_agent.make_pond(config, env.obs),
    )


# --- steps 1 to 3: train a portion ---------------------------------------------------------------


@partial(jax.jit, static_argnums=0, donate_argnums=(1, 2))
def train(
    mixture: Mixture, agents: PQNState, pond: PondState | None, updates: jax.Array
) -> tuple[PQNState, PondState | None, PQNMetrics]:
    """Run `updates` updates of every agent; metrics are summed over them, one entry per agent."""
    pqn, numbers = mixture.pqn, jnp.arange(mixture.config.agents)

    def one(state: PQNState, number: jax.Array) -> tuple[PQNState, Rollout | None, PQNMetrics]:
        state, rollout, metrics = pqn.update(state, number)
        return state, None if pond is None else rollout, metrics

    def update(
        _: int, carry: tuple[PQNState, PondState | None, PQNMetrics]
    ) -> tuple[PQNState, PondState | None, PQNMetrics]:
        agents, held, sums = carry
        agents, rollouts, metrics = over_agents(one, agents, numbers)
        if held is not None:
            held = mixture.pond.add(held, arena.as_lanes(rollouts))
        return agents, held, jax.tree.map(jnp.add, sums, metrics)

    zero = jax.tree.map(lambda x: jnp.zeros(len(numbers), x.dtype), PQNMetrics.zero())
    result: tuple[PQNState, PondState | None, PQNMetrics] = jax.lax.fori_loop(
        0, updates, update, (agents, pond, zero)
    )
    return result


# --- the run -------------------------------------------------------------------------------------


@stopping.deferring("portion")
def run(
    config: MixtureConfig,
    folder: str | Path,
    *,
    loggers: Sequence[Logger] = (),
    start_over: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Train to the end in a run's folder, from its last checkpoint if there is one; returns the metrics.

    `start_over`: move what the folder holds to a dated folder first.
    """
    how = Resume(start_over=start_over)
    mixture = build(config)
    if config.share:
        arena.check_memory(mixture.pond, mixture.big_pond)
    with Run.create(
        folder, "mixture", config, loggers=loggers, keep_every=config.keep_every, prepare=how.prepare
    ) as kept:
        return _Training(mixture, kept, how, tell).go_on()


class _Training:
    """A run in progress: what the pure functions above are called with, and the files beside it."""

    def __init__(self, mixture: Mixture, kept: Run, how: Resume, tell: Callable[[str], None]) -> None:
        config, pqn = mixture.config, mixture.pqn
        self.mixture, self.kept, self.tell = mixture, kept, tell
        frames = mixture.update_frames
        self.ends = Ends(
            config.pond // config.pqn.frames,
            max(1, config.evaluate_every // frames),
            max(1, config.portion // frames),
            pqn.total_updates,
        )
        evaluator = partial(
            arena.make_evaluate,
            arena.make_env(config.suite, config.game, evaluates=True),
            pqn.network,
            epsilon=config.evaluation_epsilon,
            most_steps=config.evaluation_steps,
        )
        self.evaluate_one = evaluator(config.evaluation_episodes)
        self.evaluate_each = evaluator(config.evaluation_episodes // config.agents, agents=config.agents)
        key_agents, key_big = jax.random.split(jax.random.PRNGKey(config.seed))
        self.agents = over_agents(pqn.init, jax.random.split(key_agents, config.agents))
        self.big = big_agent.BigAgent(mixture, key_big)
        self.scores = np.zeros(config.agents)
        self.seconds = dict.fromkeys(("train", "pour", "fill", "learn", "evaluate"), 0.0)
        state = self._state() | {"lake_commit": None}
        checkpoint, self.lake = how.take_up(kept, self._arrays(), state, self._open_lake)
        if checkpoint is not None:
            self.agents = arena.restored(self.agents, checkpoint.arrays["agents"], pqn.env)
            state = checkpoint.state
            self.big.restore(checkpoint.arrays["big"], state["resets"], state["big_samples"])
            self.scores = np.array(state["scores"])
            self.seconds = state["seconds"]
            tell(f"resuming from checkpoint {checkpoint.number}, {state['frames']:,} frames")
        self.ponds: ponds.Ponds | None = None
        if self.lake is not None:
            self.ponds = ponds.Ponds(mixture.pond, self.agents.env.obs, self.lake)
        self.loop = Loop(kept, self.lake, Guard(kept.folder, unit="evaluation"))
        self._unsaved: Unsaved | None = None

    def _open_lake(self, commit: int | Start) -> DeviceLake | None:
        """The Lake as it was at a commit, or empty; none if the agents share nothing."""
        if not self.mixture.config.share:
            return None
        return ponds.open_lake(self.mixture.pond, self.kept.lake_folder, commit)

    @property
    def updates(self) -> int:
        """Of each agent, so far."""
        return int(self.agents.updates[0])

    @property
    def frames(self) -> int:
        """Of all agents together, so far."""
        return self.updates * self.mixture.update_frames

    @property
    def samples(self) -> int:
        """Transitions that gradients were taken of, so far."""
        return self.frames * self.mixture.config.pqn.epochs + self.big.samples

    def go_on(self) -> dict[str, Any]:
        """To the end."""
        told: dict[str, Any] = {}
        sums, since = None, self.updates
        config = self.mixture.config
        with self.loop:
            while self.updates < self.ends.total and self.loop.goes_on():
                new = self._train(self.ends.next(self.updates))
                sums = new if sums is None else jax.tree.map(np.add, sums, new)
                at_end = self.updates == self.ends.total
                resets = self.updates % self.ends.portion == 0
                if self.updates % self.ends.evaluation == 0 or resets or at_end:
                    told = self._evaluate(sums, self.updates - since)
                    sums, since = None, self.updates
                    samples = config.big_last if at_end else config.big_samples if resets else 0.0
                    if samples and config.share:
                        self._reset(samples)
                    number = -(-self.updates // self.ends.evaluation)
                    if resets or at_end or number % config.checkpoint_every == 0:
                        self._take(number)
                    self.loop.save(self._save)
        return told

    def _train(self, count: int) -> PQNMetrics:
        """Steps 1 and 2: the agents train, full ponds are poured while they go on."""
        began = time.perf_counter()
        held = None if self.ponds is None else self.ponds.state
        self.agents, held, sums = train(self.mixture, self.agents, held, count)
        found: PQNMetrics = jax.tree.map(np.asarray, sums)  # waits until it is done
        self.seconds["train"] += time.perf_counter() - began
        if self.ponds is not None and held is not None:
            self.ponds.state = held
            if self.updates % self.ends.pond == 0:
                began = time.perf_counter()
                self.loop.make_room(self.ponds.lake)
                self.ponds.pour({"frames": self.frames})
                self.seconds["pour"] += time.perf_counter() - began
        return found

    def _evaluate(self, sums: PQNMetrics, updates: int) -> dict[str, Any]:
        """Every agent, in environments of its own."""
        began = time.perf_counter()
        key = arena.evaluation_key(self.frames)
        keys = jax.random.split(key, len(self.scores))
        self.scores = np.asarray(self.evaluate_each(self.agents.params, keys)).mean(1)
        greedy = {}
        if self.mixture.config.evaluation_greedy:
            greedy = {"evaluation_greedy": float(self.evaluate_each(self.agents.params, keys, 0.0).mean())}
        self.seconds["evaluate"] += time.perf_counter() - began
        told = arena.means(sums, updates) | {
            "evaluation": float(self.scores.mean()),
            "evaluation_best": float(self.scores.max()),
            "evaluation_agents": self.scores.tolist(),
            **greedy,
            "samples": self.samples,
            "big_samples": self.big.samples,
            **{f"seconds_{name}": round(spent, 3) for name, spent in self.seconds.items()},
        }
        self.loop.log(self.frames, told, -(-self.updates // self.ends.evaluation))
        self.tell(
            f"{self.frames:>10,} frames  score {told['score']:6.2f}  evaluation {told['evaluation']:6.2f}"
            f"  best {told['evaluation_best']:6.2f}"
        )
        return told

    def _evaluate_big(self) -> dict[str, float]:
        """The BigAgent; thrice at the end, for the score of a run is that of three evaluations."""
        greedy = self.mixture.config.evaluation_greedy
        rounds = [self.frames + 1024 * i for i in range(3 if self.updates == self.ends.total else 1)]
        found = [
            arena.evaluated(self.evaluate_one, self.big.params, frames, greedy=greedy, named="_after")
            for frames in rounds
        ]
        return {name: float(np.mean([each[name] for each in found])) for name in found[0]}

    def _reset(self, samples: float) -> None:
        """Steps 4 to 7, each transition several times."""
        mixture, config = self.mixture, self.mixture.config
        assert self.ponds is not None
        began = time.perf_counter()
        durable = partial(self.ponds.durable, {"frames": self.frames})
        commit = self.loop.require(LAKE, durable, "because a reset reads all steps from the lake")
        assert commit is not None
        self.seconds["pour"] += time.perf_counter() - began
        best = pick(self.agents.params, int(self.scores.argmax()))
        with Lake.open(self.ponds.lake.path, commit.number) as lake:
            found = self.big.train(best, lake, samples, self.seconds)
        told = self._evaluate_big()
        after = told["evaluation_after"]
        who = np.ones(config.agents, bool) if config.clone_to == "all" else self.scores < after
        self.agents = big_agent.clone(mixture, self.agents, found.agent, who)
        before = float(self.scores.mean())
        line = {
            "reset": self.big.resets,
            "evaluation_before": before,
            **told,
            "cloned": int(who.sum()),
            "samples": self.samples,
            "lake_steps": self.ponds.lake.recorded,
            **found.metrics,
        }
        self.loop.log(self.frames, line)
        self.tell(
            f"{self.frames:>10,} frames  reset {self.big.resets}: {before:.2f} before, {after:.2f} after"
        )

    def _take(self, number: int) -> None:
        """Note a checkpoint of this moment, which `_save` writes, now or at a later evaluation.

        A later moment would not do: the ponds are poured at a checkpoint, and where steps are in the lake
        decides what the BigAgent learns from.
        """
        if self.ponds is not None:
            self.ponds.pour({"frames": self.frames})
        state = self._state() | {"metrics_bytes": self.kept.metrics_bytes}
        recorded = 0 if self.lake is None else self.lake.recorded
        self._unsaved = Unsaved(number, self._arrays(), state, recorded)

    def _save(self) -> None:
        """Write the checkpoint that is not on disk yet, if there is one."""
        if self._unsaved is None:
            return
        number, arrays, state, recorded = self._unsaved
        commit = None
        if self.lake is not None:
            commit = self.loop.attempt(LAKE, partial(self.lake.commit_at, recorded))
        state = {**state, "lake_commit": None if commit is None else commit.number}
        save = partial(self.kept.save, number, arrays, state)
        if LAKE not in self.loop.failing and self.loop.checkpoint(save):
            self._unsaved = None
        else:  # the next portion reuses the memory of the arrays
            self._unsaved = self._unsaved._replace(arrays=jax.tree.map(np.array, arrays))

    def _arrays(self) -> dict[str, Any]:
        """What a checkpoint holds of the agents; the policy is the best one's."""
        best = pick(self.agents.params, int(self.scores.argmax()))
        return {"agents": self.agents, "big": self.big.params, "policy": best}

    def _state(self) -> dict[str, Any]:
        """The counters of a checkpoint."""
        return {
            "frames": self.frames,
            "scores": self.scores.tolist(),
            "resets": self.big.resets,
            "big_samples": self.big.samples,
            "seconds": dict(self.seconds),
        }
