"""A bucket in memory whose every request is one step of a schedule drawn from a seed.

Each actor is a greenlet of real code that runs until its next request; then another one may run. Time is
virtual. Requests and answers are delayed, lost and repeated; an actor may be suspended for days in the middle
of one.

    sim = Simulation(seed)
    sim.actor("writer", push)
    sim.run()
"""

from __future__ import annotations

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit, greenlet

from lakepond.cloud.bucket import Checks, Exists, Listed
from lakepond.errors import CloudNotFound, CloudUnreachable

HOUR, DAY = 3600.0, 24 * 3600.0


@dataclass(frozen=True)
class Held:
    """One object."""

    data: bytes
    modified: float

    @cached_property
    def etag(self) -> str:
        """Its MD5."""
        return hashlib.md5(self.data, usedforsecurity=False).hexdigest()


@dataclass
class Actor:
    """Code that runs when it is its turn."""

    name: str
    run: Callable[[], None]
    pace: float
    turn: greenlet | None = None
    wake: float = 0.0

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return self.turn is not None and self.turn.dead


class Stopped(GreenletExit):
    """Ends the actors when a simulation ends early."""


class Simulation:
    """The server, its clock, and the actors."""

    checks: Checks = "etag"

    def __init__(self, seed: int, *, faults: float = 0.05, stalls: float = 0.01) -> None:
        self.rng = random.Random(seed)
        self.now = 1.7e9
        self.objects: dict[str, Held] = {}
        self.on_delete: Callable[[str], None] = lambda name: None
        """called before an object is deleted"""
        self._faults, self._stalls = faults, stalls
        self._actors: list[Actor] = []
        self._thread = threading.current_thread()
        self._running: Actor | None = None
        self._delayed: list[tuple[float, Callable[[], Any]]] = []
        self.log: list[str] = []

    # --- actors ------------------------------------------------------------------------------------

    def actor(self, name: str, run: Callable[[], None], pace: float = 2.0) -> None:
        """Add an actor that does `run`; its requests take up to `pace` seconds each way."""
        self._actors.append(Actor(name, run, pace))

    def run(self) -> None:
        """Run all actors to their end; raises the first error of one, with the log of requests."""
        for actor in self._actors:
            actor.turn = greenlet(actor.run)
        try:
            while waiting := [actor for actor in self._actors if not actor.done]:
                ready = [actor for actor in waiting if actor.wake <= self.now]
                if not ready:
                    self.now = min(actor.wake for actor in waiting)
                    continue
                self._apply_delayed()
                self._running = self.rng.choice(ready)
                self._running.turn.switch()
        except BaseException as error:
            error.add_note(f"in {self._running.name}, after:\n" + "\n".join(self.log[-60:]))
            raise
        finally:
            self._running = None
            for actor in self._actors:
                if not actor.done:
                    actor.turn.throw(Stopped)
            self._actors.clear()

    def _apply_delayed(self) -> None:
        now = self.now
        for at, apply in sorted((each for each in self._delayed if each[0] <= now), key=lambda each: each[0]):
            self._delayed.remove((at, apply))
            self.now = at
            with suppress(Exists, CloudNotFound):
                apply()
        self.now = now

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the running actor; others go on."""
        actor = self._running
        if actor is None or threading.current_thread() is not self._thread:
            return  # a helper thread of the running actor, or no simulation
        actor.wake = self.now + seconds
        actor.turn.parent.switch()

    @property
    def time(self) -> SimpleNamespace:
        """In place of the module `time`."""
        return SimpleNamespace(time=lambda: self.now, monotonic=lambda: self.now, sleep=self.sleep)

    # --- the server --------------------------------------------------------------------------------

    def _request(self, words: str, apply: Callable[[], Any]) -> Any:
        """One request: on its way, applied, and answered."""
        self._pass()
        fault = self.rng.random()
        name = self._running.name if self._running is not None else "-"
        if fault < self._faults / 3:
            late = self.rng.random() < 0.5  # it arrives after the client has given up
            self.log.append(f"{self.now - 1.7e9:12.1f} {name}: {words}: {'delayed' if late else 'lost'}")
            if late:
                self._delayed.append((self.now + self.rng.uniform(0, 0.8 * HOUR), apply))
            raise CloudUnreachable("a request was not answered.")
        try:
            result = apply()
            self.log.append(f"{self.now - 1.7e9:12.1f} {name}: {words}")
            if fault < 2 * self._faults / 3:  # a proxy sends it again
                self._pass()
                result = apply()
        except (Exists, CloudNotFound) as error:
            self.log.append(f"{self.now - 1.7e9:12.1f} {name}: {words}: {type(error).__name__}")
            raise
        finally:
            self._pass(answer=True)
        if fault < self._faults:
            self.log.append(f"{self.now - 1.7e9:12.1f} {name}: {words}: answer lost")
            raise CloudUnreachable("an answer was lost.")
        return result

    def _pass(self, answer: bool = False) -> None:
        if answer and self.rng.random() < 0.7:
            return
        if self.rng.random() < self._stalls:
            self.sleep(self.rng.choice((HOUR, 13 * HOUR, 2 * DAY, 3 * DAY)))
        else:
            self.sleep(0.0 if self._running is None else self._running.pace * self.rng.random())

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        """Store bytes."""

        def apply() -> str:
            if create and name in self.objects:
                raise Exists(f"{name} exists.")
            held = self.objects[name] = Held(bytes(data), self.now)
            return held.etag

        return self._request(f"{'create' if create else 'put'} {name}", apply)

    def put_file(self, name: str, path: Path, timeout: float) -> None:
        """Store a file."""
        self.put(name, path.read_bytes(), create=False, timeout=timeout)

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        """The bytes."""
        yield self._request(f"get {name}", lambda: self._find(name).data)

    def head(self, name: str) -> Listed | None:
        """What is known of one object."""
        return self._request(f"head {name}", lambda: self._listed(name) if name in self.objects else None)

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects under a prefix."""
        names = lambda: [self._listed(name) for name in sorted(self.objects) if name.startswith(prefix)]  # noqa: E731
        yield from self._request(f"list {prefix}", names)

    def folders(self, prefix: str) -> list[str]:
        """The folders below a prefix."""

        def apply() -> Any:
            below = (name.removeprefix(prefix) for name in self.objects if name.startswith(prefix))
            return sorted({name.partition("/")[0] for name in below if "/" in name})

        return self._request(f"folders {prefix}", apply)

    def delete(self, name: str) -> None:
        """Delete one object."""

        def apply() -> None:
            if name in self.objects:
                self.on_delete(name)
                del self.objects[name]

        self._request(f"delete {name}", apply)

    def _find(self, name: str) -> Held:
        if name not in self.objects:
            raise CloudNotFound(f"there is no {name}.")
        return self.objects[name]

    def _listed(self, name: str) -> Listed:
        held = self.objects[name]
        return Listed(name, len(held.data), held.etag, held.modified)
