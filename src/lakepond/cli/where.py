"""What a path on the command line names: a lake, the run around one, or a bucket's address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lakepond.errors import LakeNotFound, SpecError

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud

LAKE, RUN = "lake.json", "config.json"


def is_url(path: str | Path) -> bool:
    """Whether this is an address in the cloud, not a folder."""
    return "://" in str(path)


def lake_folder(path: str | Path) -> Path:
    """The lake at a path: the folder itself, or `lake/` of the run it is."""
    path = Path(path)
    if not path.exists():
        raise LakeNotFound(f"{path} does not exist; `lakepond ls` lists the lakes and runs below a folder.")
    for folder in (path, path / "lake"):
        if (folder / LAKE).is_file():
            return folder
    raise LakeNotFound(f"there is no lake at {path} (no {LAKE}); `lakepond ls {path}` lists those below it.")


def is_run(path: Path) -> bool:
    """Whether a folder is a run's; a config.json alone may be of something else."""
    from lakepond.errors import RunNotFound
    from lakepond.runs import Run

    try:
        Run.open(path)
    except RunNotFound:
        return False
    return True


def cloud_for(path: Path, url: str | None) -> Cloud:
    """Where a lake or a run is to be pushed: as told, or where it was before, or as the environment says."""
    from lakepond.cloud.place import Cloud
    from lakepond.lake.elsewhere import known

    if url is not None:
        return Cloud.of(url)
    before = set(known(lake_folder(path)).values())
    if len(before) == 1:
        place = before.pop()
        return Cloud.of(place.removesuffix("/lake") if is_run(path) else place)
    place_named = Cloud.from_env(prefix=path.resolve().name)
    if place_named is None:
        raise SpecError(
            f"name the bucket that {path} shall go to, like gs://my-bucket/{path.resolve().name}."
        )
    return place_named
