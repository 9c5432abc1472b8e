"""Lakes at URLs: `Lake.open` calls the layer that reads them, which is above this one and registers here."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

_cloud: Callable[[], Any] | None = None


def register(cloud: Callable[[], Any]) -> None:
    """`cloud`: returns a module with `open_lake` and `open_again`; called when a URL is opened."""
    global _cloud
    _cloud = cloud


def open_lake(url: str, commit: int | None, writer: str | None, cache: Path | None) -> Any:
    """A lake at a URL; see `Lake.open`."""
    return _registered().open_lake(url, commit, writer, cache)


def open_again(url: str, cache: Path, numbers: dict[str, int]) -> Any:
    """Open it at these commits of each writer; used for unpickling."""
    return _registered().open_again(url, cache, numbers)


def _registered() -> Any:
    assert _cloud is not None, "lakepond/__init__.py registers it"
    return _cloud()
