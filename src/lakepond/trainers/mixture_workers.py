"""`mixture` on many machines: each agent trains on a Ray worker, with a GPU share of its own.

    driver    agent ──────────────▶ worker    trains it for some updates, appends its steps to its own chain
              agent ◀────────────── worker
              Pond ◀──steps── chain           in the order (update, step, agent, environment)

The driver keeps the Pond, the Lake and the BigAgent: it fills the Pond from the chains, as the agents do in
one process, and everything after that is the same. After a reset the agents that it sends out are copies of
the BigAgent. An agent goes with its environments, optimiser and random numbers, so a task that is lost with
its worker is done again by another one with the same result, and the run ends with the bits of one process
on CPUs of the same kind.

Emulators and other environments of the host cannot be moved. They stay in the worker that opened them, which
gets the tasks of its agent as long as it lives; any other worker starts new episodes, as a resumed run does.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents import fleet
from lakepond.agents.pqn import PQNMetrics, PQNState, Rollout
from lakepond.distributed import ray_cluster
from lakepond.distributed.ray_cluster import Cluster
from lakepond.distributed.workers import Workers
from lakepond.envs.vector import EnvState
from lakepond.pond.device import Added, PondState
from lakepond.trainers import arena, mixture, programs
from lakepond.trainers.mixture import MixtureAlgorithm, MixtureConfig
from lakepond.trainers.worker_chains import OnWorkers, StepsLocation, WorkerChain, WorkersLake, check_shared
from lakepond.types import Batch


class Trained(NamedTuple):
    """The result of a task."""

    agent: PQNState
    metrics: PQNMetrics
    """summed over the updates"""
    stored: StepsLocation | None
    """None: the run has no lake"""
    started: EnvState | None
    """the new episodes that the steps start from; None: they continue those of the task before"""


class MixtureWorker:
    """Trains agents in an actor, one at a time."""

    def __init__(self, config: MixtureConfig, place: str, debug_nans: bool, name: str) -> None:
        programs.prepare_jax()
        jax.config.update("jax_debug_nans", debug_nans)  # type: ignore[no-untyped-call]
        self._mixture = mixture.build(config)
        self._hosted: dict[int, tuple[int, EnvState]] = {}  # by agent: after its updates, its environments
        self._chain: WorkerChain | None = None
        if config.share:
            spec = arena.spec_of(self._mixture.pond.obs)
            self._chain = WorkerChain(place, name, spec, 2 * config.pond, config.min_free)

    def train(self, agent: bytes, number: int, updates: int) -> Trained:
        """Train agent `number`, which is pickled, for some updates."""
        state: PQNState = jax.tree.map(jnp.asarray, pickle.loads(agent))
        state, started = self._with_environments(state, number)
        sums = PQNMetrics.zero()
        start = 0 if self._chain is None else self._chain.replay.recorded
        for _ in range(updates):
            state, rollout, metrics = _update(self._mixture, state, number)
            sums = jax.tree.map(jnp.add, sums, metrics)
            if self._chain is not None:
                self._record(jax.tree.map(np.asarray, rollout))
        if not self._mixture.pqn.env.resumes:
            self._hosted[number] = int(state.updates), state.env
        stored = None
        if self._chain is not None:
            stored = self._chain.store(start, {"agent": number, "updates": int(state.updates)})
        return Trained(jax.device_get(state), jax.device_get(sums), stored, jax.device_get(started))

    def _with_environments(self, state: PQNState, number: int) -> tuple[PQNState, EnvState | None]:
        """The agent with environments that this process can step, and these if they are new."""
        env = self._mixture.pqn.env
        if env.resumes:
            return state, None
        updates, hosted = self._hosted.pop(number, (-1, state.env))
        if updates == int(state.updates):
            return state._replace(env=hosted), None
        key = jax.random.fold_in(jax.random.fold_in(state.key, number), state.updates)
        fresh = env.reset(key, self._mixture.config.pqn.envs)
        return state._replace(env=fresh), fresh

    def _record(self, rollout: Rollout) -> None:
        assert self._chain is not None
        for step in range(len(rollout.reward)):
            self._chain.replay.record(
                obs=rollout.obs[step],
                action=rollout.action[step],
                reward=rollout.reward[step],
                next_obs=rollout.next_obs[step],
                terminated=rollout.terminated[step],
                truncated=rollout.truncated[step],
            )

    def close(self) -> None:
        """Release the lake."""
        if self._chain is not None:
            self._chain.close()


class MixtureOnWorkers(OnWorkers):
    """Trains the agents of a run on workers, in place of `MixtureInProcess`."""

    def __init__(self, cluster: Cluster, made: MixtureAlgorithm, folder: Path) -> None:
        """Start the workers; `folder`: of the run."""
        self._mixture, self._put, self._pickle = made, cluster.ray.put, cluster.ray.cloudpickle.dumps
        self._lake = WorkersLake(folder, made.config.push_to)
        nans = jax.config.jax_debug_nans  # type: ignore[attr-defined]
        self._workers = Workers(cluster, partial(MixtureWorker, made.config, self._lake.place, nans))

    def train(
        self, agents: PQNState, pond: PondState | None, updates: int
    ) -> tuple[PQNState, PondState | None, PQNMetrics]:
        """As `mixture.train_agents`: the agents and the Pond after some updates, and the sums of metrics."""
        held = jax.device_get(agents)
        # Ray would unpickle it before the worker has made its games, and import all of gymnax for its classes
        pickled = [self._pickle(fleet.pick(held, i)) for i in range(self._mixture.config.agents)]
        tasks = [(self._put(agent), i, updates) for i, agent in enumerate(pickled)]
        done: list[Trained] = self._workers.map("train", tasks)
        if pond is not None:
            if any(each.started is not None for each in done):
                before = zip(done, held.env.obs, strict=True)
                first = [obs if each.started is None else each.started.obs for each, obs in before]
                pond = _begin(self._mixture, pond, np.concatenate(first))
            pond = self._fill(pond, updates, done)
        return fleet.stack([each.agent for each in done]), pond, fleet.stack([each.metrics for each in done])

    def _fill(self, pond: PondState, updates: int, done: list[Trained]) -> PondState:
        """Add what the agents have done to the Pond, a rollout at a time."""
        settings = self._mixture.config.pqn
        added = [_added(self._lake.steps(each.stored), each.agent.env.obs) for each in done if each.stored]
        lanes: Added = jax.tree.map(lambda *each: np.concatenate(each, axis=1), *added)
        for at in range(0, updates * settings.rollout, settings.rollout):
            rollout = jax.tree.map(lambda x: x[at : at + settings.rollout], lanes)  # noqa: B023
            pond = _add(self._mixture, pond, rollout)
        return pond


@contextmanager
def connect(config: MixtureConfig, address: str, gpus_per_agent: float) -> Iterator[Cluster]:
    """Connect to Ray during a block, with a worker for each agent, before anything of the run is written."""
    with ray_cluster.connect(
        address, workers=config.agents, gpus_per_worker=gpus_per_agent, bucket=config.push_to
    ) as cluster:
        check_shared(cluster, config.push_to, "--push-to")
        yield cluster


@partial(jax.jit, static_argnums=0)
def _update(made: MixtureAlgorithm, agent: PQNState, number: int) -> tuple[PQNState, Rollout, PQNMetrics]:
    return made.pqn.update(agent, number)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _begin(made: MixtureAlgorithm, pond: PondState, obs: jax.Array) -> PondState:
    return made.pond.begin(pond, obs)


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def _add(made: MixtureAlgorithm, pond: PondState, rollout: Added) -> PondState:
    return made.pond.add(pond, rollout)


def _added(batch: Batch, last: Any) -> Added:
    """The steps of one agent as its pond takes them, (steps, environments, ...); `last`: the next obs."""
    count = len(last)

    def fold(values: Any) -> Any:
        return np.asarray(values).reshape(-1, count, *np.shape(values)[1:])

    following: Any = np.concatenate([fold(batch.obs)[1:], last[None]])
    return Added(
        action=fold(batch.action),
        reward=fold(batch.reward),
        next_obs=fold(batch.next_obs),
        terminated=fold(batch.terminated),
        truncated=fold(batch.truncated),
        reset_obs=following,
    )
