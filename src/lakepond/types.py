"""The data types of lakepond.

A `Spec` declares the fields of one step; a `Batch` is what `sample` returns. Observations and actions
are single arrays or nested dicts and tuples of arrays, as in Gymnasium's Dict and Tuple spaces::

    Spec
    ├── obs      Field, or a tree of Fields     stored as rows, each distinct row once
    ├── action   Field, or a tree of Fields     stored as columns, like everything below
    ├── reward   Field
    └── extras   {name: Field}                  log-probabilities, agent ids: any further fields
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from lakepond import spaces
from lakepond.errors import SpecError

Array = npt.NDArray[Any]
Tree = Any
"""A leaf, or a dict or tuple of trees."""

STREAM_MAX = 2**31 - 1
_ESCAPED = r"\\(?:[\\'nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U00(?:0[0-9a-f]|10)[0-9a-f]{4})"
_KEY = rf"""\[('(?:[^'\\\n]|{_ESCAPED})*'|"(?:[^"\\\n]|{_ESCAPED})*"|0|[1-9]\d{{0,8}})\]"""
"""of a dict, as `repr` writes it, or of a tuple"""
RESERVED = frozenset(
    {"obs", "action", "reward", "next_obs", "terminated", "truncated", "stream", "follows_previous"}
)


FIELD_BYTES_MAX = 1 << 40
"""maximum bytes of one value; sizes stay within 64 bits, and a larger one is a mistake in the shape"""


class RowLayout(NamedTuple):
    """Observations made of rows: `size` adjacent slices along `axis` are one row."""

    axis: int
    """-1 for the last of several axes; otherwise counted from 0"""
    size: int = 1

    def length(self, shape: tuple[int, ...]) -> int:
        """Rows per observation."""
        return shape[self.axis] // self.size

    def __str__(self) -> str:
        return str(tuple(self) if self.size > 1 else self.axis)


def normal_axis(shape: tuple[int, ...], axis: int) -> int:
    """The number that stands for an axis: -1 for the last of several, otherwise counted from 0."""
    axis %= len(shape)
    return -1 if 0 < axis == len(shape) - 1 else axis


def _checked_rows(rows: Any, shape: tuple[int, ...]) -> int | tuple[int, int] | Literal["auto"] | None:
    """The `rows` of a Field with its axis normalised; `SpecError` if that shape cannot have them."""
    if rows is None or (isinstance(rows, str) and rows == "auto"):
        return rows  # type: ignore[return-value]
    axis, size = rows if isinstance(rows, tuple | list) and len(rows) == 2 else (rows, 1)
    if not all(isinstance(n, int | np.integer) and not isinstance(n, bool) for n in (axis, size)):
        raise SpecError(f"Field rows={rows!r} must be an axis, (axis, slices per row), None or 'auto'.")
    if not shape:
        raise SpecError("A scalar Field has no axis for rows; leave rows='auto' or set rows=None.")
    if not -len(shape) <= axis < len(shape):
        raise SpecError(
            f"Field rows={rows!r}: shape {shape} has no axis {axis}; give one below {len(shape)}."
        )
    if size < 1 or shape[axis] % size:
        raise SpecError(
            f"Field rows={rows!r}: shape {shape} has {shape[axis]} slices along axis {axis}, which cannot be "
            f"divided into rows of {size}; give a divisor of {shape[axis]}."
        )
    axis, size = normal_axis(shape, int(axis)), int(size)
    return axis if size == 1 else (axis, size)


