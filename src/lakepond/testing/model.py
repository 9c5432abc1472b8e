"""A reference model of a replay: a list of transitions, and the simplest correct answer to every question."""

from __future__ import annotations

from typing import Any

from lakepond.testing.worlds import same_bytes

Step = dict[str, Any]


class PlainReplay:
    """Stores every step as it was recorded; the newest `capacity` are live."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.all: list[Step] = []
        self.oldest = 0
        self.cuts: set[int] = set()
        """streams whose next step starts an episode"""
        self.cleared: set[int] = set()
        """streams whose last step was cleared, so that the next one has nothing to follow"""

    @property
    def recorded(self) -> int:
        """Steps ever recorded."""
        return len(self.all)

    def record(self, step: Step, *, follows: bool | None = None, alone: bool = False) -> None:
        """Append one step, with at least obs, next_obs, stream, reward, terminated and truncated.

        follows: whether it continues the previous step of its stream; None: if its obs is that next_obs.
        alone: it belongs to no sequence.
        """
        if step["stream"] in self.cuts | (self.cleared if follows is None else set()):
            follows = False
        self.cuts.discard(step["stream"])
        self.cleared.discard(step["stream"])
        self.all.append({**step, "follows": follows, "alone": alone})
        self.oldest = max(self.oldest, self.recorded - self.capacity)

    def clear(self) -> None:
        """Remove all steps; the next step of each stream follows none."""
        self.oldest = self.recorded
        self.cleared = {step["stream"] for step in self.all}

    def live(self) -> list[int]:
        """The ids of the live steps."""
        return list(range(self.oldest, self.recorded))

    def follow(self, step_id: int, length: int, cross: bool) -> list[int]:
        """A step and those after it in its stream, up to `length` of them."""
        ids = [step_id]
        while len(ids) < length:
            step = self.all[ids[-1]]
            if not cross and (step["terminated"] or step["truncated"]):
                break
            later = [i for i in range(ids[-1] + 1, self.recorded) if self.all[i]["stream"] == step["stream"]]
            if not later or step["alone"] or self.all[later[0]]["alone"]:
                break
            if not cross and not self._continues(later[0], step):
                break
            ids.append(later[0])
        return ids

    def _continues(self, step_id: int, previous: Step) -> bool:
        follows: bool | None = self.all[step_id]["follows"]
        return same_bytes(self.all[step_id]["obs"], previous["next_obs"]) if follows is None else follows

    def n_step(self, step_id: int, n: int, gamma: float) -> tuple[int, float, float]:
        """The last step, the return up to it, and the multiplier for the bootstrap value."""
        ids = self.follow(step_id, n, cross=False)
        total = sum(gamma**k * float(self.all[i]["reward"]) for k, i in enumerate(ids))
        last = self.all[ids[-1]]
        return ids[-1], total, 0.0 if last["terminated"] else gamma ** len(ids)

    def sequences(self, length: int, cross: bool) -> set[tuple[int, ...]]:
        """All sequences of that length."""
        found = (tuple(self.follow(i, length, cross)) for i in self.live())
        return {ids for ids in found if len(ids) == length}
