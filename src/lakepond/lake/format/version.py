"""The version of the format, in `lake.json`, every commit and every manifest.

A file names the version it was written in (`format`) and which features a reader must know to read it
correctly (`requires`). Unknown keys are ignored. A later version or an unknown feature is refused by name,
and is not damage: nothing moves or deletes such a file.
"""

from __future__ import annotations

from typing import Any

from lakepond.errors import LakeTooNew

FORMAT = 2
SOURCES = "sources"
FEATURES = frozenset({SOURCES})
"""features that this version knows: row files in the folder `sources`, which all writers share"""


def version(*requires: str) -> dict[str, Any]:
    """The first two keys of a file that is written now."""
    return {"format": FORMAT, "requires": list(requires)}


def check_version(content: Any, name: str) -> int:
    """The version of a file with this content; `LakeTooNew` if it cannot be read, ValueError if it has none.

    Files of version 1 have no `requires`, and their commits no `format`.
    """
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")
    found, requires = content.get("format", 1), content.get("requires", [])
    if type(found) is not int or found < 1 or not isinstance(requires, list):
        raise ValueError(f"it has the format {found!r}")
    if found > FORMAT:
        raise LakeTooNew(
            f"{name} was written in format {found}, this version reads up to {FORMAT}; update lakepond."
        )
    if unknown := [str(feature) for feature in requires if feature not in FEATURES]:
        raise LakeTooNew(
            f"{name} requires {', '.join(unknown)}, which this version does not support; update lakepond."
        )
    return found
