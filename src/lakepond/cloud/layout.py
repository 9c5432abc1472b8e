"""The names of a lake's objects in the cloud: those of its files on disk, and the leases of its readers."""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakepond.lake.format import commits, description
from lakepond.lake.format.names import SOURCES, folder_of

LEASES = "leases/"
KNOWN = (description.NAME, "commits/", "segments/", f"{SOURCES}/", LEASES)
"""all that belongs to a lake"""


def commit_name(number: int) -> str:
    """The object of one commit."""
    return f"commits/{commits.file_name(number)}"


def segment_name(name: str) -> str:
    """The object of one segment, or of a file that all writers share."""
    return f"{folder_of(name)}/{name}"


def commit_numbers(names: Iterable[str], under: str = "") -> list[int]:
    """The commits among the objects of a place, oldest first; other names in that folder are ignored."""
    form = re.compile(re.escape(under) + r"commits/([0-9]{10})\.json")
    found = (form.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match is not None)
