"""Check disk and memory while training, once per generation, with a forecast.

    guard = Guard(run.folder, min_free="20GB", at_floor="stop", last=config.generations)
    for generation in ...:
        run.log(generation, metrics | guard.check(generation))
        if guard.saving:
            run.save(generation, ...)
        if guard.stopping:
            break

`check` never raises if space is short: it logs a warning, early and with the generation at which space is
used up, and returns numbers for the metrics. What happens at the limit is a setting:

    warn          warn only
    stop_saving   `saving` is False until there is space again; training continues
    stop          `stopping` is True: end after this generation, all of it saved

The limit is reached before the disk is full. When nothing can be written, `trainers/loop.py` decides.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Literal

from lakepond import machine
from lakepond.errors import ConfigError
from lakepond.formats import size
from lakepond.lake.write.disk_guard import parse_bytes

log = logging.getLogger("lakepond")
AtFloor = Literal["warn", "stop_saving", "stop"]
AT_FLOOR: tuple[AtFloor, ...] = ("warn", "stop_saving", "stop")
METRICS = (
    "disk_free_bytes",
    "disk_floor_bytes",
    "disk_floor_at",
    "memory_available_bytes",
    "memory_floor_at",
    "rss_bytes",
    "device_bytes",
    "device_limit_bytes",
)
"""keys that `check` returns; they describe the machine, so a resumed run has other values"""
SOON = 20
"""warn when the floor will be reached within this many generations, if the last one is unknown"""
WINDOW = 8
"""generations over which the rate is taken"""
ENOUGH = 3
"""generations before there is a rate"""


class Guard:
    """Watches the disk a run is on, and the memory of this process."""

    def __init__(
        self,
        folder: str | Path,
        *,
        min_free: int | str = "20GB",
        at_floor: AtFloor = "warn",
        min_memory: int | str = "1GB",
        last: int | None = None,
        unit: str = "generation",
    ) -> None:
        """`min_free`: floor of the disk; `min_memory`: of main memory; `last`: the number it ends with."""
        if at_floor not in AT_FLOOR:
            raise ConfigError(f"at_floor is {at_floor!r}; it may be {', '.join(AT_FLOOR)}.")
        self.folder, self.at_floor, self.last, self.unit = Path(folder), at_floor, last, unit
        self.floor, self.memory_floor = parse_bytes(min_free), parse_bytes(min_memory)
        self.full = False
        """whether the last check found less than the floor"""
        self._disk, self._memory = _Trend(), _Trend()
        self._say_disk_at = self._say_memory_at = 0

    @property
    def saving(self) -> bool:
        """Whether to save now."""
        return not (self.full and self.at_floor == "stop_saving")

    @property
    def stopping(self) -> bool:
        """Whether to end after this generation."""
        return self.full and self.at_floor == "stop"

    def check(self, number: int) -> dict[str, float | int | None]:
        """Measure, warn if necessary, return the values for the metrics; to be called once per generation."""
        free = machine.free_disk(self.folder)
        available = machine.memory().available
        device = machine.device_memory()
        resident = machine.resident() or 0
        self._disk.look(number, -free)
        self._memory.look(number, resident)  # of this process: what others take is no trend
        disk_at = self._disk.reaches(number, free, self.floor)
        memory_at = self._memory.reaches(number, available, self.memory_floor)
        self.full = free < self.floor
        if self.full or self._is_near(disk_at, number):
            self._say_disk_at = self._warn(
                number, self._say_disk_at, disk_at, self._disk_text(number, free, disk_at)
            )
        if available < self.memory_floor or self._is_near(memory_at, number):
            text = self._memory_text(number, available, memory_at)
            self._say_memory_at = self._warn(number, self._say_memory_at, memory_at, text)
        used, limit = (None, None) if device is None else device
        values = (free, self.floor, disk_at, available, memory_at, resident, used, limit)
        return dict(zip(METRICS, values, strict=True))

    def _is_near(self, at: int | None, number: int) -> bool:
        """Whether a forecast matters: before the run ends, or soon if it has no end."""
        return at is not None and at <= (number + SOON if self.last is None else self.last)

    def _warn(self, number: int, say_at: int, at: int | None, text: str) -> int:
        """Log a warning unless one was logged recently; return when the next may be: half-way to there."""
        if number < say_at:
            return say_at
        log.warning("%s", text)
        return number + max(1, ((at or number) - number) // 2)

    def _disk_text(self, number: int, free: int, at: int | None) -> str:
        text = f"{size(free)} free at {self.folder}, the limit is {size(self.floor)}"
        text += self._forecast(self._disk, number, free, at)
        if not self.full:
            return (
                f"{text}; free some space, or keep fewer checkpoints (`lakepond plan --from {self.folder}`)."
            )
        done = {
            "warn": "training and saving continue; when nothing is left, training continues without saving",
            "stop_saving": "training continues; nothing is saved until there is space again, the replay is "
            "full of unsaved steps, or training ends",
            "stop": f"the run ends after this {self.unit}; free some space and resume it",
        }
        return f"{text}; {done[self.at_floor]}."

    def _memory_text(self, number: int, available: int, at: int | None) -> str:
        text = f"{size(available)} of memory available, the limit is {size(self.memory_floor)}"
        text += self._forecast(self._memory, number, available, at)
        return f"{text}; lower the capacity, or use a larger machine."

    def _forecast(self, trend: _Trend, number: int, left: int, at: int | None) -> str:
        if not trend.rate or at is None:
            return ""
        when = f"reached at about {self.unit} {at}"
        if at == number:
            when = f"used up at about {self.unit} {number + int(left / trend.rate)}"
        return f", {size(trend.rate)} used per {self.unit}: {when}"


class _Trend:
    """The rate at which a resource is used up: the median of the last checks, so one jump does not count.

    A compilation, a dataset that is unpacked, another process that begins: those happen once.
    """

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=WINDOW + 1)
        self.rate = 0.0
        """bytes that go each generation; 0 if none do, or not known yet"""

    def look(self, number: int, used: int) -> None:
        """Take note of how much is used now."""
        self._seen.append((number, used))
        rates = [(b - a) / (n - m) for (m, a), (n, b) in pairwise(self._seen) if n > m]
        self.rate = max(0.0, median(rates)) if len(rates) >= ENOUGH else 0.0

    def reaches(self, number: int, left: int, floor: int) -> int | None:
        """The number at which no more than `floor` is left; None while that is not known, or never."""
        if left <= floor:
            return number
        return number + int((left - floor) / self.rate) if self.rate else None
