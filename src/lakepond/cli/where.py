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
    """Where to push a lake or a run: to `url`, or to the bucket of the environment (CLOUD_BUCKET).

    An address that only the lake's own files name is never used: they may have come from somebody else.
    """
    from lakepond.cloud.place import Cloud
    from lakepond.lake.elsewhere import known

    place = Cloud.of(url) if url is not None else Cloud.from_env(prefix=path.resolve().name)
    if place is not None:
        return place
    before = sorted(set(known(lake_folder(path)).values()))
    if before:
        named = before[0].removesuffix("/lake") if is_run(path) else before[0]
        raise SpecError(
            f"{path} says that it was pushed to {named}; if you want it there, "
            f"confirm it: lakepond push {path} {named}"
        )
    raise SpecError(f"name the bucket that {path} shall go to, like gs://my-bucket/{path.resolve().name}.")
