"""Recent experience, in RAM: rows in a slab, small columns in a ring, priorities in a sum tree."""

from lakepond.pond.pond import Pond, Steps

__all__ = ["Pond", "Steps"]
