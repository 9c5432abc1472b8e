"""Drop-in replacements for the replay buffers and the cloud sync of eigen2, a trading trainer in PyTorch.

    from lakepond.adapters.trading import ReplayBuffer, get_cloud_sync_from_env

With `device`, `sample` returns float32 tensors on it, as the project's own class does; without one, NumPy
arrays, and PyTorch is not imported.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lakepond.adapters import progress
from lakepond.adapters.cloud_sync import CloudSync
from lakepond.adapters.legacy import legacy_capacity, read_legacy
from lakepond.errors import RecordError, SpecError, TooFewSteps
from lakepond.flow.agents_to_pond import as_array
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.replay import Replay
from lakepond.types import Array, Batch, Field, Spec

__all__ = ["CloudSync", "PrioritizedReplayBuffer", "ReplayBuffer", "SavedBuffer", "get_cloud_sync_from_env"]
log = logging.getLogger("lakepond")


def get_cloud_sync_from_env(**settings: Any) -> CloudSync:
    """Create a `CloudSync` from `CLOUD_PROVIDER`, `CLOUD_BUCKET` and `CLOUD_PROJECT` (default eigen2).

    Credentials come from `GOOGLE_APPLICATION_CREDENTIALS` or `GCS_CREDENTIALS`, and from the other providers'
    usual variables. Without a provider nothing is uploaded.
    """
    env = os.environ
    return CloudSync(
        env.get("CLOUD_PROVIDER", "local").lower(),
        env.get("CLOUD_BUCKET"),
        env.get("CLOUD_PROJECT", "eigen2"),
        env.get("GOOGLE_APPLICATION_CREDENTIALS") or env.get("GCS_CREDENTIALS"),
        **settings,
    )


class SavedBuffer(NamedTuple):
    """Size of a save, as returned by `ReplayBuffer.save`."""

    transitions: int
    bytes_on_disk: int
    bytes_plain: int

    def __str__(self) -> str:
        ratio = self.bytes_plain / max(1, self.bytes_on_disk)
        return f"{self.transitions:,} transitions, {self.bytes_on_disk:,} B on disk, {ratio:,.0f} x smaller"


class ReplayBuffer:
    """A replay buffer with the interface of eigen2's class, shared by a population of agents."""

    alpha: float | None = None

    def __init__(
        self, capacity: int = 50_000, *, device: Any = None, min_size: int = 10_000, seed: int | None = None
    ) -> None:
        """`device`: where `sample` puts its tensors; None: NumPy arrays. `min_size`: see `is_ready`.

        `seed`: makes sampling repeatable. Without one, sampling follows `np.random.seed`, as in the project.
        """
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise SpecError(
                f"capacity must be a whole number of transitions, at least 1, but is {capacity!r}."
            )
        self.capacity = int(capacity)
        self.device = device
        self.min_size = min_size
        self.replay: Replay | None = None
        """created by the first `add`, which defines the shapes"""
        self._rng = None if seed is None else np.random.default_rng(seed)
        self._samplers: dict[int, Any] = {}

    def add(
        self,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        reward: float,
        next_state: npt.ArrayLike,
        done: float,
        *,
        stream: int = 0,
    ) -> None:
        """Add one transition. `done`: 0 or 1. `stream`: a number per agent, faster if agents take turns."""
        if done not in (0, 1):
            raise RecordError(f"done is {done!r}; it must be 0 or 1.")
        state, next_state = as_array("state", state), as_array("next_state", next_state)
        action = as_array("action", action)
        if next_state.shape != state.shape or next_state.dtype != state.dtype:
            raise RecordError(
                f"next_state is {next_state.dtype.name}{list(next_state.shape)}, "
                f"state is {state.dtype.name}{list(state.shape)}; both must be alike."
            )
        if self.replay is None:
            spec = Spec(obs=Field(state.shape, state.dtype), action=Field(action.shape, action.dtype))
            self.replay = Replay(spec, self.capacity, alpha=self.alpha)
        self.replay.record(
            obs=state,
            action=action,
            reward=np.float32(as_array("reward", reward)),
            next_obs=next_state,
            terminated=bool(done),
            truncated=False,
            stream=stream,
        )

    def sample(self, batch_size: int) -> Any:
        """Return a dict of `batch_size` distinct transitions: states, actions, rewards, next_states, dones.

        Rewards and dones are float32 of the shape (batch_size, 1). With a device all are float32 tensors.
        """
        return _as_dict(self._draw(batch_size))

    def _draw(self, batch_size: int, **options: Any) -> Batch:
        if self.replay is None or len(self) < batch_size:
            raise TooFewSteps(f"{batch_size} transitions were asked for, but the buffer holds {len(self)}.")
        if self._rng is None:
            self._rng = np.random.default_rng(np.random.randint(0, 1 << 31, 4))
        if self.device is None:
            return self.replay.sample(batch_size, rng=self._rng, replace=False, **options)
        if batch_size not in self._samplers:
            from lakepond.adapters.torch import TorchSampler

            replay: Any = self.replay
            self._samplers[batch_size] = TorchSampler(
                replay, batch_size, device=self.device, rng=self._rng, replace=False
            )
        batch: Batch = self._samplers[batch_size].sample(**options)
        return batch

    def save(self, file_path: str | Path, compress: bool = True) -> SavedBuffer:
        """Save all transitions durably; saving to the same path again writes only the new ones.

        `file_path` becomes a folder, a lake, which `load` opens; a pickle of that name is renamed to
        `<name>.old`. `compress=False` stores rows uncompressed.
        """
        if self.replay is None:
            raise TooFewSteps("the buffer is empty; there is nothing to save.")
        path = on_disk(file_path)
        old = path.with_name(path.name + ".old")
        if path.is_file():
            if old.exists():
                raise SpecError(f"{path} is a file and {old} exists; move one of them away.")
            path.rename(old)
            log.warning("%s was renamed to %s; delete it when you no longer need it.", path, old)
        commit = self.replay.save(path, codec="zstd" if compress else "none")
        saved = SavedBuffer(len(self), commit.totals.bytes, len(self) * self.replay.spec.step_nbytes)
        progress.print_line(f"saved to {file_path}: {saved}")
        return saved

    @classmethod
    def load(
        cls, file_path: str | Path, *, device: Any = None, min_size: int = 10_000, seed: int | None = None
    ) -> Self:
        """Load a buffer from a save, or from a pickle, uncompressed or gzip.

        Pickles are read in pieces, by a reader that builds only NumPy data. Options: those of the class.
        """
        path = on_disk(file_path)
        options = {"device": device, "min_size": min_size, "seed": seed}
        if path.is_dir():
            with Lake.open(path) as lake:
                note = lake.commit.note
            buffer = cls(note.get("capacity", 50_000), **options)
            if buffer.alpha is not None and note.get("alpha") is not None:
                buffer.alpha = note["alpha"]
            buffer.replay = Replay.open_saved(path, buffer.capacity, alpha=buffer.alpha)
        else:
            buffer = cls(legacy_capacity(path), **options)
            with progress.bar(f"reading {path}") as drawn:
                for old in read_legacy(path, progress=drawn):
                    buffer.add(old.state, old.action, float(old.reward), old.next_state, bool(old.done))
        found = "no transitions" if buffer.replay is None else buffer.replay.stats()
        progress.print_line(f"loaded from {path}: {found}")
        return buffer

    def __len__(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    @property
    def total_added(self) -> int:
        """Transitions ever added."""
        return 0 if self.replay is None else self.replay.stats().recorded

    def is_ready(self) -> bool:
        """Whether the buffer has at least `min_size` transitions."""
        return len(self) >= self.min_size

    def close(self) -> None:
        """Release the folder it was saved to; transitions added since the last save are not saved."""
        if self.replay is not None:
            self.replay.close()

    def clear(self) -> None:
        """Remove all transitions."""
        if self.replay is not None:
            self.replay.clear()

    def get_stats(self) -> dict[str, float]:
        """Size, capacity and memory use."""
        stats = {
            "size": len(self),
            "capacity": self.capacity,
            "utilization": len(self) / self.capacity,
            "total_added": self.total_added,
        }
        if self.replay is not None:
            held = self.replay.stats()
            stats |= {"bytes_held": held.bytes_held, "bytes_plain": held.bytes_plain, "ratio": held.ratio}
        return stats


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that samples in proportion to priority ** alpha."""

    def __init__(
        self,
        capacity: int = 50_000,
        alpha: float = 0.6,
        beta: float = 0.4,
        *,
        device: Any = None,
        min_size: int = 10_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(capacity, device=device, min_size=min_size, seed=seed)
        self.alpha, self.beta = alpha, beta

    def sample(self, batch_size: int) -> Any:
        """Return the dict, the step ids for `update_priorities`, and the importance weights (NumPy arrays).

        An id always refers to the same transition, also after further transitions were added.
        """
        batch = self._draw(batch_size, beta=self.beta)
        return _as_dict(batch), _on_host(batch.step_id), _on_host(batch.weight)

    def update_priorities(self, indices: npt.ArrayLike, td_errors: npt.ArrayLike) -> None:
        """Set the priorities of sampled transitions to their absolute TD errors."""
        if self.replay is None:
            raise TooFewSteps("the buffer is empty; there is no priority to update.")
        errors = np.asarray(as_array("td_errors", td_errors), np.float64)
        self.replay.update_priorities(indices, np.abs(errors).reshape(-1) + 1e-6)


def _as_dict(batch: Batch) -> dict[str, Any]:
    values: dict[str, Any] = {
        "states": batch.obs,
        "actions": batch.action,
        "rewards": batch.reward.reshape(-1, 1),
        "next_states": batch.next_obs,
        "dones": batch.terminated.reshape(-1, 1),
    }
    if isinstance(values["rewards"], np.ndarray):
        return values | {name: values[name].astype(np.float32) for name in ("rewards", "dones")}
    return {name: tensor.float() for name, tensor in values.items()}


def _on_host(values: Any) -> Array:
    found: Array = values if isinstance(values, np.ndarray) else values.cpu().numpy()
    return found
