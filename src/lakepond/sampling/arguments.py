"""Arguments of `sample` and `steps`, the same for a replay and a lake: checked before anything is drawn."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from lakepond.errors import SampleError, TooFewSteps
from lakepond.types import Array

INTEGERS = (int, np.integer)  # `int | np.integer` would build a type in each call


def check_count(name: str, value: object, refuse: type[Exception] = SampleError) -> None:
    """Refuse anything but an integer of at least 1."""
    if not isinstance(value, INTEGERS) or value is True or value < 1:
        raise refuse(f"{name} must be an integer, at least 1, but is {value!r}.")


def check_number(
    name: str, value: Any, most: float = math.inf, refuse: type[Exception] = SampleError
) -> None:
    """Refuse anything but a finite number of at least 0 and at most `most`."""
    try:
        valid = 0 <= value <= most and value < math.inf
    except (TypeError, ValueError):  # a string, an array
        valid = False
    if not valid:
        what = "a finite number, at least 0," if most == math.inf else f"a number in [0, {most:g}]"
        raise refuse(f"{name} must be {what} but is {value!r}.")


def check_arguments(
    batch_size: int,
    n_step: int = 1,
    gamma: float | None = None,
    sequence_length: int | None = None,
    replace: bool = True,
    beta: float | None = None,
    **_: object,
) -> None:
    """Refuse invalid arguments of `sample`; others are ignored."""
    check_count("batch_size", batch_size)
    check_n_step(n_step, gamma)
    if beta is not None:
        check_number("beta", beta)
    if sequence_length is not None:
        check_count("sequence_length", sequence_length)
        if n_step > 1 or not replace:
            raise SampleError(
                f"sequence_length must be without n_step and replace, but is {sequence_length} with "
                f"n_step={n_step}, replace={replace}; compute returns from the sequence."
            )


def check_n_step(n_step: int, gamma: float | None) -> None:
    """Refuse an invalid number of steps or discount."""
    check_count("n_step", n_step)
    if gamma is not None:
        check_number("gamma", gamma, 1)
    if n_step > 1 and gamma is None:
        raise SampleError(f"n_step={n_step} needs the discount of one step; pass gamma=0.99, say.")


def check_ids(ids: Array, n_step: int, oldest: int, recorded: int, where: str) -> Array:
    """Step ids as int64; refused unless all of them are in [oldest, recorded). `where`: who has the steps."""
    if ids.dtype.kind not in "iu" and ids.size:  # an empty list is an array of float64
        raise SampleError(f"step ids are integers, not {ids.dtype.name}{list(ids.shape)}.")
    if n_step > 1 and ids.ndim != 1:
        raise SampleError(f"n-step returns take a list of step ids, not the shape {list(ids.shape)}.")
    if ids.size and ((first := ids.min()) < oldest or ids.max() >= recorded):
        if ids.max() >= recorded:
            wrong = f"step {ids.max()} was never recorded"
        else:
            wrong = f"step {first} is not valid" if first < 0 else f"step {first} is not stored any more"
        raise TooFewSteps(f"{wrong}: {where} has the steps [{oldest}, {recorded}).")
    return ids.astype(np.int64)


def check_generator(rng: object) -> None:
    """Refuse anything but a NumPy Generator."""
    if not isinstance(rng, np.random.Generator):
        raise SampleError(f"rng must be a numpy Generator, not {type(rng).__name__}; see default_rng.")


def left_out(paths: Sequence[str], exclude: Collection[str], only: Collection[str] | None) -> Collection[str]:
    """The observations that are not delivered, of all `paths`: those of `exclude`, or those not of `only`.

    A name stands for one observation ("next_obs['image']") or for all of them ("next_obs").
    """
    if only is None:
        return _named(paths, exclude, "exclude names observations to leave out") if exclude else ()
    if exclude:
        raise SampleError(f"pass exclude={exclude!r} or only={only!r}, not both.")
    return set(paths) - _named(paths, only, "only names observations to deliver")


def _named(paths: Sequence[str], names: Collection[str], what: str) -> set[str]:
    known = {*paths, "obs", "next_obs"}
    if isinstance(names, str) or not known.issuperset(names):
        raise SampleError(f"{what}, some of {sorted(known)}, but is {names!r}.")
    return {path for path in paths if any(path == name or path.startswith(f"{name}[") for name in names)}
