"""`lakepond collect`: one collector of a lake that many processes write, without Ray."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from tyro.conf import arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.options import Flag, at_least, optional

if TYPE_CHECKING:
    from lakepond.distributed.collector import Collector
    from lakepond.distributed.weights import SavedWeights
    from lakepond.flow.following.positions import Learners

LOOK_SECONDS = 15.0
"""interval at which new weights and the position of the learner are read"""


@dataclass(frozen=True)
class Collect:
    """Step environments with a policy and record their steps in a lake that many processes write.

    Runs until Ctrl-C or SIGTERM, then commits and pushes what is left. Start one for each name, under
    Kubernetes, Slurm or by hand; the learner follows the lake.

    Example: lakepond collect --writer c0 --lake gs://bucket/run --env CartPole-v1 --policy my_agent:Policy

    Example: lakepond collect --writer c0 --lake runs/lake --env my_agent:make_env --policy my_agent:Policy
    """

    writer: Annotated[str, arg(metavar="NAME")]
    """name of this collector; the same after a restart"""
    lake: Annotated[str, arg(metavar="PATH|URL")]
    """the lake: a URL, or a folder that all processes share"""
    env: Annotated[str, arg(metavar="ID|MODULE:NAME")]
    """a Gymnasium id, or a function that makes an environment"""
    policy: Annotated[str, arg(metavar="MODULE:NAME")]
    """a class or function that makes the policy: a callable from observations to actions"""
    envs: int = 1
    """environments of this collector"""
    weights: Annotated[str | None, optional("PATH|URL", "none")] = None
    """where the learner saves weights (lakepond.distributed.save_weights)"""
    folder: Annotated[str | None, optional("PATH", "a temporary one")] = None
    """where files are kept until they are in the bucket; best on a disk that outlives the process"""
    every: str = "1s"
    """how often steps are committed and pushed"""
    steps: Annotated[int | None, optional("N", "no end")] = None
    """stop after this many steps"""
    json: Flag = False
    """print JSON instead of a line at the end"""

    def run(self) -> None:
        at_least(1, envs=self.envs, steps=1 if self.steps is None else self.steps)
        from lakepond.cloud.store import Store
        from lakepond.distributed.collector import Collector
        from lakepond.distributed.weights import SavedWeights
        from lakepond.flow.following.positions import Learners

        every = formats.parse_seconds(self.every)
        make_env, make_policy = _environment(self.env), _named(self.policy, "--policy")
        saved = None if self.weights is None else SavedWeights(self.weights)
        learners = Learners(Store.at(self.lake))
        with Collector(
            make_env,
            make_policy,
            self.lake,
            self.writer,
            envs=self.envs,
            folder=self.folder,
            commit_every=every,
        ) as collector:
            self._started.append(collector)
            ended = threading.Event()
            looking = (collector, saved, learners, ended)
            threading.Thread(target=_look, args=looking, daemon=True).start()
            words.talk(f"{self.writer} collects for {self.lake}; Ctrl-C stops it")
            try:
                collector.run(self.steps)
            finally:
                ended.set()
        steps = collector.status.steps
        text = f"{self.writer}: {formats.counted(steps, 'step')} recorded in {self.lake}"
        words.print_result(
            {"writer": self.writer, "lake": self.lake, "steps": steps}, text, as_json=self.json
        )

    @cached_property
    def _started(self) -> list[Collector]:
        return []

    def interrupted(self) -> str:
        if all(collector.complete for collector in self._started):
            return "What was recorded is in the lake; start it again with the same --writer to continue."
        return (
            "The last steps may not be in the lake; start it again on this machine with the same --writer "
            "and --folder to upload what was committed."
        )


def _look(
    collector: Collector, saved: SavedWeights | None, learners: Learners, ended: threading.Event
) -> None:
    """Give the collector new weights, and have it wait while the learner is behind."""
    from lakepond.flow.following import positions

    read_at = 0.0
    while True:
        try:
            params = None if saved is None else saved.newest()
            if saved is not None and params is not None:
                collector.load(saved.version, params)
        except Exception as error:  # for example, no answer from the server: tried again
            collector.note_error(error)
        try:
            collector.waiting = learners.are_behind()
            read_at = time.monotonic()
        except Exception as error:
            collector.note_error(error)
            if time.monotonic() - read_at > positions.SILENT_SECONDS:  # the learner may have ended
                collector.waiting = False
        if ended.wait(LOOK_SECONDS):
            return


def _environment(text: str) -> Any:
    if ":" in text:
        return _named(text, "--env")
    from lakepond.errors import ConfigError

    try:
        import gymnasium
    except ModuleNotFoundError:
        raise ConfigError(f"--env {text} needs Gymnasium: pip install gymnasium.") from None

    def make() -> Any:
        try:
            return gymnasium.make(text)
        except gymnasium.error.Error as error:
            raise ConfigError(f"--env {text} cannot be made: {error}") from None

    return make


def _named(text: str, option: str) -> Any:
    """The object that MODULE:NAME names; modules of the working directory are found."""
    import os
    import sys
    from importlib import import_module

    from lakepond.errors import ConfigError

    module, _, name = text.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{option} {text} cannot be used ({error}); write it like my_agent:Policy."
        ) from None
    if not callable(found):
        raise ConfigError(f"{option} {text} is a {type(found).__name__}, not a class or function.")
    return found
