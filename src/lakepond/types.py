"""What flows through lakepond, and what is declared about it.

A `Spec` says what one step looks like; a `Batch` is what `sample` delivers. Observations and actions
are single arrays or nested dicts and tuples of arrays, as in Gymnasium's Dict and Tuple spaces::

    Spec
    ├── obs      Field, or a tree of Fields     stored as rows, each distinct row once
    ├── action   Field, or a tree of Fields     stored as plain columns, as is all below
    ├── reward   Field
    └── extras   {name: Field}                  log-probabilities, agent ids: whatever the user adds
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lakepond.errors import SpecError

Array = npt.NDArray[Any]
Tree = Any
"""A leaf, or a dict or tuple of trees."""

STREAM_MAX = 2**31 - 1
RESERVED = frozenset(
    {"obs", "action", "reward", "next_obs", "terminated", "truncated", "stream", "follows_previous"}
)


FIELD_BYTES_MAX = 1 << 40
"""of one value; larger ones are typing errors, and sizes are to stay within 64 bits"""


@dataclass(frozen=True)
class Field:
    """One array of a step: its shape, its dtype and, in an observation, where its rows lie."""

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | str | type = "float32"
    rows: int | Literal["auto"] | None = "auto"
    """the axis along which an observation is a sequence of rows (0 or -1); None: the whole
    observation is one row; "auto": found from the first recorded steps"""

    def __post_init__(self) -> None:
        try:
            shape = tuple(int(n) for n in self.shape)
            dtype = np.dtype(self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            raise SpecError(
                f"Field({self.shape!r}, {self.dtype!r}) is no shape and dtype: {error}."
            ) from None
        if any(n < 1 for n in shape):
            raise SpecError(f"Field shape {shape} has an empty axis; every axis must be at least 1.")
        if dtype.fields is not None:
            raise SpecError(f"Field dtype {dtype} has fields of its own; give each its Field, in a dict.")
        if dtype.hasobject:
            raise SpecError(f"Field dtype {dtype} holds Python objects; use a numeric or fixed-width dtype.")
        if self.rows not in ("auto", None):
            if self.rows not in (0, -1, len(shape) - 1):
                raise SpecError(
                    f"Field rows={self.rows!r} must be 0 (first axis), -1 (last), None or 'auto'."
                )
            if not shape:
                raise SpecError("A scalar Field has no axis for rows; leave rows='auto' or set rows=None.")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        if self.nbytes > FIELD_BYTES_MAX:
            raise SpecError(f"One value of Field {self} takes {self.nbytes:,} bytes; the most is 1 TiB.")
        if self.rows not in ("auto", None, 0):
            object.__setattr__(self, "rows", -1)

    @property
    def nbytes(self) -> int:
        """The bytes of one value in plain form."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name}{list(self.shape)}"


@dataclass(frozen=True, eq=True)
class Spec:
    """What one step looks like."""

    obs: Tree
    action: Tree = field(default_factory=lambda: Field((), "int64"))
    reward: Field = field(default_factory=lambda: Field((), "float32"))
    extras: Mapping[str, Field] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("obs", "action"):
            found = [leaf for _, leaf in leaves(getattr(self, name), name)]
            if not found:
                raise SpecError(f"Spec {name} has no field; give a Field or a dict or tuple of Fields.")
            for path, leaf in leaves(getattr(self, name), name):
                if not isinstance(leaf, Field):
                    raise SpecError(f"Spec {path} is {type(leaf).__name__}; give a Field(shape, dtype).")
        if not isinstance(self.reward, Field):
            raise SpecError(f"Spec reward is {type(self.reward).__name__}; give a Field(shape, dtype).")
        for name, extra in self.extras.items():
            if name in RESERVED or not str(name).isidentifier():
                raise SpecError(f"Spec extra {name!r} must be an identifier and none of {sorted(RESERVED)}.")
            if not isinstance(extra, Field):
                raise SpecError(f"Spec extra {name!r} is {type(extra).__name__}; give a Field(shape, dtype).")
        object.__setattr__(self, "extras", dict(self.extras))
        for name in ("obs", "action"):  # lists become tuples, so that equal specs are equal
            object.__setattr__(self, name, _with_tuples(getattr(self, name)))

    def __hash__(self) -> int:
        fields = [*leaves(self.obs, "obs"), *leaves(self.action, "action"), *leaves(self.extras, "extras")]
        return hash((frozenset(fields), self.reward))

    @classmethod
    def from_spaces(
        cls, observation_space: Any, action_space: Any, *, extras: Mapping[str, Field] | None = None
    ) -> Self:
        """The spec of a Gymnasium environment; pass the *single* spaces of a vector environment."""
        return cls(
            obs=_field_of(observation_space, "observation space"),
            action=_field_of(action_space, "action space"),
            extras=extras or {},
        )

    @property
    def step_nbytes(self) -> int:
        """The bytes of one step in plain form: both observations, action, reward, two flags, extras."""
        obs = sum(leaf.nbytes for _, leaf in leaves(self.obs))
        action = sum(leaf.nbytes for _, leaf in leaves(self.action))
        return int(2 * obs + action + self.reward.nbytes + 2 + sum(e.nbytes for e in self.extras.values()))