@dataclass(frozen=True)
class Field:
    """One array of a step: its shape, its dtype and, for an observation, its row layout.

    Raises `SpecError` for an invalid shape, dtype or row layout, and for a value larger than 1 TiB.
    """

    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] | str | type = "float32"
    rows: int | tuple[int, int] | Literal["auto"] | None = "auto"
    """the axis along which an observation is a sequence of rows; (axis, size): `size` adjacent slices along
    it are one row, as in stacks of colour frames; None: the whole observation is one row; "auto": detected in
    the first recorded steps"""
    space: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """the Gymnasium space as JSON, with bounds or `n`: see `lakepond.spaces`; not compared by ==,
    because it does not change how steps are stored"""

    def __post_init__(self) -> None:
        try:
            shape = tuple(map(operator.index, self.shape))
            dtype = np.dtype(self.dtype)
        except (TypeError, ValueError, OverflowError) as error:
            given: Any = self.shape
            why = f" is not a valid shape and dtype: {error}"
            if isinstance(given, int | np.integer):
                why = f": write the shape as ({given},)"
            elif isinstance(given, str | type | np.dtype):
                why = ": the order is Field(shape, dtype)"
            raise SpecError(f"Field({given!r}, {self.dtype!r}){why}.") from None
        if any(n < 1 for n in shape):
            raise SpecError(f"Field shape {shape} has an empty axis; every axis must be at least 1.")
        if dtype.fields is not None:
            raise SpecError(f"Field dtype {dtype} has fields of its own; give each its Field, in a dict.")
        if dtype.hasobject:
            raise SpecError(f"Field dtype {dtype} holds Python objects; use a numeric or fixed-width dtype.")
        if not dtype.itemsize:
            raise SpecError(f"Field dtype {dtype} has no fixed width; give one, like 'U16' for text.")
        object.__setattr__(self, "rows", _checked_rows(self.rows, shape))
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", dtype)
        if self.nbytes > FIELD_BYTES_MAX:
            raise SpecError(f"One value of Field {self} takes {self.nbytes:,} bytes; the most is 1 TiB.")
        if self.space is not None:
            try:
                spaces.check(self.space, shape, dtype)
            except ValueError as error:
                raise SpecError(f"Field {self}: {error}.") from None

    @property
    def row_layout(self) -> RowLayout | None:
        """The declared row layout; None if the observation is one row or the layout is detected."""
        if self.rows is None or self.rows == "auto":
            return None
        return RowLayout(*self.rows) if isinstance(self.rows, tuple) else RowLayout(self.rows)

    @property
    def stack(self) -> int:
        """Rows per observation, if they are declared along the first axis; otherwise 1."""
        layout = self.row_layout
        return layout.length(self.shape) if layout is not None and layout.axis == 0 else 1

    @property
    def nbytes(self) -> int:
        """Bytes of one value, uncompressed."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{np.dtype(self.dtype).name}{list(self.shape)}"


@dataclass(frozen=True, eq=True)
class Spec:
    """The fields of one step: observation, action, reward and extras.

    `obs` and `action` are a `Field`, or a nested dict or tuple of Fields. Immutable and hashable.
    Raises `SpecError` if a field is missing, is not a `Field`, or has a reserved name.
    """

    obs: Tree
    action: Tree = field(default_factory=lambda: Field((), "int64"))
    reward: Field = field(default_factory=lambda: Field((), "float32"))
    extras: Mapping[str, Field] = field(default_factory=dict)
    env_spec: str | None = field(default=None, compare=False, repr=False)
    """the Gymnasium environment, as `env.spec.to_json()`; ignored when specs are compared"""

    def __post_init__(self) -> None:
        for name in ("obs", "action"):
            found = [leaf for _, leaf in leaves(getattr(self, name), name)]
            if not found:
                raise SpecError(f"Spec {name} has no field; give a Field or a dict or tuple of Fields.")
            for path, leaf in leaves(getattr(self, name), name):
                if not isinstance(leaf, Field):
                    kind, like = type(leaf).__name__, "lp.Field((4,), 'float32')"
                    raise SpecError(f"Spec {path} is {kind}; give a Field, like {like}.")
        if not isinstance(self.reward, Field):
            raise SpecError(f"Spec reward is {type(self.reward).__name__}; give a Field(shape, dtype).")
        extras: object = self.extras
        if not isinstance(extras, Mapping):
            raise SpecError(f"Spec extras is {type(extras).__name__}; give a dict of names and Fields.")
        for name, extra in extras.items():
            if name in RESERVED or not str(name).isidentifier():
                raise SpecError(f"Spec extra {name!r} must be an identifier and none of {sorted(RESERVED)}.")
            if not isinstance(extra, Field):
                raise SpecError(f"Spec extra {name!r} is {type(extra).__name__}; give a Field(shape, dtype).")
        object.__setattr__(self, "extras", dict(extras))
        for name in ("obs", "action"):  # lists become tuples, so that equal specs are equal
            object.__setattr__(self, name, map_leaves(lambda leaf: leaf, getattr(self, name)))

    def __hash__(self) -> int:
        return hash(frozenset(self.fields().items()))

    def fields(self) -> dict[str, Field]:
        """All fields by their path: "obs", "obs['camera']", "action", "reward", and extras by name."""
        trees = [*leaves(self.obs, "obs"), *leaves(self.action, "action")]
        return {**dict(trees), "reward": self.reward, **self.extras}

    def differences(self, other: Spec) -> str:
        """Which fields differ from another spec's: "log_prob is new; action is int64[], not int32[]"."""
        mine, theirs = self.fields(), other.fields()
        found = [f"{path} is missing" for path in theirs if path not in mine]
        for path, field_ in mine.items():
            if path not in theirs:
                found.append(f"{path} is new")
            elif str(field_) != str(theirs[path]):
                found.append(f"{path} is {field_}, not {theirs[path]}")
            elif field_ != theirs[path]:
                found.append(f"{path} has rows={field_.rows!r}, not rows={theirs[path].rows!r}")
        return "; ".join(found) or ("" if self == other else "a dict is a tuple there, or the reverse")

    @classmethod
    def from_spaces(
        cls,
        observation_space: Any,
        action_space: Any,
        *,
        extras: Mapping[str, Field] | None = None,
        dtype: npt.DTypeLike | None = None,
        env_spec: Any = None,
    ) -> Self:
        """Create the spec of a Gymnasium environment; pass the *single* spaces of a vector environment.

        extras: further fields of a step, by name. dtype: store float observations with this dtype; use
        "float32" with `Replay(..., cast=True)` if the environment returns float64. env_spec: `env.spec`,
        which is stored with the spec. Bounds and `n` of the spaces are stored too and written by exports.

        Raises `SpecError` for a space without a fixed shape and dtype.
        """
        obs = _field_of(observation_space, "observation space")
        if dtype is not None:
            wanted = np.dtype(dtype)
            obs = map_leaves(lambda f: replace(f, dtype=wanted) if np.dtype(f.dtype).kind == "f" else f, obs)
        return cls(
            obs=obs,
            action=_field_of(action_space, "action space"),
            extras=extras or {},
            env_spec=None if env_spec is None else str(env_spec.to_json()),
        )

    @property
    def step_nbytes(self) -> int:
        """Bytes of one step without deduplication: both observations, action, reward, two flags, extras."""
        obs = sum(leaf.nbytes for _, leaf in leaves(self.obs))
        action = sum(leaf.nbytes for _, leaf in leaves(self.action))
        return int(2 * obs + action + self.reward.nbytes + 2 + sum(e.nbytes for e in self.extras.values()))


