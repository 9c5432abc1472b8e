"""Workers: Ray actors that do tasks. A task whose worker dies is given to another one.

    with Workers(cluster, make) as workers:
        results = workers.map("play", [(agents, 0), (agents, 2), (agents, 4)])     # in the order of the tasks

`make(name)` makes the object whose methods are called, in each worker, before its first task; it may contain
references of `ray.put`. A task may be done twice, if its worker dies before the result is here; one result of
each task is returned.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Self

from lakepond.distributed.ray_cluster import Cluster
from lakepond.errors import ClusterError, LakepondError

log = logging.getLogger("lakepond")
NO_WORKER_SECONDS = 300.0
"""how long there may be no worker until `map` gives up"""
MOST_FAILURES = 5
"""of a worker that answers nothing in between"""
CLOSE_SECONDS = 10.0
"""for workers to end by themselves"""


class Workers:
    """Any number of actors; close them, or use them in a `with` block."""

    def __init__(self, cluster: Cluster, make: Callable[[str], Any]) -> None:
        self._ray, self._make = cluster.ray, make
        actor: Any = self._ray.remote(_Worker).options(**cluster.options())
        self._actors = {f"worker-{i}": actor.remote(f"worker-{i}") for i in range(cluster.workers)}
        self._free: list[str] = []
        self._asked = {self._ask(name): name for name in self._actors}  # those that start
        self._failures = dict.fromkeys(self._actors, 0)  # since a worker last answered

    def map(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with the arguments of each task, each on a worker that is free; results in order.

        An exception of the method is raised here.
        """
        ray, results = self._ray, dict[int, Any]()
        waiting, doing = deque(range(len(tasks))), dict[Any, tuple[str, int]]()
        answered = time.monotonic()
        while len(results) < len(tasks):
            while waiting and self._free:
                name, task = self._free.pop(), waiting.popleft()
                doing[self._actors[name].call.remote(self._make, method, *tasks[task])] = name, task
            for ref in ray.wait([*doing, *self._asked], timeout=1.0)[0]:
                name, number = doing.pop(ref, None) or (self._asked.pop(ref), None)
                try:
                    found = ray.get(ref)
                except ray.exceptions.RayTaskError as error:
                    raise _cause(error) from error
                except ray.exceptions.RayError as error:
                    self._lost(name, error)
                    waiting.extendleft([] if number is None else [number])
                    continue
                self._failures[name] = 0
                self._free.append(name)
                if number is not None:
                    results[number] = found
            if doing or self._free:
                answered = time.monotonic()
            elif time.monotonic() - answered > NO_WORKER_SECONDS:
                raise ClusterError(
                    f"no worker has answered for {NO_WORKER_SECONDS:g} s; look at the cluster with "
                    "`ray status`, and resume."
                )
        return [results[number] for number in range(len(tasks))]

    def _lost(self, name: str, error: Exception) -> None:
        """A worker died; Ray starts it again, and it gets tasks as soon as it answers."""
        self._failures[name] += 1
        if self._failures[name] >= MOST_FAILURES:
            raise ClusterError(f"{name} cannot be started: {str(error).strip().splitlines()[-1]}") from error
        log.warning("%s died (%s); its task is given to another worker", name, type(error).__name__)
        self._asked[self._ask(name)] = name

    def _ask(self, name: str) -> Any:
        return self._actors[name].answer.remote()

    def close(self) -> None:
        """End all workers."""
        try:
            closing = [actor.close.remote() for actor in self._actors.values()]
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            for actor in self._actors.values():
                self._ray.kill(actor)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Worker:
    """The actor."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._made: Any = None

    def answer(self) -> None:
        pass

    def call(self, make: Callable[[str], Any], method: str, *arguments: Any) -> Any:
        if self._made is None:
            self._made = make(self._name)
        return getattr(self._made, method)(*arguments)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _cause(error: Any) -> Exception:
    """The exception of a task, if it is one of ours; else Ray's, which has its traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LakepondError | OSError) else error
