"""TensorDicts as steps: which key of a TensorDict is which field of a `Spec`, and recording them.

TorchRL's transitions have the observations twice, at the root and under "next", and reward and flags under
"next". A key with a counterpart of the same shape and dtype under "next" is an observation, "action" is the
action, and all other keys are extra columns, so that a TensorDict comes back as it was.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, is_tensor_collection

from lakepond.adapters.notes import newest_noted
from lakepond.errors import RecordError, SpecError
from lakepond.lake.read.lake import Lake
from lakepond.replay import Replay
from lakepond.types import RESERVED, Array, Batch, Field, Spec, Tree, keys_of, leaves, rebuild

NOTE = "torchrl"
"""the key of the commit notes that have the keys"""
Path = tuple[str, ...]
ACTION, REWARD = ("action",), ("next", "reward")
FLAGS = ("terminated", "truncated")
NOT_OBSERVED = {("done",), ("terminated",), ("truncated",), ("reward",)}
PIECE_BYTES = 64 << 20
"""uncompressed steps that are converted at a time"""
NOTHING = Field((), "uint8")
"""stands for observations or actions where a TensorDict has none"""


@dataclass(frozen=True)
class Key:
    """One leaf of a TensorDict."""

    path: Path
    field: str
    """obs, next_obs or action and the path of their leaf, reward, terminated, truncated, done or an extra"""
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Keys:
    """All leaves of the TensorDict of one step, and the spec they are stored by."""

    keys: tuple[Key, ...]
    spec: Spec

    # --- made from -----------------------------------------------------------------------------------

    @classmethod
    def of_tensordict(cls, data: Any) -> Keys:
        """The keys of one step, a TensorDict without batch dimensions."""
        if not is_tensor_collection(data):
            raise RecordError(f"steps must be TensorDicts, not {type(data).__name__}.")
        found = {_path(key): value for key, value in data.items(True, True)}
        for path, value in found.items():
            if not isinstance(value, torch.Tensor):
                raise RecordError(f"{path} is {type(value).__name__}, not a tensor; leave it out.")
        fields = {path: _field(path, value) for path, value in found.items()}
        pairs = [
            path
            for path, field in fields.items()
            if path[0] != "next" and path not in NOT_OBSERVED and fields.get(("next", *path)) == field
        ]
        names = {path: "" if len(pairs) == 1 else f"[{_leaf_key(path)!r}]" for path in pairs}
        roles = {path: f"obs{names[path]}" for path in pairs}
        roles |= {("next", *path): f"next_obs{names[path]}" for path in pairs}
        extras: dict[str, Field] = {}
        for path, field in fields.items():
            if path not in roles:
                roles[path] = _role(path, field) or _extra_name(path, extras)
                if roles[path] not in ("action", "reward", *FLAGS):
                    extras[roles[path]] = field
        obs: Any = {_leaf_key(path): fields[path] for path in pairs}
        if len(obs) < len(pairs):
            raise SpecError(f"two of the observations {sorted(pairs)} have the same name; rename one.")
        spec = Spec(
            obs=NOTHING if not pairs else fields[pairs[0]] if len(pairs) == 1 else obs,
            action=fields[ACTION] if roles.get(ACTION) == "action" else NOTHING,
            reward=Field((), fields[REWARD].dtype if roles.get(REWARD) == "reward" else "float32"),
            extras=extras,
        )
        return cls(tuple(Key(path, name, fields[path].shape) for path, name in roles.items()), spec)

    @classmethod
    def of_spec(cls, spec: Spec) -> Keys:
        """The keys for a lake that another program recorded, as TorchRL names them.

        Raises `SpecError` if two fields would have the same key, or one a key inside that of another.
        """
        keys = []
        roots = (("obs", (), spec.obs), ("next_obs", ("next",), spec.obs), ("action", ACTION, spec.action))
        for name, front, tree in roots:
            for path, leaf in leaves(tree, name):
                inner = tuple(map(str, keys_of(path.removeprefix(name)) or ()))
                rest = inner if inner or front == ACTION else ("observation",)
                keys.append(Key((*front, *rest), path, leaf.shape))
        keys.append(Key(("next", "reward"), "reward", spec.reward.shape or (1,)))
        keys += [Key(("next", name), name, (1,)) for name in (*FLAGS, "done")]
        keys += [Key((name,), name, field.shape) for name, field in spec.extras.items()]
        for one, other in pairwise(sorted(keys, key=lambda key: key.path)):
            if other.path[: len(one.path)] == one.path:
                raise SpecError(
                    f"{one.field} and {other.field} would have the keys {one.path} and {other.path} of a "
                    "TensorDict, which has room for one; read this lake with Lake.sample or LakeDataset."
                )
        return cls(tuple(keys), spec)

    def to_note(self) -> list[Any]:
        """As JSON, for the note of a commit."""
        return [[list(key.path), key.field, list(key.shape)] for key in self.keys]

    @classmethod
    def from_note(cls, note: Any, spec: Spec) -> Keys:
        """Back from JSON."""
        return cls(tuple(Key(tuple(path), field, tuple(shape)) for path, field, shape in note), spec)

    @classmethod
    def of_lake(cls, lake: Lake) -> Keys:
        """The keys that a lake was recorded with; those of its spec if another program recorded it."""
        commit = newest_noted(lake, NOTE)
        return cls.of_spec(lake.spec) if commit is None else cls.from_note(commit.note[NOTE], lake.spec)

    # --- to steps and back ---------------------------------------------------------------------------

    def to_steps(self, data: Any) -> dict[str, Any]:
        """The arguments of `Replay.record` for a TensorDict with one batch dimension."""
        count = data.shape[0]
        found = {_path(key): value for key, value in data.items(True, True)}
        values: dict[str, Array] = {}
        for key in self.keys:
            if key.path not in found:
                raise RecordError(f"the TensorDict has no {key.path}; it has {sorted(found)}.")
            tensor = found.pop(key.path)
            shape = self.spec.reward.shape if key.field == "reward" else key.shape
            values[key.field] = _array(tensor).reshape(count, *(() if key.field in FLAGS else shape))
        if found:
            raise RecordError(f"the TensorDict has {sorted(found)}, which earlier steps did not have.")
        nothing = np.zeros(count, np.uint8)
        ends = [values[key.field] for key in self.keys if key.path == ("next", "done")]
        done: Array = np.zeros(count, np.bool_)
        if ends:
            done = np.any(ends[0].reshape(count, -1), axis=1)
        terminated = values.pop("terminated", None)
        truncated = values.pop("truncated", None)
        if terminated is None:
            terminated = done if truncated is None else done & ~truncated
        return {
            "obs": _tree("obs", self.spec.obs, values, nothing),
            "next_obs": _tree("next_obs", self.spec.obs, values, nothing),
            "action": _tree("action", self.spec.action, values, nothing),
            "reward": values.get("reward", np.zeros(count, self.spec.reward.dtype)),
            "terminated": terminated,
            "truncated": done & ~terminated if truncated is None else truncated,
            **{name: values[name] for name in self.spec.extras},
        }

    def to_tensordict(self, batch: Batch) -> Any:
        """The TensorDict of a batch, whose arrays it shares."""
        shape = batch.step_id.shape
        named: dict[str, Array] = {
            **dict(leaves(batch.obs, "obs")),
            **dict(leaves(batch.next_obs, "next_obs")),
            **dict(leaves(batch.action, "action")),
            "reward": batch.reward,
            "terminated": batch.terminated,
            "truncated": batch.truncated,
            "done": batch.terminated | batch.truncated,
            **batch.extras,
        }
        data = TensorDict({}, shape)
        for key in self.keys:
            data.set(key.path, torch.from_numpy(named[key.field]).reshape(*shape, *key.shape))
        return data


def spec_of(data: Any) -> Any:
    """Return the `Spec` for a TensorDict from a collector: `Replay(spec_of(data), capacity)`."""
    return Keys.of_tensordict(_flat(data)[0]).spec


def record(replay: Replay, data: Any, *, first_stream: int = 0) -> Array:
    """Record a TensorDict from a collector, (time,) or (environments, time); return the ids of the steps.

    Each environment is a stream, numbered from `first_stream`: give each of several collectors its own range.
    """
    shape = data.shape
    if len(shape) not in (1, 2):
        raise RecordError(f"a collector yields (time,) or (environments, time), not the shape {list(shape)}.")
    steps = _flat(data.transpose(0, 1) if len(shape) == 2 else data)  # time first: streams take turns
    keys = Keys.of_tensordict(steps[0])
    if keys.spec != replay.spec:
        raise SpecError(
            f"the TensorDict has steps of {keys.spec}, the replay of {replay.spec}; see spec_of(data)."
        )
    count = shape[0] if len(shape) == 2 else 1
    streams = first_stream + np.tile(np.arange(count), len(steps) // count)
    return record_steps(replay, keys, steps, streams)


def record_steps(replay: Replay, keys: Keys, steps: Any, streams: Array) -> Array:
    """Record a TensorDict with one batch dimension in pieces that fit the replay."""
    piece = max(1, min(replay.capacity, PIECE_BYTES // keys.spec.step_nbytes))
    ids = []
    for at in range(0, len(steps), piece):
        some = slice(at, at + piece)
        ids.append(np.atleast_1d(replay.record(**keys.to_steps(steps[some]), stream=streams[some])))
    return np.concatenate(ids)


def _flat(data: Any) -> Any:
    if not is_tensor_collection(data):
        raise RecordError(f"steps must be TensorDicts, not {type(data).__name__}.")
    return data.reshape(-1)


def _tree(name: str, spec: Tree, values: Mapping[str, Array], nothing: Array) -> Tree:
    """The values of a tree of fields by their paths."""
    return rebuild(spec, (values.get(path, nothing) for path, _ in leaves(spec, name)).__next__)


def _role(path: Path, field: Field) -> str | None:
    """The field of a spec that a key is; None if it is an extra."""
    if path == ACTION:
        return "action"
    if path[0] == "next" and len(path) == 2 and int(np.prod(field.shape)) == 1:
        if path[1] == "reward" and np.dtype(field.dtype).kind == "f":
            return "reward"
        if path[1] in FLAGS and np.dtype(field.dtype).kind == "b":
            return path[1]
    return None


def _path(key: str | tuple[str, ...]) -> Path:
    return (key,) if isinstance(key, str) else tuple(key)


def _leaf_key(path: Path) -> str:
    return ".".join(path)


def _extra_name(path: Path, taken: Iterable[str]) -> str:
    """An identifier for a key, different from all others."""
    name = re.sub(r"\W", "_", "_".join(path))
    name = name if name.isidentifier() else f"key_{name}"
    while name in RESERVED or name in taken or name in ("action", "reward", "done"):
        name += "_"
    return name


def _field(path: Path, tensor: Any) -> Field:
    try:
        dtype = tensor.new_empty(0).cpu().numpy().dtype
    except TypeError:
        raise SpecError(f"{path} is {tensor.dtype}, which NumPy does not have; convert it first.") from None
    return Field(tuple(tensor.shape), dtype)


def _array(tensor: Any) -> Array:
    array: Array = tensor.detach().cpu().contiguous().numpy()
    return array


def positions_of(index: Any) -> Array:
    """A position, or several, as an array."""
    return np.asarray(index.cpu() if isinstance(index, torch.Tensor) else index)
