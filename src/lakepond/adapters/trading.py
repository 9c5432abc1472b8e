"""Drop-in for the trading project's replay buffers: the same names, each distinct market day once.

    from lakepond import ReplayBuffer          # was: from models.replay_buffer import ReplayBuffer

What `sample` returns are NumPy arrays; `torch.from_numpy` takes them without a copy.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lakepond.adapters import progress
from lakepond.adapters.legacy import legacy_capacity, read_legacy
from lakepond.errors import RecordError, SpecError, TooFewSteps
from lakepond.lake.lake import Lake
from lakepond.replay import Replay
from lakepond.types import Array, Batch, Field, Spec


class SavedBuffer(NamedTuple):
    """What a save came to."""

    transitions: int
    bytes_on_disk: int
    bytes_plain: int

    def __str__(self) -> str:
        ratio = self.bytes_plain / max(1, self.bytes_on_disk)
        return f"{self.transitions:,} transitions, {self.bytes_on_disk:,} B on disk, {ratio:,.0f} x smaller"


class ReplayBuffer:
    """A ring of transitions, shared by a whole population."""

    def __init__(self, capacity: int = 50_000, *, min_size: int = 10_000, seed: int | None = None) -> None:
        """`min_size`: transitions from which on `is_ready`. `seed`: makes sampling repeatable."""
        if not isinstance(capacity, int | np.integer) or capacity < 1:
            raise SpecError(
                f"capacity must be a whole number of transitions, at least 1, but is {capacity!r}."
            )
        self.capacity = int(capacity)
        self.min_size = min_size
        self.replay: Replay | None = None
        """made at the first `add`, which tells the shapes"""
        self._rng = np.random.default_rng(seed)

    def add(
        self,
        state: npt.ArrayLike,
        action: npt.ArrayLike,
        reward: float,
        next_state: npt.ArrayLike,
        done: bool,
        *,
        stream: int = 0,
    ) -> None:
        """Keep one transition. With `stream`, agents that take turns are told apart, which is faster."""
        state, next_state, action = np.asarray(state), np.asarray(next_state), np.asarray(action)
        if next_state.shape != state.shape or next_state.dtype != state.dtype:
            raise RecordError(
                f"next_state is {next_state.dtype.name}{list(next_state.shape)}, "
                f"state is {state.dtype.name}{list(state.shape)}; both must be alike."
            )
        if self.replay is None:
            self.replay = self._make(
                Spec(obs=Field(state.shape, state.dtype), action=Field(action.shape, action.dtype))
            )
        self.replay.record(
            obs=state,
            action=action,
            reward=np.float32(reward),
            next_obs=next_state,
            terminated=bool(done),
            truncated=False,
            stream=stream,
        )

    def _make(self, spec: Spec) -> Replay:
        return Replay(spec, self.capacity)

    def sample(self, batch_size: int) -> dict[str, Array]:
        """`batch_size` different transitions: states, actions, rewards, next_states, dones.

        Rewards and dones are float32 of the shape (batch_size, 1), as the networks expect them.
        """
        return _as_dict(self._draw(batch_size))

    def _draw(self, batch_size: int) -> Batch:
        if self.replay is None or len(self) < batch_size:
            raise TooFewSteps(f"{batch_size} transitions were asked for, but the buffer holds {len(self)}.")
        return self.replay.sample(batch_size, rng=self._rng, replace=False)

    def save(self, file_path: str | Path, compress: bool = True) -> SavedBuffer:
        """Save what the buffer holds, durable when it returns; saving again writes only what is new.

        `file_path` becomes a folder, a lake, which `load` opens. `compress=False` keeps its rows plain.
        """
        if self.replay is None:
            raise TooFewSteps("the buffer is empty; there is nothing to save.")
        commit = self.replay.save(Path(file_path), codec="zstd" if compress else "none")
        saved = SavedBuffer(len(self), sum(commit.files().values()), len(self) * self.replay.spec.step_nbytes)
        progress.say(f"saved to {file_path}: {saved}")
        return saved

    @classmethod
    def load(cls, file_path: str | Path, *, seed: int | None = None) -> Self:
        """A buffer that goes on where `save` left it, or one filled from an old pickle, plain or gzip.

        Pickles are read in pieces, by a reader that builds nothing but NumPy data. `seed`: makes sampling
        repeatable.
        """
        path = Path(file_path)
        if path.is_dir():
            with Lake.open(path) as lake:
                note = lake.commit.note
            buffer = cls(note.get("capacity", 50_000), seed=seed)
            if isinstance(buffer, PrioritizedReplayBuffer) and note.get("alpha") is not None:
                buffer.alpha = note["alpha"]
            buffer.replay = buffer._open(path)
            progress.say(f"loaded from {path}: {buffer._in_words()}")
            return buffer
        buffer = cls(legacy_capacity(path), seed=seed)
        with progress.bar(f"reading {path}") as drawn:
            for old in read_legacy(path, progress=drawn):
                buffer.add(old.state, old.action, float(old.reward), old.next_state, bool(old.done))
        progress.say(f"loaded from {path}: {buffer._in_words()}")
        return buffer

    def _in_words(self) -> str:
        if self.replay is None:
            return "no transitions"
        stats = self.replay.stats()
        return (
            f"{stats.steps:,} transitions in {stats.bytes_held:,} B, {stats.ratio:,.0f} x smaller than plain"
        )

    def _open(self, path: Path) -> Replay:
        return Replay.open_saved(path, self.capacity)

    def __len__(self) -> int:
        return 0 if self.replay is None else len(self.replay)

    @property
    def total_added(self) -> int:
        """Transitions ever added."""
        return 0 if self.replay is None else self.replay.stats().recorded

    def is_ready(self) -> bool:
        """Whether learning may start."""
        return len(self) >= self.min_size

    def close(self) -> None:
        """Let go of the folder it was saved to; what was added since the last save is not saved."""
        if self.replay is not None:
            self.replay.close()

    def clear(self) -> None:
        """Forget all transitions."""
        if self.replay is not None:
            self.replay.clear()

    def get_stats(self) -> dict[str, float]:
        """Size and capacity as ever, and what memory it takes."""
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
    """The same, drawn in proportion to priority ** alpha."""

    def __init__(
        self,
        capacity: int = 50_000,
        alpha: float = 0.6,
        beta: float = 0.4,
        *,
        min_size: int = 10_000,
        seed: int | None = None,
    ) -> None:
        super().__init__(capacity, min_size=min_size, seed=seed)
        self.alpha = alpha
        self.beta = beta

    def _make(self, spec: Spec) -> Replay:
        return Replay(spec, self.capacity, alpha=self.alpha)

    def _open(self, path: Path) -> Replay:
        return Replay.open_saved(path, self.capacity, alpha=self.alpha)

    def sample(self, batch_size: int) -> tuple[dict[str, Array], Array, Array]:  # type: ignore[override]
        """The batch, its step ids for `update_priorities`, and the importance weights.

        The ids never point to another transition, however much is added in between.
        """
        batch = self._draw(batch_size)
        return _as_dict(batch), batch.step_id, batch.weight

    def _draw(self, batch_size: int) -> Batch:
        if self.replay is None or len(self) < batch_size:
            raise TooFewSteps(f"{batch_size} transitions were asked for, but the buffer holds {len(self)}.")
        return self.replay.sample(batch_size, rng=self._rng, replace=False, beta=self.beta)

    def update_priorities(self, indices: npt.ArrayLike, td_errors: npt.ArrayLike) -> None:
        """Set the priorities of sampled transitions to their absolute TD errors."""
        if self.replay is None:
            raise TooFewSteps("the buffer is empty; there is no priority to update.")
        self.replay.update_priorities(indices, np.abs(np.asarray(td_errors, np.float64)).reshape(-1) + 1e-6)


def _as_dict(batch: Batch) -> dict[str, Array]:
    return {
        "states": batch.obs,
        "actions": batch.action,
        "rewards": batch.reward.reshape(-1, 1),
        "next_states": batch.next_obs,
        "dones": batch.terminated.astype(np.float32).reshape(-1, 1),
    }
