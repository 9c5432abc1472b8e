"""Commits of a lake by the notes that adapters made with them, and by their numbers."""

from __future__ import annotations

from contextlib import suppress

from lakepond.errors import LakeCorrupt, LakeNotFound
from lakepond.lake.format.commits import Commit
from lakepond.lake.read.lake import Lake


def newest_noted(lake: Lake, key: str) -> Commit | None:
    """The newest commit, up to the one that is open, whose note has this key; None if there is none.

    Commits that a replay makes by itself, because its capacity is exceeded, have no notes of the adapter.
    """
    if key in lake.commit.note:
        return lake.commit
    if len(lake.heads) == 1:  # each of several writers has notes of its own
        for number in reversed(lake.commits()):
            if number < lake.commit.number:
                with suppress(LakeCorrupt, LakeNotFound):  # deleted in the meantime
                    commit = lake.reader.heads[0].segments.commit(number)
                    if key in commit.note:
                        return commit
    return None


def commit_numbers(lake: Lake) -> dict[str, int]:
    """The number of the open commit of each writer."""
    return {name: head.number for name, head in lake.heads.items()}
