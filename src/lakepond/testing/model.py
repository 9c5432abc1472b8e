"""The perfect model of a replay: a plain list of transitions, and the slowest right answer to everything."""

from __future__ import annotations

from typing import Any

from lakepond.testing.worlds import same_bytes

Step = dict[str, Any]


class PlainReplay:
    """Keeps every step as it was handed over; the newest `capacity` are live."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.all: list[Step] = []
        self.oldest = 0

    @property
    def recorded(self) -> int:
        """Steps ever recorded."""
        return len(self.all)

    def record(self, step: Step) -> None:
        """Append one step, with at least stream, reward, terminated and truncated."""
        self.all.append(step)
        self.oldest = max(self.oldest, self.recorded - self.capacity)

    def clear(self) -> None:
        """Forget all."""
        self.oldest = self.recorded

    def live(self) -> list[int]:
        """The ids held."""
        return list(range(self.oldest, self.recorded))

    def follow(self, step_id: int, length: int, cross: bool) -> list[int]:
        """A step and those after it in its stream, up to `length` of them."""
        ids = [step_id]
        while len(ids) < length:
            step = self.all[ids[-1]]
            if not cross and (step["terminated"] or step["truncated"]):
                break
            later = [i for i in range(ids[-1] + 1, self.recorded) if self.all[i]["stream"] == step["stream"]]
            if not later or not (cross or same_bytes(self.all[later[0]]["obs"], step["next_obs"])):
                break
            ids.append(later[0])
        return ids

    def n_step(self, step_id: int, n: int, gamma: float) -> tuple[int, float, float]:
        """The last step, the return up to it, and what the value after it counts."""
        ids = self.follow(step_id, n, cross=False)
        total = sum(gamma**k * float(self.all[i]["reward"]) for k, i in enumerate(ids))
        last = self.all[ids[-1]]
        return ids[-1], total, 0.0 if last["terminated"] else gamma ** len(ids)

    def sequences(self, length: int, cross: bool) -> set[tuple[int, ...]]:
        """All sequences of that length."""
        found = (tuple(self.follow(i, length, cross)) for i in self.live())
        return {ids for ids in found if len(ids) == length}
