"""Record the steps of a Gymnasium environment, single or vectorised, in any autoreset mode.

The end of an episode is handled according to `envs.metadata["autoreset_mode"]`:

- next-step: the step after the end only resets the environment; it is not a transition and not recorded;
- same-step: the returned observation belongs to the next episode; the final observation of this episode is
  in `info["final_obs"]`, and that is recorded;
- disabled: the caller resets all environments, or those in `options["reset_mask"]`.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np

from lakepond.errors import RecordError, SpecError, UnknownStream
from lakepond.replay import Replay
from lakepond.types import Array, Spec, Tree, leaves, map_leaves


class Recorder:
    """Wraps an environment and records every transition in a replay; must be the outermost wrapper.

    All other attributes are those of the environment: `recorder.action_space`, `recorder.close()`.
    """

    def __init__(self, env: Any, replay: Replay, *, first_stream: int = 0) -> None:
        """`first_stream`: stream of the first environment; recorders of one replay must not overlap.

        Raises `SpecError` for a spec that was made from the spaces of all environments together.
        """
        if isinstance(env, Replay):
            raise SpecError("Recorder takes the environment first: Recorder(env, replay).")
        if hasattr(env, "num_envs"):
            _check_single(env, replay.spec)
        self.env = env
        self.replay = replay
        self.streams = first_stream + np.arange(getattr(env, "num_envs", 1))
        self._vector = hasattr(env, "num_envs")
        mode = (getattr(env, "metadata", None) or {}).get("autoreset_mode")
        self._mode = str(getattr(mode, "value", mode) or "NextStep") if self._vector else "Disabled"
        self._obs: Tree = None
        self._resetting = np.zeros(len(self.streams), np.bool_)

    def __getattr__(self, name: str) -> Any:
        if name == "env" or name.startswith("__"):  # copy and pickle ask before there is an environment
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> tuple[Tree, dict[str, Any]]:
        """Reset the environment, as its own `reset` does, and mark unfinished episodes as truncated."""
        mask = (kwargs.get("options") or {}).get("reset_mask")  # before `reset`, which removes it
        obs, info = self.env.reset(**kwargs)
        streams = self.streams if mask is None else self.streams[np.asarray(mask)]
        for stream in streams.tolist():  # an episode that had not ended is truncated here
            with suppress(UnknownStream):
                self.replay.end(stream)
        self.replay.cut(streams)
        self._obs = _copy(obs)
        self._resetting[:] = False
        return obs, info

    def step(self, /, action: Any, **extras: Any) -> tuple[Tree, Any, Any, Any, dict[str, Any]]:
        """Step the environment and record the transition; `extras` are the extra fields of the spec."""
        if self._obs is None:
            raise RecordError("the environment has not been reset; call reset() before step().")
        obs, reward, terminated, truncated, info = self.env.step(action)
        ended = np.atleast_1d(np.asarray(terminated) | np.asarray(truncated))
        before, resetting = self._obs, self._resetting
        self._obs, self._resetting = _copy(obs), ended & (self._mode == "NextStep")  # even if recording fails
        step: dict[str, Any] = {
            "obs": before,
            "action": action,
            "reward": reward,
            "next_obs": self._true_next(obs, ended, info),
            "terminated": terminated if self._vector else bool(terminated),
            "truncated": truncated if self._vector else bool(truncated),
            "stream": self.streams if self._vector else int(self.streams[0]),
            **extras,
        }
        if resetting.any():
            kept = np.flatnonzero(~resetting)
            step = {name: _take(value, kept) for name, value in step.items()}
        if not resetting.all():
            try:
                self.replay.record(**step)
            except BaseException:
                self.replay.cut(self.streams)  # the next transition does not follow the last recorded one
                raise
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
            last = dict(leaves(final[i] if isinstance(final, np.ndarray) else _take(final, i)))
            for path, whole in leaves(obs):  # the environment may have its keys in another order
                whole[i] = last[path]
        return obs


def _check_single(env: Any, spec: Spec) -> None:
    """Refuse a spec whose fields have the axis of the environments."""
    together, one = (
        _shapes(getattr(env, f"{of}observation_space", None), getattr(env, f"{of}action_space", None))
        for of in ("", "single_")
    )
    for path, field in spec.fields().items():
        if field.shape == together.get(path) != one.get(path):
            raise SpecError(
                f"{path} of the spec is {field}, that of all {env.num_envs} environments together; use "
                "Spec.from_spaces(envs.single_observation_space, envs.single_action_space)."
            )


def _shapes(observation_space: Any, action_space: Any) -> dict[str, tuple[int, ...]]:
    """The shape of each field, by path; none if a space has no fixed shape."""
    try:
        fields = Spec.from_spaces(observation_space, action_space).fields()
    except SpecError:
        return {}
    return {path: field.shape for path, field in fields.items()}


def _copy(tree: Tree) -> Tree:
    """The environment may use its arrays again."""
    return _take(tree, ...)


def _take(tree: Tree, at: Any) -> Tree:
    return map_leaves(lambda leaf: np.array(np.asarray(leaf)[at]), tree)
