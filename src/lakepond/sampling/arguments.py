"""Arguments of `sample` and `steps`, the same for a replay and a lake: checked before anything is drawn."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from lakepond.errors import SampleError, TooFewSteps
from lakepond.types import Array


def check_arguments(
    batch_size: int, n_step: int, gamma: float | None, sequence_length: int | None, replace: bool
) -> None:
    """Refuse invalid arguments of `sample`."""
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise SampleError(f"batch_size must be an integer, at least 1, but is {batch_size!r}.")
    check_n_step(n_step, gamma)
    if sequence_length is not None and (sequence_length < 1 or n_step > 1 or not replace):
        raise SampleError(
            f"sequence_length must be at least 1, without n_step and replace, but is {sequence_length} with "
            f"n_step={n_step}, replace={replace}; compute returns from the sequence."
        )


def check_n_step(n_step: int, gamma: float | None) -> None:
    """Refuse an invalid number of steps or discount."""
    if n_step < 1 or (gamma is not None and not 0 <= gamma <= 1):
        raise SampleError(f"n_step must be at least 1 and gamma in [0, 1], but are {n_step} and {gamma}.")
    if n_step > 1 and gamma is None:
        raise SampleError(f"n_step={n_step} needs the discount of one step; pass gamma=0.99, say.")


def check_ids(ids: Array, n_step: int, oldest: int, recorded: int, where: str) -> Array:
    """Step ids as int64; refused unless all of them are in [oldest, recorded). `where`: who has the steps."""
    if ids.dtype.kind not in "iu":
        raise SampleError(f"step ids are integers, not {ids.dtype.name}{list(ids.shape)}.")
    if n_step > 1 and ids.ndim != 1:
        raise SampleError(f"n-step returns take a list of step ids, not the shape {list(ids.shape)}.")
    if ids.size and (ids.min() < oldest or ids.max() >= recorded):
        raise TooFewSteps(
            f"steps {ids.min()}..{ids.max()} were asked for, but {where} holds [{oldest}, {recorded}); "
            "older ones have been evicted."
        )
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
