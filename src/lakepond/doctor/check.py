"""What one look at the machine found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Verdict = Literal["pass", "warn", "fail"]


@dataclass(frozen=True)
class Check:
    """What one look at the machine found."""

    name: str
    verdict: Verdict
    told: str
    next_step: str | None = None
