"""The names of a lake's objects in the cloud: those of its files on disk, and a few more.

    lake.json, sources/<digest>.source         of all writers
    commits/<number>.json, segments/<digest>   the chain of the writer without a name
    leases/<id>.json, boundary.json            of that chain
    garbage.json                               what `gc` found unused in that chain
    writers/<name>.<incarnation>/...           the chain of a named writer: the same five, for each
    sources/garbage.json                       what `gc` found unused in `sources/`
    snapshots/<number>.json                    views of all chains that followers have stored

A chain is the history of one writer: commits with increasing numbers, and the segments that they name. The
object at a commit's number is the slot of that number: the commit, or a skip if it was never published.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from lakepond.lake.format import commits, description
from lakepond.lake.format.names import CHAIN, SOURCES, folder_of
from lakepond.lake.writers import FOLDER

LEASES = "leases/"
BOUNDARY = "boundary.json"
GARBAGE = "garbage.json"
SOURCES_GARBAGE = f"{SOURCES}/garbage.json"
SNAPSHOTS = "snapshots"
KNOWN = (
    *(description.NAME, BOUNDARY, GARBAGE),
    *("commits/", "segments/", LEASES, f"{FOLDER}/", f"{SNAPSHOTS}/", f"{SOURCES}/"),
)
"""all that belongs to a lake"""


def chain_folder(chain: str) -> str:
    """The folder of a chain below the lake's place: "" for the writer without a name."""
    return f"{FOLDER}/{chain}" if chain else ""


def is_chain(name: str) -> bool:
    """Whether a folder in `writers/` of a bucket is the chain of a writer: `<name>.<incarnation>`."""
    return CHAIN.fullmatch(name) is not None


def commit_name(number: int) -> str:
    """The object of one commit."""
    return f"commits/{commits.file_name(number)}"


def segment_name(name: str) -> str:
    """The object of one segment: in its chain, or in the lake if all writers share it."""
    return f"{folder_of(name)}/{name}"


def commit_numbers(names: Iterable[str], under: str = "") -> list[int]:
    """The slots among the objects of a place, oldest first; other names in that folder are ignored."""
    form = re.compile(re.escape(under) + r"commits/([0-9]{10})\.json")
    found = (form.fullmatch(name) for name in names)
    return sorted(int(match[1]) for match in found if match is not None)
