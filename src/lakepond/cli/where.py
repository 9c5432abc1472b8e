"""What a path on the command line refers to: a lake, a run, or a URL."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lakepond.errors import CloudUnreachable, LakeNotFound, SpecError

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud

LAKE, RUN = "lake.json", "config.json"


def is_url(path: str | Path) -> bool:
    """Whether this is a URL and not a folder."""
    return "://" in str(path)


def lake_folder(path: str | Path) -> Path:
    """The folder of the lake at a path: the path itself, or `lake/` of a run."""
    path = Path(path)
    if not path.exists():
        raise LakeNotFound(f"{path} does not exist; `lakepond ls` lists the lakes and runs below a folder.")
    for folder in (path, path / "lake"):
        if (folder / LAKE).is_file():
            return folder
    raise LakeNotFound(
        f"{path} is not a lake: it has no {LAKE}; `lakepond ls {path}` lists the lakes below it."
    )


def is_run(path: Path) -> bool:
    """Whether a folder is a run; another program may write a config.json, too."""
    from lakepond.errors import RunNotFound
    from lakepond.runs import Run

    try:
        Run.open(path)
    except RunNotFound:
        return False
    return True


def cloud_for(path: Path, url: str | None) -> Cloud:
    """Where to push a lake or a run: `url`, or the bucket in the environment (CLOUD_BUCKET).

    A URL that only the lake's own files contain is never used: somebody else may have written them.
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
            f"{path} was pushed to {named} before; confirm that it should go there: "
            f"lakepond push {path} {named}"
        )
    raise SpecError(f"give the URL to push {path} to, like gs://my-bucket/{path.resolve().name}.")


def check_bucket(place: Cloud) -> None:
    """Raise `CloudError` if credentials are missing or rejected, or if the bucket does not exist.

    A server that does not answer is not an error here: uploads wait for it.
    """
    from lakepond.cloud.bucket import Unlistable
    from lakepond.cloud.store import Store

    with suppress(CloudUnreachable, Unlistable):
        Store(place).list("leases")  # the folder with the fewest objects


def next_run(name: str) -> Path:
    """The first folder runs/NAME-1, runs/NAME-2, ... that does not exist."""
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def nothing_saved(folder: Path) -> str | None:
    """What to say after an interrupt if a run has no checkpoint to resume from."""
    if (folder / "checkpoints").exists():
        return None
    return f"Nothing was saved in {folder} yet; start the run again."
