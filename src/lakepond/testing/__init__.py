"""For tests, ours and yours: worlds whose data tells on itself, and a perfect model to compare with."""

from lakepond.testing.model import PlainReplay
from lakepond.testing.worlds import WORLDS, World, same_bytes

__all__ = ["PlainReplay", "WORLDS", "World", "same_bytes"]
