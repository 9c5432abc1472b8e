"""Check that device ponds fit the memory of the device before they are allocated."""

from __future__ import annotations

from lakepond.errors import SpecError
from lakepond.formats import size
from lakepond.machine import memory

SHARE = 0.8
"""share of the free memory that ponds may take; networks, batches and the compiler need the rest"""


def free_bytes() -> int:
    """Free bytes on the default device, or in main memory if that is the CPU."""
    import jax

    stats = jax.devices()[0].memory_stats()
    if stats and "bytes_limit" in stats:
        return int(stats["bytes_limit"] - stats.get("bytes_in_use", 0))
    return memory().available


def check_fits(needed: int, steps: int) -> None:
    """Raise `SpecError` if ponds of `needed` bytes for `steps` steps do not fit the device."""
    room = free_bytes() * SHARE
    if needed > room:
        raise SpecError(
            f"a device pond of {steps:,} steps takes {size(needed)}, but there is room for "
            f"{size(room)} on the device; about {int(steps * room / needed):,} steps fit."
        )
