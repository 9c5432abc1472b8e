"""What is recorded: a spec, a schedule, and assumptions about the data; `PRESETS` are workloads with a name.

The size of a replay that stores each distinct row once follows from the number of distinct rows:

    rows(steps) = min(pool, steps * new_rows + episodes * (rows of a window - 1))

`pool` is the number of rows that exist (the days of a market history); frames have no such limit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lakepond.errors import SpecError
from lakepond.types import Field, Spec, leaves

Range = tuple[float, float]
RowAxis = Literal["first", "last", "whole"]

PLAIN_BYTES = 256
"""a smaller observation is stored without deduplication"""


@dataclass(frozen=True)
class Shares:
    """Compressed size as a share of the uncompressed size: at best, at worst."""

    gzip: Range
    """of pickled transitions, by gzip level 6"""
    rows: Range
    """of distinct rows, by zstd level 1"""
    columns: Range
    """of actions, rewards and references, by zstd"""
    why: str
    """where these numbers come from"""


FLOATS = Shares(
    (0.33, 0.40),
    (0.85, 1.0),
    (0.85, 1.0),
    "gzip as reported for pickled market windows, rows as measured on market data",
)
IMAGES = Shares(
    (0.005, 0.10), (0.003, 0.10), (0.1, 1.0), "as measured on Atari games; noisier images compress less"
)

COUNTS = ("per_generation", "generations", "episode", "population", "batch_size", "upload_every")
OPTIONAL_COUNTS = ("capacity", "pool")


@dataclass(frozen=True)
class Workload:
    """A run to be planned."""

    spec: Spec
    per_generation: int
    """steps recorded in a generation (or a portion of training), after which everything is saved"""
    generations: int
    capacity: int | None = None
    """steps held in memory; None: all of them"""
    rows: RowAxis = "first"
    """the axis along which next_obs is obs shifted by one row; "whole": it is not shifted"""
    new_rows: float = 1.0
    """distinct rows that a step adds"""
    pool: int | None = None
    """number of distinct rows that exist; None: no limit"""
    episode: int = 1_000
    """steps of an episode; each starts with a new window"""
    population: int = 1
    agent_bytes: int = 15_000_000
    """the weights of one agent"""
    data_bytes: int = 0
    """the data set, besides the replay"""
    batch_size: int = 128
    upload_every: int = 5
    """generations between two uploads of the replay"""
    checkpoints_kept: int = 3
    shares: Shares = FLOATS

    def __post_init__(self) -> None:
        for name in (*COUNTS, *OPTIONAL_COUNTS):
            value = getattr(self, name)
            if value is not None and value < 1:
                least = "at least 1, or left out" if name in OPTIONAL_COUNTS else "at least 1"
                raise SpecError(f"--{name.replace('_', '-')} must be {least}, but is {value:,}.")

    @property
    def steps(self) -> int:
        """All steps of the run."""
        return self.per_generation * self.generations

    @property
    def column_bytes(self) -> int:
        """Bytes of a step besides its rows: action, reward, flags, extras, stream, references."""
        spec = self.spec
        fixed = spec.reward.nbytes + 2 + 4 + sum(extra.nbytes for extra in spec.extras.values())
        actions = sum(leaf.nbytes for _, leaf in leaves(spec.action))
        return int(fixed + actions + sum(2 * f.nbytes if is_small(f) else 16 for f in self.observed()))

    def held(self, steps: int) -> int:
        """How many of `steps` recorded steps are in memory."""
        return steps if self.capacity is None else min(steps, self.capacity)

    def row_bytes(self, steps: int) -> float:
        """Bytes of the distinct rows of `steps` steps, uncompressed."""
        return sum(self._rows(f, steps) * f.nbytes / self.length(f) for f in self.deduplicated())

    def distinct_rows(self, steps: int) -> int:
        """Number of distinct rows of `steps` steps."""
        return round(sum(self._rows(f, steps) for f in self.deduplicated()))

    def _rows(self, field: Field, steps: int) -> float:
        episodes = math.ceil(steps / self.episode)
        rows = steps * self.new_rows + episodes * max(1, self.length(field) - 1)
        return rows if self.pool is None else min(rows, self.pool)

    def length(self, field: Field) -> int:
        """Rows of an observation."""
        if self.rows == "whole" or len(field.shape) < 2:
            return 1
        return field.shape[0 if self.rows == "first" else -1]

    def observed(self) -> list[Field]:
        """The arrays of an observation."""
        return [leaf for _, leaf in leaves(self.spec.obs)]

    def deduplicated(self) -> list[Field]:
        """The arrays of an observation that are stored as rows."""
        return [leaf for leaf in self.observed() if not is_small(leaf)]


EIGEN2 = Workload(
    spec=Spec(obs=Field((504, 108, 9), "float32", rows=0), action=Field((108, 2), "float32")),
    per_generation=2_000,
    generations=25,
    capacity=50_000,
    pool=2_500,  # days of the market history: ten years
    episode=145,  # 125 days in which positions may be opened, 20 more to settle
    population=16,
    agent_bytes=15_000_000,
    data_bytes=500_000_000,
)
"""the trading run: 16 agents, 25 generations, windows of 504 days over one market history"""

GRAVITAR = Workload(
    spec=Spec(obs=Field((3, 84, 84), "uint8", rows=0), action=Field((), "int64")),
    per_generation=100_000,
    generations=10,
    population=5,  # four agents and the big one
    agent_bytes=7_000_000,  # a convolutional Q-network of 1.7M weights
    shares=IMAGES,
)
"""four Atari agents pouring into one lake: a million steps"""

PRESETS = {"eigen2": EIGEN2, "gpu": EIGEN2, "gravitar": GRAVITAR}
"""`gpu` records what `eigen2` does: its larger networks stay below what an agent is counted with there"""


def is_small(field: Field) -> bool:
    """Whether an observation is so small that it is stored without deduplication."""
    return field.rows == "auto" and field.nbytes <= PLAIN_BYTES


def shares_for(spec: Spec) -> Shares:
    """Assumed compression of data that was not measured: uint8 is images, everything else is numbers."""
    kinds = {np.dtype(leaf.dtype).kind for _, leaf in leaves(spec.obs)}
    small = all(is_small(leaf) for _, leaf in leaves(spec.obs))
    return IMAGES if kinds <= {"u", "b"} and not small else FLOATS


def parse_field(text: str) -> Field:
    """Parse `504,108,9:float32`; the dtype may be left out, and `:int64` alone is a scalar."""
    shape, _, dtype = text.partition(":")
    try:
        sides = tuple(int(side) for side in shape.split(",") if side.strip())
    except ValueError:
        raise SpecError(f"{text!r} is not a valid shape; write it like 504,108,9:float32.") from None
    return Field(sides, dtype or "float32")
