"""Store each distinct row once: find repeats, reference them, gather.

An observation is a window of rows. A row is stored in a *slot* of one slab; the windows of a stream are
slices of a *track*, a sequence of slots in which neighbouring windows overlap; the reference to an
observation is one number, its start in a track::

    track of stream 0   … 7 8 9 10 11 │ 12 │ 13          each step appends one entry
                          └─ obs ──┘
                            └ next_obs ┘
    slab                 rows 7, 8, 9 … are stored once, whatever references them
"""

from lakepond.rows.layouts import LayoutSearch
from lakepond.rows.store import RowStore

__all__ = ["LayoutSearch", "RowStore"]
