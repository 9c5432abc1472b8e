"""Fill a device pond from the host: with steps that replace its content, or with rows of steps it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from lakepond.errors import SpecError
from lakepond.pond.device import DevicePond, PondState, check_shape
from lakepond.pond.device_priorities import no_priorities, set_weights
from lakepond.types import Array

COLUMNS = ("at", "next_at", "action", "reward", "terminated", "truncated")


def load(
    shape: DevicePond, pond: PondState, columns: Mapping[str, Array], pieces: Iterable[tuple[int, Array]]
) -> PondState:
    """Replace the content of a pond of one lane; called on the host, not in `jit`.

    columns: NumPy arrays (steps, ...) with the names of `COLUMNS`; positions of rows count from 0.
    pieces: (position, rows) in ascending order; together they cover all rows that the columns refer to.
    Each size of a piece is compiled once. The memory of `pond` is reused, so `pond` is invalid afterwards.

    Raises `SpecError` before anything is written if the steps or their rows do not fit.
    """
    count, rows_needed = len(columns["at"]), int(np.max(columns["next_at"], initial=-1)) + 1
    if shape.lanes != 1 or not 1 <= count <= shape.capacity or rows_needed > shape.rows:
        raise SpecError(
            f"{count:,} steps with {rows_needed:,} rows do not fit a device pond of {shape.lanes} lanes, "
            f"{shape.capacity:,} steps and {shape.rows:,} rows; load into one lane with enough of both."
        )
    newest = np.concatenate([columns["at"], columns["next_at"]])
    if newest.min() < shape.length - 1 or newest.max() >= rows_needed:
        raise SpecError(f"a loaded step refers to a row outside of the {rows_needed:,} rows loaded.")
    rows, written = pond.rows, 0
    for start, piece in pieces:
        check_shape("rows", piece, (len(piece), *shape.row))
        if not 0 <= start <= written < start + len(piece) <= rows_needed:
            raise SpecError(
                f"rows [{start:,}, {start + len(piece):,}) do not continue the {written:,} loaded so far of "
                f"{rows_needed:,}."
            )
        rows, written = _write(rows, piece, start), start + len(piece)
    if written != rows_needed:
        raise SpecError(f"{written:,} of {rows_needed:,} rows were loaded.")

    def column(name: str) -> jax.Array:
        like = getattr(pond, name)
        values = np.zeros(like.shape, like.dtype)
        values[0, :count] = columns[name]
        return jnp.asarray(values)

    priorities = None
    if shape.alpha is not None:
        priorities = set_weights(no_priorities(shape.capacity), jnp.arange(count), jnp.ones(count))
    return pond._replace(
        rows=rows,
        cursor=jnp.full(1, rows_needed, jnp.int32),
        steps=jnp.int32(count),
        oldest=jnp.zeros(1, jnp.int32),
        priorities=priorities,
        **{name: column(name) for name in COLUMNS},
    )


@partial(jax.jit, donate_argnums=0)
def _write(rows: jax.Array, piece: Array, start: int) -> jax.Array:
    """Write a piece at `start`; the caller checks that it fits, for JAX would move it silently."""
    where = (0, start, *[0] * (rows.ndim - 2))
    written: jax.Array = jax.lax.dynamic_update_slice(rows, jnp.asarray(piece, rows.dtype)[None], where)
    return written


@partial(jax.jit, static_argnums=0, donate_argnums=1)
def write_observations(
    shape: DevicePond, rows: jax.Array, lane: Array, newest: Array, obs: Array
) -> jax.Array:
    """The rows of a pond with observations (count, ...) whose newest rows are at these positions of lanes.

    An observation of lane `shape.lanes` is not written. The memory of `rows` is reused.
    """
    places = (newest[:, None] - jnp.arange(shape.length)[::-1]) % shape.rows
    frames = obs.reshape(len(obs), shape.length, *shape.row)
    return rows.at[lane[:, None], places].set(frames, mode="drop")
