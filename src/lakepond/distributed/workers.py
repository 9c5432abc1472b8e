"""Workers: Ray actors that do tasks. A task whose worker dies is given to another one.

    with Workers(cluster, make) as workers:
        results = workers.map("play", [(agents, 0), (agents, 2), (agents, 4)])     # in the order of the tasks

`make(name)` makes the object whose methods are called, in each worker, before its first task; it may contain
references of `ray.put`. A task may be done twice, if its worker dies before the result is here; one result of
each task is returned. `each` yields results as they come. A worker that is free when the tasks are given out
gets the one with its own number, so what it keeps for that task is there again the next time.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

from lakepond.distributed import ray_cluster
from lakepond.distributed.ray_cluster import Cluster, ClusterHead
from lakepond.errors import ClusterError, LakepondError

log = logging.getLogger("lakepond")
NO_WORKER_SECONDS = 300.0
"""how long there may be no worker until `each` gives up"""
MOST_FAILURES = 5
"""of a worker that answers nothing in between"""
ASK_SECONDS = 0.5
"""between two questions to a worker that is being started again"""
MOST_WORKERS_LOST = 10
"""with one task, which then has failed"""
CLOSE_SECONDS = 10.0
"""for workers to end by themselves"""


class Workers:
    """Any number of actors; close them, or use them in a `with` block."""

    def __init__(self, cluster: Cluster, make: Callable[[str], Any]) -> None:
        self._ray, self._make, self._head = cluster.ray, make, ClusterHead(cluster.ray)
        actor: Any = self._ray.remote(_Worker).options(**cluster.options())
        self._actors = {f"worker-{i}": actor.remote(f"worker-{i}") for i in range(cluster.workers)}
        self._free: list[str] = []
        self._asked: dict[Any, str] = {}  # workers that start, by the answer that they owe
        self._to_ask = dict.fromkeys(self._actors, 0.0)  # those that are asked then whether they have started
        self._ask()
        self._failures = dict.fromkeys(self._actors, 0)  # since a worker last answered
        self._processes = {name: set[str]() for name in self._actors}  # each process that a worker has had

    def status(self) -> dict[str, int]:
        """Metrics: all workers, those that are alive as far as is known, and how often one was restarted."""
        alive = len(self._actors) - len(self._asked) - len(self._to_ask)
        restarts = sum(max(len(each) - 1, 0) for each in self._processes.values())
        return {"workers": len(self._actors), "workers_alive": alive, "worker_restarts": restarts}

    def map(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Call a method with the arguments of each task, each on a worker that is free; results in order.

        An exception of the method is raised here.
        """
        results = dict[int, Any]()
        for number, found in self.each(method, tasks):
            if isinstance(found, Exception):
                raise found
            results[number] = found
        return [results[number] for number in range(len(tasks))]

    def each(self, method: str, tasks: Sequence[tuple[Any, ...]]) -> Iterator[tuple[int, Any]]:
        """Like `map`, but yields the number of each task and its result as soon as it is done.

        The result is the exception if the method raised one, or if several workers died with the task.
        """
        ray, waiting, lost = self._ray, deque(range(len(tasks))), [0] * len(tasks)
        doing = dict[Any, tuple[str, int]]()
        answered = time.monotonic()
        try:
            while waiting or doing:
                while waiting and self._free:
                    name, task = self._give(waiting)
                    doing[self._actors[name].call.remote(self._make, method, *tasks[task])] = name, task
                self._ask()
                for ref in self._done([*doing, *self._asked]):
                    name, number = doing.pop(ref, None) or (self._asked.pop(ref), None)
                    found: Any = None
                    try:
                        process, found = ray.get(ref)
                        self._processes[name].add(process)
                    except ray.exceptions.RayTaskError as error:
                        found = _cause(error)
                    except ray.exceptions.RayError as error:
                        self._lost(name, error, busy=number is not None)
                        if number is None:
                            continue
                        lost[number] += 1
                        if lost[number] < MOST_WORKERS_LOST:
                            waiting.appendleft(number)
                            continue
                        found = ClusterError(
                            f"{lost[number]} workers died with this task, the last one with "
                            f"{type(error).__name__}; it may need more memory than they have."
                        )
                        yield number, found
                        continue
                    self._failures[name] = 0
                    self._free.append(name)
                    if number is not None:
                        yield number, found
                self._head.check()
                if doing or self._free:
                    answered = time.monotonic()
                elif time.monotonic() - answered > NO_WORKER_SECONDS:
                    raise ClusterError(
                        f"no worker has answered for {NO_WORKER_SECONDS:g} s; look at the cluster with "
                        "`ray status`, and resume."
                    )
        finally:  # what is not waited for any more
            self._asked.update({ref: name for ref, (name, _) in doing.items()})

    def _give(self, waiting: deque[int]) -> tuple[str, int]:
        """A free worker and its next task: the one with its own number, or the first that waits."""
        name = self._free.pop()
        own = int(name.rpartition("-")[2])
        task = own if own in waiting else waiting[0]
        waiting.remove(task)
        return name, task

    def _done(self, refs: list[Any]) -> list[Any]:
        """Those that are there within a moment, at least one if possible."""
        if not refs:
            time.sleep(ASK_SECONDS)
            return []
        done: list[Any] = self._ray.wait(refs, timeout=ASK_SECONDS)[0]
        return done

    def _lost(self, name: str, error: Exception, *, busy: bool) -> None:
        """A worker died; Ray starts it again, and it gets tasks as soon as it answers."""
        self._to_ask[name] = time.monotonic() + ASK_SECONDS
        if busy:
            log.warning("%s does not answer (%s); its task is done again", name, type(error).__name__)
        if not isinstance(error, self._ray.exceptions.ActorUnavailableError):  # or it is not there yet
            self._failures[name] += 1
        if self._failures[name] >= MOST_FAILURES:
            raise ClusterError(f"{name} cannot be started: {ray_cluster.one_line(error)}.") from error

    def _ask(self) -> None:
        """Ask those that start whether they have started."""
        for name in [name for name, at in self._to_ask.items() if at <= time.monotonic()]:
            del self._to_ask[name]
            self._asked[self._actors[name].answer.remote()] = name

    def close(self) -> None:
        """End all workers; one that is busy is killed."""
        if self._head.lost:  # they have ended with their nodes, or do so soon, and nobody can be asked
            return
        try:
            closing = [self._actors[name].close.remote() for name in self._free]
            if closing:
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
        ray_cluster.hide_gpus()
        self._name, self._process = name, uuid.uuid4().hex
        self._made: Any = None

    def answer(self) -> tuple[str, None]:
        return self._process, None

    def call(self, make: Callable[[str], Any], method: str, *arguments: Any) -> tuple[str, Any]:
        """The process that did it, which is another one after a restart, and the result."""
        if self._made is None:
            self._made = make(self._name)
        return self._process, getattr(self._made, method)(*arguments)

    def close(self) -> None:
        if self._made is not None:
            self._made.close()


def _cause(error: Any) -> Any:
    """The exception of a task, if it is one of ours; else Ray's, which has its traceback."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, LakepondError | OSError) else error
