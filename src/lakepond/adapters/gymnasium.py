"""Record a Gymnasium environment as it is stepped, single or vectorised, whatever its autoreset mode.

What has to be right at the end of an episode, by `envs.metadata["autoreset_mode"]`:

- next-step: the step after an end only resets; it is no transition and is not recorded;
- same-step: the observation returned at an end is already the next episode's; the true last one is
  in `info["final_obs"]`, and that is recorded;
- disabled: the caller resets, all of it or those in `options["reset_mask"]`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lakepond.errors import RecordError
from lakepond.replay import Replay
from lakepond.types import Array, Tree, leaves, rebuild


class Recorder:
    """Steps an environment and records every transition into a replay.

    Everything else of the environment is reached through it: `recorder.action_space`, `recorder.close()`.
    """

    def __init__(self, env: Any, replay: Replay, *, first_stream: int = 0) -> None:
        """`first_stream`: the stream of the first environment; give each recorder of a replay its own."""
        self.env = env
        self.replay = replay
        self.streams = first_stream + np.arange(getattr(env, "num_envs", 1))
        self._vector = hasattr(env, "num_envs")
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self._mode = str(getattr(mode, "value", mode) or "NextStep") if self._vector else "Disabled"
        self._obs: Tree = None
        self._resetting = np.zeros(len(self.streams), np.bool_)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> tuple[Tree, dict[str, Any]]:
        """As the environment's own."""
        obs, info = self.env.reset(**kwargs)
        mask = (kwargs.get("options") or {}).get("reset_mask")
        self.replay.cut(self.streams if mask is None else self.streams[np.asarray(mask)])
        self._obs = _copy(obs)
        self._resetting[:] = False
        return obs, info

    def step(self, action: Any, **extras: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """As the environment's own; records what happened, with the replay's extra fields, if any."""
        if self._obs is None:
            raise RecordError("the environment has not been reset; call reset() before step().")
        obs, reward, terminated, truncated, info = self.env.step(action)
        if not self._vector:
            self.replay.record(
                obs=self._obs,
                action=action,
                reward=reward,
                next_obs=obs,
                terminated=bool(terminated),
                truncated=bool(truncated),
                stream=int(self.streams[0]),
                **extras,
            )
            self._obs = _copy(obs)
            return obs, reward, terminated, truncated, info
        ended = np.asarray(terminated) | np.asarray(truncated)
        next_obs = self._true_next(obs, ended, info)
        if not self._resetting.any():
            self.replay.record(
                obs=self._obs,
                action=action,
                reward=reward,
                next_obs=next_obs,
                terminated=terminated,
                truncated=truncated,
                stream=self.streams,
                **extras,
            )
        elif len(kept := np.flatnonzero(~self._resetting)):
            self.replay.record(
                obs=_take(self._obs, kept),
                action=_take(action, kept),
                reward=np.asarray(reward)[kept],
                next_obs=_take(next_obs, kept),
                terminated=np.asarray(terminated)[kept],
                truncated=np.asarray(truncated)[kept],
                stream=self.streams[kept],
                **{name: np.asarray(value)[kept] for name, value in extras.items()},
            )
        self._resetting = ended & (self._mode == "NextStep")
        self._obs = _copy(obs)
        return obs, reward, terminated, truncated, info

    def _true_next(self, obs: Tree, ended: Array, info: dict[str, Any]) -> Tree:
        if self._mode != "SameStep" or not ended.any():
            return obs
        if "final_obs" not in info:
            raise RecordError(
                "the environment resets in the same step but its info has no 'final_obs', so the true last "
                "observation is lost; make it with autoreset_mode=AutoresetMode.NEXT_STEP."
            )
        final, obs = info["final_obs"], _copy(obs)
        for i in np.flatnonzero(ended).tolist():
            last = final[i] if isinstance(final, np.ndarray) else _take(final, i)
            for (_, whole), (_, value) in zip(leaves(obs), leaves(last), strict=True):
                whole[i] = value
        return obs


def _copy(tree: Tree) -> Tree:
    """The environment may use its arrays again."""
    return _take(tree, ...)


def _take(tree: Tree, at: Any) -> Tree:
    values = iter([np.array(np.asarray(leaf)[at]) for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values))
