"""The replay behind an SB3 buffer: in memory, or over a lake that records which spaces it is for."""

from __future__ import annotations

import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from lakepond.adapters.notes import newest_noted
from lakepond.errors import ForkedReplay, LakeNotFound, SpecError
from lakepond.paths import on_disk
from lakepond.replay import Replay

NOTE = "sb3"
"""the key of the commit notes that describe the buffer"""


class Storage:
    """Owns a replay; commits it to its lake, if it has one, when it is closed or dropped."""

    def __init__(
        self,
        replay: Replay,
        about: dict[str, Any],
        path: str | None = None,
        settings: dict[str, Any] | None = None,
    ) -> None:
        """`about`: what is noted with every commit. `settings`: what the lake was opened with."""
        self.replay, self.about, self.path, self.settings = replay, about, path, settings or {}
        self.stopped = ""
        """why the buffer can record no more"""

    def commit(self, *, wait: bool = True) -> Any:
        """Commit all steps and start the upload; returns the commit, without `wait` a future of it."""
        done = self.replay.commit({NOTE: self.about}, wait=wait)
        if self.settings.get("cloud") is not None:
            self.replay.push()
        return done

    def close(self) -> None:
        """Commit the rest and release the lake. Can be repeated; a forked child leaves both to its parent."""
        if not self.stopped:
            if self.path is not None:
                with suppress(ForkedReplay):
                    self.commit()
            self.replay.close()
            self.stopped = "this buffer is closed; make a new one to record more."


_open_lakes: weakref.WeakValueDictionary[Path, Storage] = weakref.WeakValueDictionary()


def over_lake(path: str, settings: dict[str, Any], about: dict[str, Any], *, commit: int | None) -> Storage:
    """A replay over the lake at `path`, new or resumed, from its newest commit or the one with that number.

    `settings`: arguments of `Replay.open`. `about`: the spaces and the number of environments; the lake must
    have been recorded with the same. A buffer of this process that has the lake open is stopped: SB3 makes a
    second buffer in `load` and in `load_replay_buffer`. If that buffer is at the same commit and has the same
    settings, its replay is taken over, without reading.
    """
    key = on_disk(path).resolve()
    before = _open_lakes.pop(key, None)
    if before is not None and not before.stopped:
        last = before.commit()
        same = (before.settings, before.about) == (settings, about)
        if same and commit in (None, last.number):
            before.stopped = f"a later buffer of this program has opened {path}; use that one."
            _open_lakes[key] = storage = Storage(before.replay, before.about, path, settings)
            return storage
        before.close()
    if commit is not None and settings["cloud"] is None and not (key / "lake.json").exists():
        raise LakeNotFound(f"{path} is not a lake.")  # before a folder is created
    try:
        replay = Replay.open(path, commit=commit, **settings)
    except SpecError as error:
        raise SpecError(f"{path} does not fit {describe(about)}: {error}") from None
    try:
        noted = _noted(replay)
        if noted is None and len(replay):
            raise SpecError(
                f"{path} was not recorded by an SB3 buffer of lakepond; open it with Replay.open, or name a "
                "new folder."
            )
        noted = {**about, **(noted or {})}
        if {**noted, "first": 0} != {**about, "first": 0}:
            raise SpecError(
                f"{path} was recorded with {describe(noted)}, this model has {describe(about)}; "
                "name another folder."
            )
    except BaseException:
        replay.close(discard=True)
        raise
    _open_lakes[key] = storage = Storage(replay, noted, path, settings)
    return storage


def describe(about: dict[str, Any]) -> str:
    """The spaces and the number of environments, for a message."""
    return f"{about['observation_space']}, {about['action_space']} and n_envs={about['n_envs']}"


def _noted(replay: Replay) -> dict[str, Any] | None:
    """The description of the buffer in the newest commit that has one."""
    with suppress(LakeNotFound), replay.lake() as lake:  # there may be no commit yet
        commit = newest_noted(lake, NOTE)
        return None if commit is None else commit.note[NOTE]
    return None
