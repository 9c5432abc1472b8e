"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    verdict: Verdict
    result: str
    next_step: str | None = None


def judged(name: str, result: str, step: str, *, fail: bool = False, warn: bool = False) -> Finding:
    """A finding that fails, warns or passes; `step` says what to do unless it passes."""
    if fail or warn:
        return Finding(name, "fail" if fail else "warn", result, step)
    return Finding(name, "pass", result)