def _field_of(space: Any, path: str) -> Tree:
    """Convert a Gymnasium space to a tree of Fields by its attributes, without importing Gymnasium."""
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
    return Field(tuple(shape), np.dtype(dtype), space=spaces.from_gymnasium(space))


class Batch(NamedTuple):
    """A batch of steps. Every array has a leading batch axis, followed by a time axis for sequences."""

    obs: Tree
    action: Tree
    reward: Array
    """the reward of one step, or the n-step return"""
    next_obs: Tree
    """the true next observation, also where the episode was truncated; for n-step returns, n steps later"""
    terminated: Array
    truncated: Array
    discount: Array
    """multiplier for the bootstrap value of next_obs: gamma ** num_steps, 0 where the episode terminated"""
    weight: Array
    """importance weights of prioritised sampling, otherwise ones"""
    step_id: Array
    stream: Array
    extras: dict[str, Array]
    num_steps: Array
    """steps from obs to next_obs: n, or fewer at the end of the episode and at the newest step of a stream"""


_tokens = itertools.count(1)


class RowSource:
    """An array of rows whose windows can be recorded by position: a market history, a level, a video.

    Pass `WindowRef(source, stop)` as an observation instead of an array. The array is not copied unless it is
    not contiguous; do not change it while steps are recorded from it. A pickled source contains its rows.
    Raises `SpecError` for a scalar or an array of Python objects.
    """

    def __init__(self, rows: npt.ArrayLike) -> None:
        array = np.asarray(rows)
        if array.ndim < 1 or array.dtype.hasobject:
            raise SpecError(f"RowSource needs an array of rows, not {array.dtype}{list(array.shape)}.")
        self.rows = np.ascontiguousarray(array).view()
        self.rows.flags.writeable = False
        self.token = next(_tokens)
        """identifies it among all sources of this process"""

    @property
    def address(self) -> int:
        """Memory address of the first row."""
        address: int = self.rows.__array_interface__["data"][0]
        return address

    def __reduce__(self) -> tuple[type[RowSource], tuple[Array]]:
        """A copy, also in another process, has its own rows, address and token."""
        return RowSource, (np.array(self.rows),)

    def __len__(self) -> int:
        return len(self.rows)


