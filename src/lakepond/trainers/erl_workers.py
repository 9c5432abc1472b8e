"""ERL on many machines: Ray workers play the agents, the learner gets their steps through the workers' lake.

    driver    population ──────▶ worker      plays two agents with noise, appends their steps to its own chain
              run/lake ◀──steps── chain      in the order (generation, agent, step)
              population, days ─▶ worker      plays two agents without noise
              fitness ◀──rewards──

A task is two agents of a generation, whatever the number of workers, and what an agent does depends on the
seed and the generation only. So the run has the same bits with any number of workers, and without any: it can
be resumed either way. A task that is lost with its worker is done again by another one. The workers' lake is
`workers` in the folder of the run, or in its bucket; what the learner has taken from it is in the run's lake.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents import fleet
from lakepond.agents.market_network import Array, Params
from lakepond.distributed import ray_cluster
from lakepond.distributed.ray_cluster import Cluster
from lakepond.distributed.workers import Workers
from lakepond.trainers import erl, programs
from lakepond.trainers.erl import Chance, Config, Explored
from lakepond.trainers.worker_chains import OnWorkers, StepsLocation, WorkerChain, WorkersLake, check_shared
from lakepond.types import Batch

AGENTS = 2
"""of a task"""


class ErlWorker:
    """Plays agents in an actor."""

    def __init__(self, config: Config, prices: tuple[Any, Any], place: str, name: str) -> None:
        programs.prepare_jax()
        self._config, self._market = config, erl.market_of(config, *prices)
        steps = AGENTS * config.episodes * config.rules.trading_days
        self._chain = WorkerChain(place, name, config.spec(self._market), steps, config.min_free)

    def explore(self, agents: Params, number: int, first: int, stop: int) -> StepsLocation:
        """Play agents [first, stop) of a generation with noise, and append their steps to the chain."""
        chance = Chance.of(self._config, self._market, number)
        group = fleet.pick(agents, slice(first, stop))
        start = self._chain.replay.recorded
        seen = erl.explore(self._config, self._market, group, chance, first)
        erl.record(self._market, self._chain.replay, seen, first)
        return self._chain.store(start, {"generation": number, "agents": [first, stop]})

    def judge(self, agents: Params, days: Any, first: int, stop: int) -> Any:
        """The rewards of agents [first, stop) on these days."""
        group = fleet.pick(agents, slice(first, stop))
        return np.asarray(erl.ErlInProcess(self._config, self._market).judge(group, jnp.asarray(days)))

    def close(self) -> None:
        """Release the lake."""
        self._chain.close()


class ErlOnWorkers(OnWorkers):
    """Plays the population of a run on workers, in place of `erl.ErlInProcess`."""

    def __init__(self, cluster: Cluster, config: Config, prices: tuple[Any, Any], folder: Path) -> None:
        """Start the workers; `prices`: the panel and the table that the market is made of."""
        self._config = config
        total = config.sizes.total
        self._groups = [(first, min(first + AGENTS, total)) for first in range(0, total, AGENTS)]
        self._lake = WorkersLake(folder, config.push_to)
        self._lag = 0.0  # from the first steps that a worker has stored until the learner has them all
        self._put = cluster.ray.put
        self._workers = Workers(cluster, partial(_worker, config, self._put(prices), self._lake.place))

    def explore(self, agents: Params, number: int) -> Iterator[tuple[int, Explored]]:
        """The steps of each group, by the number of its first agent, read from the chains of the workers."""
        ref = self._put(jax.device_get(agents))
        tasks = [(ref, number, *group) for group in self._groups]
        stored, oldest = dict[int, StepsLocation](), math.inf
        for task, found in self._workers.each("explore", tasks):
            if isinstance(found, Exception):
                raise found
            stored[task], oldest = found, min(oldest, time.monotonic())
        for task, (first, _) in enumerate(self._groups):
            yield first, _explored(self._config, self._lake.steps(stored[task], exclude=erl.WINDOWS))
        self._lag = time.monotonic() - oldest

    def judge(self, agents: Params, days: Array) -> Array:
        """The rewards of all agents on these days: (trading days, agents, first days)."""
        ref, first_days = self._put(jax.device_get(agents)), np.asarray(days)
        parts = self._workers.map("judge", [(ref, first_days, *group) for group in self._groups])
        return jnp.asarray(np.concatenate(parts, axis=1))

    def status(self) -> dict[str, Any]:
        """The metrics of the workers, as `lakepond watch` shows them."""
        return {**super().status(), "workers_lag_seconds": self._lag}


@contextmanager
def connect(config: Config, address: str, workers: int, gpus_per_worker: float) -> Iterator[Cluster]:
    """Connect to Ray during a block, before anything of the run is written."""
    with ray_cluster.connect(
        address, workers=workers, gpus_per_worker=gpus_per_worker, bucket=config.push_to
    ) as cluster:
        check_shared(cluster, config.push_to, "--cloud")
        yield cluster


def _worker(config: Config, prices: Any, place: str, name: str) -> ErlWorker:
    return ErlWorker(config, ray_cluster.import_ray().get(prices), place, name)


def _explored(config: Config, batch: Batch) -> Explored:
    """Steps of whole episodes from a lake, as they were recorded."""

    def fold(steps: Any) -> Any:
        return steps.reshape(-1, config.episodes, config.rules.trading_days, *steps.shape[1:])

    last = fold(batch.next_obs["position"])[:, :, -1:]
    position = np.concatenate([fold(batch.obs["position"]), last], axis=2)
    days = fold(batch.extras["day"]), fold(batch.extras["next_day"])
    return Explored(*days, position, fold(batch.action), fold(batch.reward))
