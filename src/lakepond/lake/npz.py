"""A lake as a folder of episodes that NumPy alone reads: `000000.npz`, `000001.npz`, ...

Each has `obs` (one more than there are steps), `action`, `reward`, `terminated`, `truncated`, `stream`,
`step_id` and the extras; dicts and tuples are spelled out, as in `obs['camera']`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np

from lakepond.errors import SpecError
from lakepond.lake.episodes import Episode
from lakepond.lake.files import write_path
from lakepond.types import Array, leaves


def write_npz(
    folder: Path, episodes: Iterable[Episode], *, total: int, progress: Callable[[int, int], None] | None
) -> int:
    """Write episodes one by one, each file whole or not there; returns how many."""
    if folder.exists() and any(folder.iterdir()):
        raise SpecError(f"{folder} is there already; name a new folder.")
    folder.mkdir(parents=True, exist_ok=True)
    count = steps = 0
    for episode in episodes:
        write_path(folder / f"{count:06d}.npz", partial(_save, _named(episode)))
        count, steps = count + 1, steps + episode.steps
        if progress is not None:
            progress(steps, total)
    return count


def _save(arrays: dict[str, Array], aside: Path) -> None:
    with aside.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def _named(episode: Episode) -> dict[str, Array]:
    named = dict(leaves(episode.obs, "obs")) | dict(leaves(episode.action, "action")) | episode.extras
    named |= {name: getattr(episode, name) for name in ("reward", "terminated", "truncated")}
    named["stream"] = np.array(episode.stream)
    if episode.step_id is not None:
        named["step_id"] = episode.step_id
    return named
