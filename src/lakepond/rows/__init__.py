"""Each distinct row once: finding repeats, references, gather.

An observation is a window of rows. A row lies in a *slot* of one slab; a stream of windows is a
*track*, a sequence of slots in which neighbouring windows overlap; the reference to an observation
is one number, its start in a track::

    track of stream 0   … 7 8 9 10 11 │ 12 │ 13          each step adds one entry
                          └─ obs ──┘
                            └ next_obs ┘
    slab                 rows 7, 8, 9 … lie once, whoever refers to them
"""

from lakepond.rows.axis import RowAxis, find_row_axis
from lakepond.rows.store import RowStore

__all__ = ["RowAxis", "RowStore", "find_row_axis"]
