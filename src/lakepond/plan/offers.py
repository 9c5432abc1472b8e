"""Disks that are rented with a GPU. Assumptions: check them before renting, providers change them."""

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
    Offer("RunPod", 20 * GB, "container disk, if nothing else is asked for"),
    Offer("RunPod", 50 * GB, "the disk on which the trading run died at generation 5"),
    Offer("RunPod", 250 * GB, "volume disk of a chosen size, as was rented then"),
    Offer("Vast.ai", 10 * GB, "if nothing else is asked for"),
    Offer("Vast.ai", 100 * GB, "chosen when renting, fixed from then on"),
    Offer("Lambda Labs", 512 * GB, "comes with one A100; gone when it is terminated"),
)