class WindowRef(NamedTuple):
    """The window [stop - length, stop) of a source's rows, recorded in place of an observation.

    `length` is the number of rows of the observation. `stop` is an integer, or an array of integers for a
    batch.
    """

    source: RowSource
    stop: int | Array


@dataclass(frozen=True)
class Stats:
    """Counts and memory use of a replay, as returned by `Replay.stats`."""

    steps: int
    """live steps"""
    capacity: int
    recorded: int
    """steps ever recorded"""
    streams: int
    """streams with live steps"""
    rows: int
    """distinct rows stored"""
    bytes_held: int
    """memory of the replay, in bytes"""
    bytes_plain: int
    """bytes of the same steps without deduplication, each with both observations"""
    layout: dict[str, str]
    """the row layout of each observation, by its path"""
    hints: dict[str, str] = field(default_factory=dict)
    """for each observation that would be smaller in another row layout: that layout, and how to declare it"""
    background_failures: int = 0
    """failed merges, deletions of files, pushes and commits of `push_every`; each reason is logged once"""

    @property
    def ratio(self) -> float:
        """Compression ratio: `bytes_plain` divided by `bytes_held`."""
        return self.bytes_plain / self.bytes_held if self.bytes_held else 1.0

    def __str__(self) -> str:
        hints = {
            path: f"{how}; {self.hints[path]}" if path in self.hints else how
            for path, how in self.layout.items()
        }
        layout = "; ".join(f"{path}: {how}" for path, how in hints.items())
        rows = f"{self.rows:,} distinct rows, " if self.rows else ""
        return (
            f"{self.steps:,} of {self.capacity:,} steps, {rows}{self.bytes_held:,} B in memory, "
            f"{self.bytes_plain:,} B without deduplication, {self.ratio:.1f}x ({layout})"
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


def keys_of(path: str) -> list[str | int] | None:
    """The keys in a path that `leaves` made; None for any other text."""
    if not re.fullmatch(rf"(?:{_KEY})*", path):
        return None
    return [ast.literal_eval(key) for key in re.findall(_KEY, path)]  # of a pattern that is always valid


def rebuild(tree: Tree, leaf: Callable[[], Any]) -> Tree:
    """A tree of the same form, whose leaves are what `leaf()` returns, in order."""
    if isinstance(tree, Mapping):
        return {key: rebuild(sub, leaf) for key, sub in tree.items()}
    if type(tree) in (tuple, list):
        return tuple(rebuild(sub, leaf) for sub in tree)
    return leaf()


def join_trees(trees: Sequence[Tree], join: Callable[[list[Array]], Array]) -> Tree:
    """One tree whose arrays are `join(...)` of those with the same path; a leaf that is None stays None.

    The dicts may have their keys in different orders.
    """
    parts = [dict(leaves(tree)) for tree in trees]
    joined = (None if one is None else join([part[path] for part in parts]) for path, one in parts[0].items())
    return rebuild(trees[0], joined.__next__)


def map_leaves(change: Callable[[Any], Any], tree: Tree) -> Tree:
    """A tree of the same form whose leaves are `change(leaf)`, called in the order of `leaves`."""
    return rebuild(tree, map(change, [leaf for _, leaf in leaves(tree)]).__next__)
