"""Disks that providers rent with a GPU. Check them before renting: providers change them."""

from __future__ import annotations

from dataclasses import dataclass

AS_OF = "November 2026"
GB = 10**9


@dataclass(frozen=True)
class Offer:
    """A disk of a provider."""

    provider: str
    disk: int
    """bytes"""
    what: str


OFFERS = (
    Offer("RunPod", 20 * GB, "container disk, default size"),
    Offer("RunPod", 50 * GB, "container disk, enlarged"),
    Offer("RunPod", 250 * GB, "volume disk, size chosen when renting"),
    Offer("Vast.ai", 10 * GB, "default size"),
    Offer("Vast.ai", 100 * GB, "size chosen when renting, fixed afterwards"),
    Offer("Lambda Labs", 512 * GB, "with one A100; deleted with the instance"),
)
