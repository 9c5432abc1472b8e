"""Recent experience in RAM: rows in a slab, small columns in a ring, priorities in a sum tree."""

from lakepond.pond.observations import SlotWindows
from lakepond.pond.pond import Pond, column_fields

__all__ = ["Pond", "SlotWindows", "column_fields"]