def _with_tuples(tree: Tree) -> Tree:
    values = iter([leaf for _, leaf in leaves(tree)])
    return rebuild(tree, lambda: next(values))


def _field_of(space: Any, path: str) -> Tree:
    """A Gymnasium space as a tree of Fields, told by what it has, so that Gymnasium is not imported."""
    inner = getattr(space, "spaces", None)
    if isinstance(inner, Mapping):
        return {key: _field_of(sub, f"{path}[{key!r}]") for key, sub in inner.items()}
    if isinstance(inner, list | tuple):
        return tuple(_field_of(sub, f"{path}[{i}]") for i, sub in enumerate(inner))
    shape, dtype = getattr(space, "shape", None), getattr(space, "dtype", None)
    if shape is None or dtype is None or np.dtype(dtype).hasobject:
        raise SpecError(
            f"The {path} {type(space).__name__} has no fixed shape and dtype; "
            "flatten it with gymnasium.wrappers, or write the Spec by hand."
        )
    return Field(tuple(shape), np.dtype(dtype))


class Batch(NamedTuple):
    """Steps as `sample` delivers them, each array with a leading batch axis (then time, for sequences)."""

    obs: Tree
    action: Tree
    reward: Array
    """of one step, or the n-step return"""
    next_obs: Tree
    """the true one, also where the episode was truncated; n steps on for n-step returns"""
    terminated: Array
    truncated: Array
    discount: Array
    """multiplier for the bootstrap value of next_obs: gamma ** num_steps, 0 where the episode terminated"""
    weight: Array
    """importance weights of prioritised sampling; ones otherwise"""
    step_id: Array
    stream: Array
    extras: dict[str, Array]
    num_steps: Array
    """steps from obs to next_obs: n, or fewer where the episode ends or the stream ends for now"""


_tokens = itertools.count(1)


class RowSource:
    """Rows that an environment knows and hands over by position: a market history, a level, a video.

    The array is held as it is, read-only: its rows must not change while steps are recorded from it.
    """

    def __init__(self, rows: npt.ArrayLike) -> None:
        array = np.ascontiguousarray(rows)
        if array.ndim < 1 or array.dtype.hasobject:
            raise SpecError(f"RowSource needs an array of rows, not {array.dtype}{list(array.shape)}.")
        self.rows = array.view()
        self.rows.flags.writeable = False
        self.token = next(_tokens)
        """identifies it among all sources of this process"""

    @property
    def address(self) -> int:
        """Where the first row is in memory."""
        address: int = self.rows.__array_interface__["data"][0]
        return address

    def __reduce__(self) -> tuple[type[RowSource], tuple[Array]]:
        """A copy, also in another process, has its own rows, address and token."""
        return RowSource, (np.array(self.rows),)

    def __len__(self) -> int:
        return len(self.rows)


class WindowRef(NamedTuple):
    """The window of a source's rows that ends before `stop`: rows [stop - length, stop).

    The length is that of the observation. `stop` is a number, or an array of them for a batch.
    """

    source: RowSource
    stop: int | Array


@dataclass(frozen=True)
class Stats:
    """What a replay holds and what it takes."""

    steps: int
    """steps held"""
    capacity: int
    recorded: int
    """steps ever recorded"""
    streams: int
    """streams with live steps"""
    rows: int
    """distinct rows held"""
    bytes_held: int
    """all memory it takes"""
    bytes_plain: int
    """what the same steps would take plainly, each with both observations"""
    layout: dict[str, str]
    """how each observation is kept"""

    @property
    def ratio(self) -> float:
        """How many times smaller it is than in plain form."""
        return self.bytes_plain / self.bytes_held if self.bytes_held else 1.0

    def __str__(self) -> str:
        layout = "; ".join(f"{path}: {how}" for path, how in self.layout.items())
        return (
            f"{self.steps:,} of {self.capacity:,} steps, {self.rows:,} distinct rows, "
            f"{self.bytes_held:,} B held, {self.bytes_plain:,} B plainly, {self.ratio:.1f}x ({layout})"
        )


# --- trees ---------------------------------------------------------------------------------------


def leaves(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree with their paths, in the order of its keys."""
    if isinstance(tree, Mapping):
        for key, sub in tree.items():
            yield from leaves(sub, f"{path}[{key!r}]")
    elif type(tree) in (tuple, list):  # a WindowRef is a tuple, too, and a leaf
        for i, sub in enumerate(tree):
            yield from leaves(sub, f"{path}[{i}]")
    else:
        yield path, tree


def rebuild(tree: Tree, leaf: Callable[[], Any]) -> Tree:
    """A tree of the same form, whose leaves are what `leaf()` returns, in order."""
    if isinstance(tree, Mapping):
        return {key: rebuild(sub, leaf) for key, sub in tree.items()}
    if type(tree) in (tuple, list):
        return tuple(rebuild(sub, leaf) for sub in tree)
    return leaf()
