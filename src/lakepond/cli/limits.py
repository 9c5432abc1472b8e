"""Checks of numbers given as options: one sentence with the option, its limit and the value."""

from __future__ import annotations

import math

from lakepond.errors import SpecError


def at_least(least: float, **options: float | None) -> None:
    """`SpecError` if an option is less than `least` or not a finite number; None means "not given"."""
    for name, value in options.items():
        if value is not None and not (math.isfinite(value) and value >= least):
            raise SpecError(f"{_flag(name)} must be at least {least:g}, but is {value:.12g}.")


def between(least: float, most: float, **options: float) -> None:
    """`SpecError` if an option is not in [least, most]."""
    for name, value in options.items():
        if not least <= value <= most:
            raise SpecError(
                f"{_flag(name)} must be between {least:.12g} and {most:.12g}, but is {value:.12g}."
            )


def retention(keep_last: int | None, keep_every: int | None) -> None:
    """`SpecError` unless both are at least 1, and --keep-every is given only with --keep-last."""
    at_least(1, keep_last=keep_last, keep_every=keep_every)
    if keep_every is not None and keep_last is None:
        raise SpecError(f"--keep-every {keep_every} needs --keep-last, the number of newest commits to keep.")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
