"""One collector: environments, a policy and a writer of the lake; in a Ray actor or in `lakepond collect`.

    weights ──load──▶ policy ──actions──▶ environments ──steps──▶ its own chain ──push──▶ the lake

One thread steps the environments. Another one commits and pushes new steps. The status of the collector is
stored with each commit, so a lake shows its collectors without Ray and without further requests.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from lakepond.cloud.place import Cloud
from lakepond.errors import ConfigError, LakeLocked, LakepondError, SpecError, UnknownStream
from lakepond.lake.files import make_folders
from lakepond.lake.format import description
from lakepond.lake.format.commits import Commit
from lakepond.lake.lock import WriterLock
from lakepond.paths import on_disk
from lakepond.replay import Replay
from lakepond.runs.lake_status import COLLECTOR_NOTE
from lakepond.types import Field, Spec, Tree, join_trees, leaves, map_leaves

log = logging.getLogger("lakepond")
STEPS_IN_MEMORY, STEPS_PER_ENV = 4_096, 1_024
"""steps in memory, at least, and for each environment; they are committed before they are evicted"""
LOCAL_BYTES = "1GB"
"""disk for files that are in the bucket already"""
LOCKED_SECONDS = 20.0
"""how long to wait for a process that still writes under this name, before another name is taken"""
IDLE_SECONDS = 30.0
"""how often a collector that records nothing commits, to show that it is alive"""
WAIT_SECONDS = 0.05
RETRY_SECONDS, MOST_RETRY_SECONDS = 1.0, 60.0
"""pause after an error of an environment or of the policy; doubled each time"""
UPLOAD_SECONDS = 30.0


class GymEnvironment(Protocol):
    """What a collector needs of an environment: Gymnasium's interface."""

    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None) -> tuple[Tree, dict[str, Any]]:
        """Start an episode."""

    def step(self, action: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Observation, reward, terminated, truncated, info."""


class Policy(Protocol):
    """Chooses actions; runs in the process of the collector.

    With a method `load(params)` it also takes the weights that the learner broadcasts, between two steps.
    """

    def __call__(self, obs: Tree) -> Any:
        """The actions for a batch of observations, with one leading axis of environments."""


MakeEnvironment = Callable[[], GymEnvironment]
MakePolicy = Callable[[], Policy]


@dataclass(frozen=True)
class CollectorStatus:
    """The status of one collector; stored with each of its commits."""

    writer: str
    host: str = ""
    pid: int = 0
    steps: int = 0
    """steps that this process has recorded"""
    steps_per_second: float = 0.0
    """over the last seconds"""
    weights: int = 0
    """the broadcast that the policy has; 0: none yet"""
    waiting: bool = False
    """whether it waits for a slow learner"""
    starts: int = 0
    """how often its chain was opened; 1 if it was never restarted"""
    error: str | None = None
    """the last error, of the environment, the policy, a commit or an upload"""


class Collector:
    """Collects steps until `stop`. Close it, or use it in a `with` block."""

    def __init__(
        self,
        make_env: MakeEnvironment,
        make_policy: MakePolicy,
        lake: str | Path | Cloud,
        writer: str,
        *,
        envs: int = 1,
        spec: Spec | None = None,
        folder: str | Path | None = None,
        commit_every: float = 1.0,
    ) -> None:
        """Make the environments and the policy, and open the lake; the chain is there on return.

        lake: URL of a bucket or a `Cloud`, or a folder that all processes share. writer: name of this one.
        envs: environments, stepped one after another. spec: default: from the spaces of the environment.
        folder: where the writer of a bucket keeps its files; default: a temporary one, deleted by `close`
        when all is uploaded. commit_every: seconds between two commits, each of which is pushed.
        """
        if envs < 1:
            raise ConfigError(f"a collector needs at least one environment, not {envs}.")
        if not writer or not str(lake):
            raise ConfigError(f"a collector needs a name and a lake, but has {writer!r} and {str(lake)!r}.")
        self._make_env, self._num_envs, self._commit_every = make_env, envs, commit_every
        self._envs: list[GymEnvironment] = []
        self._lock = threading.Lock()
        self._newest: tuple[int, Any] | None = None  # weights that the policy does not have yet
        self._recent: list[tuple[float, int]] = []  # (time, steps) of the last commits
        self._unpushed: deque[tuple[int, int]] = deque(maxlen=10_000)  # (commit, steps)
        self._in_lake = 0
        self._stop, self._closed = threading.Event(), False
        self.waiting = False
        self.complete = False
        """after `close`: whether all recorded steps are committed and, if the lake is a bucket, uploaded"""
        self.status = CollectorStatus(writer, socket.gethostname(), os.getpid())
        with ExitStack() as stack:
            stack.callback(lambda: _close(self._envs))
            self._make_envs()
            self._policy = make_policy()
            self._loads: Callable[[Any], object] | None = getattr(self._policy, "load", None)
            spec = _spec_of(self._envs[0]) if spec is None else spec
            place = lake if isinstance(lake, Cloud) or "://" not in str(lake) else Cloud(str(lake))
            self._replay, self._temporary = _open(place, writer, spec, envs, folder)
            if self._temporary is not None:
                stack.callback(self._temporary.close)
            stack.callback(self._replay.close)
            self._has_cloud = isinstance(place, Cloud)
            last = self._replay.flush()
            before = {} if last is None else last.note.get(COLLECTOR_NOTE, {})
            self._set(starts=int(before.get("starts", 0)) + 1)
            self._cut_streams()
            self._first, self._committed, self._committed_at = self._replay.recorded, -1, 0.0
            self._commit()
            if self._has_cloud:
                self._replay.push(wait=True, timeout=UPLOAD_SECONDS)
            stack.pop_all()
        self._beat = threading.Thread(target=self._heartbeat, name="lakepond-collector", daemon=True)
        self._beat.start()

    # --- what others ask for -----------------------------------------------------------------------

    def load(self, version: int, params: Any) -> None:
        """Have the policy take these weights before its next step, in place of any that it has not taken."""
        if self._loads is None:
            kind = type(self._policy).__name__
            self.note_error(
                ConfigError(f"the policy is a {kind} without a method load(params); weights are ignored.")
            )
            return
        with self._lock:
            self._newest = (version, params)

    def note_error(self, error: Exception) -> None:
        """Note an error that does not end it, and log it unless it is the last one again."""
        text = _in_words(error)
        if text != self.status.error:
            log.warning("%s: %s", self.status.writer, text, exc_info=not isinstance(error, LakepondError))
        self._set(error=text)

    def stop(self) -> None:
        """Have `run` return soon."""
        self._stop.set()

    @property
    def steps(self) -> int:
        """Steps that this process has recorded."""
        return self._replay.recorded - self._first

    def acknowledged(self) -> int:
        """Steps of this process that are in the bucket; in the lake if that is a folder."""
        if self._has_cloud:
            pushed = self._replay.upload_status().pushed
            while pushed is not None and self._unpushed and self._unpushed[0][0] <= pushed:
                self._in_lake = self._unpushed.popleft()[1]
            return max(0, self._in_lake - self._first)
        return max(0, self._committed - self._first)

    def run(self, steps: int | None = None) -> None:
        """Collect until `stop` is called, or this many steps are recorded.

        After an error of an environment or of the policy it continues with new environments. An error before
        the first step is noted and raised.
        """
        failures = 0
        while not self._is_done(steps):
            before = self._replay.recorded
            try:
                if failures:
                    self._renew()
                self._collect(steps)
            except Exception as error:
                if self._replay.recorded == self._first:
                    self._set(error=_in_words(error))  # `close` commits it
                    raise
                failures = 1 if self._replay.recorded > before else failures + 1
                self.note_error(error)
                self._stop.wait(min(RETRY_SECONDS * 2 ** min(failures - 1, 10), MOST_RETRY_SECONDS))

    def close(self) -> None:
        """Stop, commit and push what is left."""
        self._stop.set()
        if self._closed:
            return
        self._closed = True
        self._beat.join()
        _close(self._envs)
        last = None
        try:
            last = self._commit()
        finally:
            self._replay.close()
            if last is not None:
                pushed = self._replay.upload_status().pushed if self._has_cloud else last.number
                self.complete = pushed is not None and pushed >= last.number
            if self._temporary is not None:
                self._temporary.close(delete=self.complete)

    def __enter__(self) -> Collector:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- stepping ------------------------------------------------------------------------------------

    def _is_done(self, steps: int | None) -> bool:
        return self._stop.is_set() or (steps is not None and self.steps >= steps)

    def _collect(self, steps: int | None) -> None:
        envs, replay = self._envs, self._replay
        seeds = np.random.SeedSequence().generate_state(len(envs))
        obs = [env.reset(seed=int(seed))[0] for env, seed in zip(envs, seeds, strict=True)]
        while not self._is_done(steps):
            if self.waiting:
                self._stop.wait(WAIT_SECONDS)
                continue
            self._take_weights()
            seen = join_trees(obs, np.stack)
            actions = _as_action(self._policy(seen), replay.spec, len(envs))
            results = [env.step(map_leaves(itemgetter(i), actions)) for i, env in enumerate(envs)]
            obs = [result[0] for result in results]
            terminated, truncated = (np.array([bool(result[at]) for result in results]) for at in (2, 3))
            replay.record(
                obs=seen,
                action=actions,
                reward=np.array([result[1] for result in results], np.float32),
                next_obs=join_trees(obs, np.stack),
                terminated=terminated,
                truncated=truncated,
            )
            for i in np.flatnonzero(terminated | truncated).tolist():
                obs[i] = envs[i].reset()[0]

    def _take_weights(self) -> None:
        if self._newest is None:
            return
        with self._lock:
            (version, params), self._newest = self._newest, None
        assert self._loads is not None
        self._loads(params)
        self._set(weights=version)

    def _renew(self) -> None:
        """New environments after an error; their episodes have ended."""
        _close(self._envs)
        self._cut_streams()
        self._make_envs()

    def _make_envs(self) -> None:
        """Make the environments; if one cannot be made, `_envs` has the others, to be closed."""
        self._envs.clear()
        for _ in range(self._num_envs):
            self._envs.append(self._make_env())

    def _cut_streams(self) -> None:
        """Episodes that were not finished are truncated: the next step is that of another one."""
        for stream in range(self._num_envs):
            with suppress(UnknownStream):
                self._replay.end(stream)
        self._replay.cut(np.arange(self._num_envs))

    # --- committing ----------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        while not self._stop.wait(self._commit_every):
            try:
                idle = time.monotonic() - self._committed_at
                if self._replay.recorded > self._committed or idle > IDLE_SECONDS:
                    self._commit()
                    if self._has_cloud:
                        error = self._replay.push().last_error
                        self._set(error=error or self.status.error)
            except Exception as error:  # the disk is full, say: it is tried again
                self.note_error(error)

    def _commit(self) -> Commit:
        now, steps = time.monotonic(), self.steps
        self._recent = [*self._recent[-9:], (now, steps)]
        passed, made = now - self._recent[0][0], steps - self._recent[0][1]
        rate = made / passed if passed else 0.0
        self._set(steps=steps, steps_per_second=round(rate, 3), waiting=self.waiting)
        commit = self._replay.commit({COLLECTOR_NOTE: asdict(self.status)})
        self._committed, self._committed_at = commit.recorded, now
        self._unpushed.append((commit.number, commit.recorded))
        return commit

    def _set(self, **changes: Any) -> None:
        with self._lock:
            self.status = replace(self.status, **changes)


class _Temporary:
    """A folder for the files of one writer, used by one process at a time and deleted when it is not needed.

    The lock is beside the folder, so that it is held until the folder is gone: a process that starts under
    the same name neither uses files that are being deleted nor loses its own.
    """

    def __init__(self, folder: Path) -> None:
        """Raises `LakeLocked` if another process uses the folder."""
        self.folder, self._path = folder, folder.with_name(f"{folder.name}~lock")  # no name of a writer has ~
        while True:
            with suppress(FileNotFoundError):  # the last user has just deleted the parent
                make_folders(folder.parent)
                self._lock = WriterLock(self._path)
                if os.fstat(self._lock.descriptor).st_nlink:
                    return
                self._lock.close()  # the last user has deleted it after it was opened here

    def close(self, *, delete: bool = False) -> None:
        """Release the folder, and delete it if `delete`."""
        if delete:
            deleted = self.folder.with_name(f"{self.folder.name}~deleted")
            shutil.rmtree(deleted, ignore_errors=True)  # of a process that was killed here
            with suppress(OSError):  # a process that is killed from here on leaves no incomplete lake
                self.folder.rename(deleted)
            shutil.rmtree(deleted, ignore_errors=True)
            self._path.unlink(missing_ok=True)
        self._lock.close()
        if delete:
            with suppress(OSError):  # other collectors of this machine use it
                self.folder.parent.rmdir()


def _open(
    lake: str | Path | Cloud, writer: str, spec: Spec, envs: int, folder: str | Path | None
) -> tuple[Replay, _Temporary | None]:
    """The replay of a writer, and its folder if that is a temporary one.

    If another process still writes under this name on this disk, for example one that Ray has given up, wait
    for its end, and then take another name.
    """
    if folder is not None and not isinstance(lake, Cloud):
        raise ConfigError(f"the lake {lake} is a folder itself; a folder for files is used with a bucket.")
    capacity = max(STEPS_IN_MEMORY, STEPS_PER_ENV * envs)
    until, name = time.monotonic() + LOCKED_SECONDS, writer
    while True:
        try:
            with ExitStack() as stack:
                temporary, how = None, dict[str, Any]()
                if not isinstance(lake, Cloud):
                    home = on_disk(lake)
                else:
                    home = (_temporary_folder(lake) if folder is None else on_disk(folder)) / name
                    how = {"cloud": lake, "local_budget": LOCAL_BYTES}
                    if folder is None:
                        temporary = _Temporary(home)
                        stack.callback(temporary.close)
                is_new = not (home / description.NAME).exists()
                try:
                    replay = Replay.open(home, spec, capacity, cast=True, writer=name, **how)
                except SpecError as error:
                    if (problem := _of_another_lake(lake, home, spec, is_new=is_new)) is None:
                        raise
                    if is_new and isinstance(lake, Cloud):  # it has the lake's description and nothing else
                        (home / description.NAME).unlink()
                        if temporary is not None:
                            temporary.close(delete=True)
                    raise SpecError(problem) from error
                stack.pop_all()
                return replay, temporary
        except LakeLocked:
            if time.monotonic() < until:
                time.sleep(0.2)
                continue
            if name != writer:
                raise
            name, until = f"{writer}-{os.getpid()}", time.monotonic() + LOCKED_SECONDS


def _of_another_lake(lake: str | Path | Cloud, home: Path, spec: Spec, *, is_new: bool) -> str | None:
    """The sentence if the lake was created with a different spec; `is_new`: it was not in `home` before."""
    if not (home / description.NAME).exists() or (there := description.read(home)) == spec:
        return None
    differs = f"was created with a different spec: {spec.differences(there)}; choose another"
    if not isinstance(lake, Cloud):
        return f"the lake {lake} {differs} folder."
    if is_new:
        return f"the lake {lake} {differs} lake URL."
    return f"{home} has files of a lake that {differs} lake URL than {lake}, or another folder."


def _temporary_folder(lake: Cloud) -> Path:
    """The folder for the files of all collectors of this user and machine that write to this bucket."""
    digest = hashlib.blake2b(lake.url.encode(), digest_size=6).hexdigest()
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(tempfile.gettempdir()) / f"lakepond-collect-{user}-{digest}"


def _in_words(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _spec_of(env: GymEnvironment) -> Spec:
    """The spec of an environment's spaces; `ConfigError` if it is not an environment."""
    missing = [
        name for name in ("observation_space", "action_space", "reset", "step") if not hasattr(env, name)
    ]
    if missing:
        raise ConfigError(
            f"the environment is a {type(env).__name__} without {', '.join(missing)}; it needs Gymnasium's "
            "interface."
        )
    return Spec.from_spaces(env.observation_space, env.action_space, env_spec=getattr(env, "spec", None))


def _close(envs: Sequence[GymEnvironment]) -> None:
    for env in envs:
        close = getattr(env, "close", None)
        if close is not None:
            with suppress(Exception):  # it may be what has failed
                close()


def _as_action(actions: Any, spec: Spec, envs: int) -> Tree:
    """The actions of a policy as NumPy arrays of the dtype that the spec has; one for each environment."""
    single = isinstance(spec.action, Field)
    found = np.asarray(actions) if single else map_leaves(np.asarray, actions)
    for _, leaf in leaves(found):
        if leaf.shape[:1] != (envs,):
            raise ConfigError(
                f"the policy returned actions of the shape {list(leaf.shape)}; it must return one for each "
                f"observation of its batch, here {envs}."
            )
    return found.astype(spec.action.dtype, copy=False) if single else found
