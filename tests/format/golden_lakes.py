"""The golden lakes by name, and how they were written (tests/lake/make_golden.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from lakepond.lake.format.sealed import seal

_FOLDER = Path(__file__).parents[1] / "lake"
_spec = importlib.util.spec_from_file_location("make_golden", _FOLDER / "make_golden.py")
assert _spec is not None
assert _spec.loader is not None
make_golden = sys.modules["make_golden"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(make_golden)

GOLDEN: dict[str, Any] = make_golden.GOLDEN
write = make_golden.write
LAKES = {
    str(file.parent.relative_to(make_golden.FOLDER)): file.parent
    for file in sorted(make_golden.FOLDER.rglob("lake.json"))
}


def as_format(content: dict[str, Any]) -> bytes:
    """Sealed JSON with this content."""
    return seal(content)
