"""What a path on the command line refers to: a lake, a run, or a URL."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from lakepond.errors import CloudUnreachable, LakeNotFound, SpecError

if TYPE_CHECKING:
    from lakepond.cloud.place import Cloud
    from lakepond.flow.following.chains import Chains
    from lakepond.lake.format.commits import Commit

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


def open_lake(path: str | Path) -> Chains:
    """The lake at a folder or URL, which may be that of a run; the commits of all its writers."""
    from lakepond.flow.following.chains import chains_at

    return chains_at(lake_at(path))


def lake_at(path: str | Path) -> Path | Cloud:
    """The folder or the place of the lake at a folder or URL, which may be that of a run."""
    return lake_in_cloud(str(path)) if is_url(path) else lake_folder(path)


def lake_in_cloud(url: str) -> Cloud:
    """The place of the lake at a URL: the URL itself, or `lake/` of a run."""
    from lakepond.cloud.place import Cloud
    from lakepond.runs.copies import is_run_in_cloud, lake_of

    place = Cloud.of(url)
    return lake_of(place) if is_run_in_cloud(place) else place


def commits_of(chains: Chains, writer: str | None) -> dict[str, list[int]]:
    """The numbers of the commits of each writer that has one, or of one writer.

    Raises `LakeNotFound` if there is no commit, `SpecError` if no writer has that name.
    """
    from lakepond.lake.read.lake import one_writer

    found = {name: numbers for name in chains.names() if (numbers := chains.numbers(name))}
    if not found:
        raise LakeNotFound(f"{chains} has no commit yet; `replay.commit()` creates one.")
    if writer is None:
        return found
    name = one_writer(str(chains), writer, found)
    if name not in found:
        raise SpecError(f"{chains} has no commit of a writer {writer!r}; it has those of {_names(found)}.")
    return {name: found[name]}


def only(chains: Chains, known: dict[str, list[int]]) -> str:
    """The only writer that a number of a commit can refer to."""
    if len(known) > 1:
        raise SpecError(
            f"{chains} has {len(known)} writers, and each numbers its own commits; name one with --writer: "
            f"{_names(known)}."
        )
    return next(iter(known))


def _names(known: Iterable[str]) -> str:
    return ", ".join(name or "''" for name in known)


def heads(chains: Chains, writer: str | None, commit: int | None) -> dict[str, Commit]:
    """One commit of each writer, or of one: the newest intact one, or the one with that number."""
    known = commits_of(chains, writer)
    if commit is not None:
        name = only(chains, known)
        return {name: chains.commit(name, commit)}
    found = {name: each for name in known if (each := chains.next(name, None)) is not None}
    if not found:
        raise LakeNotFound(f"{chains} has no intact commit; `lakepond verify` says what is damaged.")
    return found


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
