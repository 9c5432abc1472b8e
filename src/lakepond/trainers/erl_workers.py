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

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.agents import population
from lakepond.agents.market_network import Array, Params
from lakepond.distributed import ray_cluster
from lakepond.distributed.ray_cluster import Cluster
from lakepond.distributed.workers import Workers
from lakepond.errors import CloudError, ConfigError
from lakepond.flow.following.chains import Chains, chains_at
from lakepond.lake import writers
from lakepond.replay import Replay
from lakepond.runs.run import WORKERS
from lakepond.trainers import erl, programs
from lakepond.trainers.erl import Chance, Config, Explored
from lakepond.types import Batch

AGENTS = 2
"""of a task"""
PUSH_SECONDS = 300.0


class Stored(NamedTuple):
    """Where the steps of a task are: durable before the task is done."""

    chain: str
    commit: int
    first: int
    stop: int


class Worker:
    """Plays agents in an actor; a process that is started again has a chain of its own."""

    def __init__(self, config: Config, prices: tuple[Any, Any], place: str, name: str) -> None:
        programs.prepare_jax()
        self._config, self._market = config, erl.market_of(config, *prices)
        self._writer = f"{name}-{os.urandom(4).hex()}"
        self._folder, cloud = Path(place), None
        if "://" in place:  # of a fixed name, so that the next worker deletes what a killed one left
            digest = hashlib.blake2b(place.encode(), digest_size=6).hexdigest()
            self._folder, cloud = Path(tempfile.gettempdir(), f"lakepond-worker-{digest}-{name}"), place
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir(mode=0o700)
        self._pushes = cloud is not None
        self._replay = Replay.open(
            self._folder,
            config.spec(self._market),
            AGENTS * config.episodes * config.rules.trading_days,  # in memory, until they are committed
            cloud=cloud,
            writer=self._writer,
            min_free=config.min_free,
            merge_after=None,
        )

    def explore(self, agents: Params, number: int, first: int, stop: int) -> Stored:
        """Play agents [first, stop) of a generation with noise, and append their steps to the chain."""
        replay, chance = self._replay, Chance.of(self._config, self._market, number)
        start = replay.recorded
        group = population.take(agents, slice(first, stop))
        erl.record(self._market, replay, erl.explore(self._config, self._market, group, chance, first), first)
        commit = replay.commit({"generation": number, "agents": [first, stop]})
        chain = self._writer
        if self._pushes:
            status = replay.push(wait=True, timeout=PUSH_SECONDS)
            if not status.done:
                raise CloudError(f"the steps of {chain} could not be uploaded: {status}")
            chain = writers.chain_of(self._folder, chain)
        return Stored(chain, commit.number, start, commit.recorded)

    def judge(self, agents: Params, days: Any, first: int, stop: int) -> Any:
        """The rewards of agents [first, stop) on these days."""
        group = population.take(agents, slice(first, stop))
        return np.asarray(erl.InProcess(self._config, self._market).judge(group, jnp.asarray(days)))

    def close(self) -> None:
        """Release the lake; what was not uploaded then is not needed."""
        self._replay.close()
        if self._pushes:
            shutil.rmtree(self._folder, ignore_errors=True)


class OnWorkers:
    """Plays the population of a run on workers, in place of `erl.InProcess`; used in a `with` block."""

    def __init__(self, cluster: Cluster, config: Config, prices: tuple[Any, Any], folder: Path) -> None:
        """Start the workers; `prices`: the panel and the table that the market is made of."""
        self._config = config
        total = config.sizes.total
        self._groups = [(first, min(first + AGENTS, total)) for first in range(0, total, AGENTS)]
        self._folder, self._place = folder.absolute() / WORKERS, _place(config)
        self._chains: Chains | None = None
        self._clear()
        self._put = cluster.ray.put
        where = self._place or str(self._folder)
        self._workers = Workers(cluster, partial(_worker, config, self._put(prices), where))

    def explore(self, agents: Params, number: int) -> Iterator[tuple[int, Explored]]:
        """The steps of each group, by the number of its first agent, read from the chains of the workers."""
        ref = self._put(jax.device_get(agents))
        stored = self._workers.map("explore", [(ref, number, *group) for group in self._groups])
        if self._chains is None:
            self._chains = chains_at(self._place or self._folder)
        for (first, _), each in zip(self._groups, stored, strict=True):
            head = {each.chain: self._chains.commit(each.chain, each.commit)}
            with self._chains.lake(head) as lake:
                batch = lake.steps(each.first, each.stop, exclude=erl.WINDOWS)
            yield first, _explored(self._config, batch)

    def judge(self, agents: Params, days: Array) -> Array:
        """The rewards of all agents on these days: (trading days, agents, first days)."""
        ref, first_days = self._put(jax.device_get(agents)), np.asarray(days)
        parts = self._workers.map("judge", [(ref, first_days, *group) for group in self._groups])
        return jnp.asarray(np.concatenate(parts, axis=1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        if self._chains is not None:
            self._chains.close()
        self._clear()

    def _clear(self) -> None:
        """Delete the workers' lake on this disk: the run's lake has what was taken from it."""
        shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def connect(config: Config, address: str, workers: int) -> Iterator[Cluster]:
    """Connect to Ray during a block, before anything of the run is written."""
    with ray_cluster.connect(address, workers=workers) as cluster:
        hosts = {node["NodeManagerAddress"] for node in cluster.ray.nodes() if node["Alive"]}
        if config.push_to is None and len(hosts) > 1:
            raise ConfigError(
                f"the steps of workers on {len(hosts)} machines need a bucket; give one with --cloud URL."
            )
        yield cluster


def _place(config: Config) -> str | None:
    """The URL of the workers' lake; None if it is on this disk."""
    return None if config.push_to is None else f"{config.push_to.rstrip('/')}/{WORKERS}"


def _worker(config: Config, prices: Any, place: str, name: str) -> Worker:
    return Worker(config, ray_cluster.import_ray().get(prices), place, name)


def _explored(config: Config, batch: Batch) -> Explored:
    """Steps of whole episodes from a lake, as they were recorded."""

    def fold(steps: Any) -> Any:
        return steps.reshape(-1, config.episodes, config.rules.trading_days, *steps.shape[1:])

    last = fold(batch.next_obs["position"])[:, :, -1:]
    position = np.concatenate([fold(batch.obs["position"]), last], axis=2)
    days = fold(batch.extras["day"]), fold(batch.extras["next_day"])
    return Explored(*days, position, fold(batch.action), fold(batch.reward))
