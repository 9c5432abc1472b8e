"""Lakes as folders of .npz files, one per episode, which NumPy alone reads, and back.

Each has `obs` (one more than there are steps), `action`, `reward`, `terminated`, `truncated`, `stream`,
`step_id` and the extras; dicts and tuples have one array per leaf, such as `obs['camera']`. An extra that is
named `step_id` is the array `extras['step_id']`.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from lakepond import untrusted
from lakepond.adapters.episodes import (
    Episode,
    Imported,
    Progress,
    column_of_extra,
    exporting,
    import_episodes,
)
from lakepond.errors import SpecError
from lakepond.lake.files import write_path
from lakepond.lake.read.lake import Lake
from lakepond.paths import on_disk
from lakepond.types import Array, Tree, keys_of, leaves

OTHER = ("reward", "terminated", "truncated", "stream", "step_id")


def export_npz(lake: Lake, folder: str | Path, *, progress: Progress | None = None) -> int:
    """Write the episodes one by one, each file atomically; return their number. `progress` counts steps."""
    count = 0
    for number, _, episode in exporting(lake, on_disk(folder), progress):
        write_path(on_disk(folder) / f"{number:06d}.npz", partial(_save, _named(episode)))
        count = number + 1
    return count


def _save(arrays: dict[str, Array], temporary: Path) -> None:
    """Write what `np.savez_compressed` writes; its parameters are not valid names of arrays there."""
    with zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, values in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, values, allow_pickle=False)


def _named(episode: Episode) -> dict[str, Array]:
    named = dict(leaves(episode.obs, "obs")) | dict(leaves(episode.action, "action"))
    named |= {column_of_extra(name): values for name, values in episode.extras.items()}
    named |= {name: getattr(episode, name) for name in ("reward", "terminated", "truncated")}
    named["stream"] = np.array(episode.stream)
    if episode.step_id is not None:
        named["step_id"] = episode.step_id
    return named


def import_npz(folder: str | Path, lake: str | Path, *, progress: Progress | None = None) -> Imported:
    """Import every .npz file of a folder, in the order of their names, as an episode of a new lake."""
    total = sum(1 for _ in on_disk(folder).glob("*.npz"))
    return import_episodes(read_npz(folder), lake, total=total, progress=progress)


def read_npz(folder: str | Path) -> Iterator[Episode]:
    """Yield the episodes of a folder of .npz files.

    Each has `obs` (one more than steps), `action`, `reward`, `terminated` and, if wanted, `truncated`. In a
    file without `terminated`, `done` is used instead, where not `truncated`. Any other array with one value
    per step is an extra. A file that is damaged or lacks an array raises `SpecError`, which names it. Nothing
    is unpickled.
    """
    files = sorted(on_disk(folder).glob("*.npz"))
    if not files:
        raise SpecError(f"{folder} has no .npz files; each is to be one episode.")
    for file in files:
        with untrusted.blaming(file, SpecError, "restore or remove it"):
            episode = _episode(file, untrusted.read_npz(file))
        yield episode


def _episode(file: Path, arrays: dict[str, Array]) -> Episode:
    from_done = "terminated" not in arrays and "done" in arrays
    if from_done:
        arrays["terminated"] = arrays.pop("done")
    trees = {
        kind: {n: a for n, a in arrays.items() if re.match(rf"{kind}(\[|$)", n)} for kind in ("obs", "action")
    }
    lacking = [name for name in ("reward", "terminated") if name not in arrays]
    lacking += [kind for kind, found in trees.items() if not found]
    if lacking:
        raise SpecError(f"{file} has no {' and no '.join(lacking)}; it has {sorted(arrays)}.")
    steps = len(arrays["reward"])
    columns = {name: arrays[name] for name in ("reward", "terminated")}
    columns["truncated"] = arrays.get("truncated", np.zeros(steps, bool))
    extras = {n: a for n, a in arrays.items() if n not in {*OTHER, *trees["obs"], *trees["action"]}}
    if (column := column_of_extra("step_id")) in extras:
        extras["step_id"] = extras.pop(column)
    lengths = {name: len(a) for name, a in {**trees["action"], **extras, **columns}.items()}
    lengths |= {name: len(a) - 1 for name, a in trees["obs"].items()}
    if set(lengths.values()) != {steps}:
        raise SpecError(f"{file} has {steps} rewards, but {lengths} steps (obs: one more); correct it.")
    for name, values in columns.items():
        if values.dtype.kind not in "biuf":
            raise SpecError(f"{file} has {name} of dtype {values.dtype}; it needs numbers or bools.")
    terminated, truncated = columns["terminated"].astype(bool), columns["truncated"].astype(bool)
    return Episode(
        obs=_tree(trees["obs"], "obs"),
        action=_tree(trees["action"], "action"),
        reward=columns["reward"],
        terminated=terminated & ~truncated if from_done else terminated,
        truncated=truncated,
        extras=extras,
        stream=int(arrays["stream"]) if "stream" in arrays else 0,
    )


def _tree(named: dict[str, Array], root: str) -> Tree:
    """`obs['a'][0]` and the like as the dicts and tuples they were."""
    leaves_by_keys = {}
    for path, values in named.items():
        keys = keys_of(path.removeprefix(root))
        if keys is None or tuple(keys) in leaves_by_keys:
            raise ValueError(f"{path!r} is not a part of {root}, or the same one as another")
        leaves_by_keys[tuple(keys)] = values
    return _nested(leaves_by_keys, root)


def _nested(named: dict[tuple[str | int, ...], Array], path: str) -> Tree:
    if list(named) == [()]:
        return named[()]
    if () in named:
        raise ValueError(f"{path!r} is an array and has parts")
    parts: dict[str | int, dict[tuple[str | int, ...], Array]] = {}
    for (first, *rest), values in named.items():
        parts.setdefault(first, {})[tuple(rest)] = values
    tree = {key: _nested(part, f"{path}[{key!r}]") for key, part in parts.items()}
    if all(isinstance(key, int) for key in tree):
        return tuple(tree[i] for i in range(len(tree)))
    return tree
