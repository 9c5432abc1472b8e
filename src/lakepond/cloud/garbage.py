"""Garbage collection in the cloud: expired commits of all writers, and segments and row sources in no commit.

A commit is kept if `keep_last` or `keep_every` says so, if a checkpoint, a snapshot or the valid lease of a
reader names it, or if it is young. Each chain is collected alone, in two runs: the first marks what is
unused, the second deletes what still is. `collecting.py` has the order.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from lakepond.cloud import leases
from lakepond.cloud.chains import chain_names, chain_store
from lakepond.cloud.collecting import ChainCollector, ChainSwept, KeepRules, SourceCollector
from lakepond.cloud.fetching import CloudSegments
from lakepond.cloud.layout import SNAPSHOTS
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudError, CloudNotFound, LakeCorrupt, SpecError
from lakepond.lake import writers
from lakepond.lake.format import commits, description
from lakepond.lake.format.snapshots import commits_named
from lakepond.lake.read.catalog import Catalog, new_files
from lakepond.lake.write.retention import CHECKPOINT, check_kept, checkpointed, commit_of_state
from lakepond.paths import on_disk

log = logging.getLogger("lakepond")
DAY = 24 * 3600.0
SNAPSHOT, PRIORITIES = rf"{SNAPSHOTS}/[0-9]{{10}}\.json", rf"{SNAPSHOTS}/[0-9]{{10}}\.priorities"


@dataclass(frozen=True)
class Swept(ChainSwept):
    """Result of `gc` for all writers: what was deleted; a dry run: all that two runs would delete."""

    dry_run: bool = True
    snapshots: tuple[int, ...] = ()
    """the snapshots that were deleted"""
    sources: ChainSwept = field(default_factory=ChainSwept)
    """the row sources, which all writers share"""
    writers: dict[str, ChainSwept] = field(default_factory=dict)
    """the same for each writer; "" is the one without a name"""

    @classmethod
    def of(
        cls, found: dict[str, ChainSwept], sources: ChainSwept, snapshots: tuple[int, ...], dry_run: bool
    ) -> Swept:
        """The sum over all writers, and row sources."""
        each = [*found.values(), sources]
        return cls(
            commits=tuple(number for one in each for number in one.commits),
            segments=tuple(name for one in each for name in one.segments),
            bytes=sum(one.bytes for one in each),
            marked=tuple(name for one in each for name in one.marked),
            marked_bytes=sum(one.marked_bytes for one in each),
            young=sum(one.young for one in each),
            leased=tuple(number for one in each for number in one.leased),
            dry_run=dry_run,
            snapshots=snapshots,
            sources=sources,
            writers=found,
        )

    def __str__(self) -> str:
        return self.in_words(self.dry_run)


def gc(
    cloud: str | Cloud,
    *,
    keep_last: int | None = None,
    keep_every: int | None = None,
    keep_snapshots: int | None = None,
    older_than: float = DAY,
    dry_run: bool = True,
    lake: str | Path | None = None,
) -> Swept:
    """Delete old commits and unused files of a lake in the cloud; by default only report them.

    The first run marks what is unused; a run at least `older_than` later deletes what still is.

    keep_last, keep_every: keep the newest `keep_last` commits of each writer and those whose number is a
    multiple of `keep_every`; default: all. Commits that a checkpoint of the run or a snapshot refers to are
    always kept. keep_snapshots: keep only the newest `keep_snapshots` snapshots; default: all.
    older_than: minimum age of a deleted file, and minimum time between mark and deletion, in seconds.
    dry_run: report without changing anything. lake: a local copy of the lake; files that its commits and
    checkpoints refer to are kept, because its segments may exist only in the cloud.

    Files that a reader with a valid lease needs are kept. Raises `SpecError` for invalid arguments,
    `CloudNotFound` if the location has no lake with a commit. If one writer cannot be collected, the others
    are, before its error is raised.
    """
    check_kept(keep_last, keep_every)
    if keep_snapshots is not None and keep_snapshots < 0:
        raise SpecError(f"keep_snapshots must be at least 0, but is {keep_snapshots!r}.")
    store = Store(Cloud.of(cloud))
    chains = patiently(lambda: _chains(store), for_seconds=1.0, cap=store.cloud.retry_cap)
    checkpoints = _of_checkpoints(store.cloud, None if lake is None else on_disk(lake))
    files = set() if lake is None else _files_of(on_disk(lake), store, chains)
    snapshots = Snapshots(store)
    now = time.time() if dry_run else leases.server_time(store)
    deleted = snapshots.collect(keep_snapshots, older_than, now, dry_run)
    rules = KeepRules(keep_last, keep_every, older_than)

    def collector(chain: str) -> ChainCollector:
        def named() -> set[int]:
            return snapshots.commits(chain) | (set() if chain else checkpoints)

        return ChainCollector(chain_store(store, chain), rules, named, files, now)

    collectors = {chain: collector(chain) for chain in chains}
    found: dict[str, ChainSwept] = {}
    errors: list[CloudError] = []
    for chain in chains:
        try:
            found[chain] = collectors[chain].run(dry_run)
        except CloudError as error:
            errors.append(error)
    if errors:  # which sources are used is not known
        raise errors[0]
    sources = SourceCollector(store, rules, collectors, now).run(
        dry_run, files, lambda: {chain: collector(chain) for chain in chain_names(store)}
    )
    swept = Swept.of(found, sources, deleted, dry_run)
    log.info("%s: %s", store.cloud, swept)
    return swept


def _chains(store: Store) -> list[str]:
    chains = chain_names(store)
    if not chains or store.head(description.NAME) is None:
        raise CloudNotFound(f"{store.cloud} has no lake with a commit, so nothing is deleted.")
    return chains


class Snapshots:
    """The snapshots of a lake in the cloud, and the commits that they name."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heads: dict[str, dict[str, set[int]]] = {}  # by name; a snapshot never changes
        self._deleted: set[str] = set()

    def commits(self, chain: str) -> set[int]:
        """The commits of a chain that the snapshots name which exist now."""
        found: set[int] = set()
        for name in self._list():
            if name not in self._heads:
                try:
                    self._heads[name] = commits_named(self._store.read(name), name)
                except CloudNotFound:  # deleted in the meantime
                    continue
                except LakeCorrupt as error:
                    raise CloudCorrupt(f"{self._store.cloud}: {error}") from error
            found |= self._heads[name].get(chain, set())
        return found

    def collect(self, keep: int | None, older_than: float, now: float, dry_run: bool) -> tuple[int, ...]:
        """Delete all but the newest `keep` snapshots, and priorities without a snapshot; returns the numbers.

        From now on `commits` does not count these snapshots, in a dry run too.
        """
        listed = self._store.list(SNAPSHOTS)
        names = [name for name in sorted(listed) if re.fullmatch(SNAPSHOT, name)]
        old = {name for name, each in listed.items() if now - each.modified > older_than}
        going = [] if keep is None else [name for name in names[: max(0, len(names) - keep)] if name in old]
        self._deleted.update(going)
        kept = {name.removesuffix(".json") for name in names if name not in going}
        weights = [name for name in sorted(old) if re.fullmatch(PRIORITIES, name)]
        loose = [name for name in weights if name.removesuffix(".priorities") not in kept]
        for name in () if dry_run else (*going, *loose):
            self._store.delete(name)
        return tuple(int(name[len(SNAPSHOTS) + 1 :].removesuffix(".json")) for name in going)

    def _list(self) -> list[str]:
        listed = self._store.list(SNAPSHOTS)
        return [name for name in listed if re.fullmatch(SNAPSHOT, name) and name not in self._deleted]


def _files_of(lake: Path, store: Store, chains: list[str]) -> set[str]:
    """The segments that the commits of a lake on this disk refer to, of all its writers."""
    found: dict[str, int] = {}
    stores = {writers.folder_of(lake, chain): chain_store(store, chain) for chain in chains}
    for writer in writers.names(lake):
        home, place = writers.home(lake, writer), stores.get(writer, store)
        for number in commits.numbers(home / "commits"):
            new_files(Catalog(commits.read(home / "commits", number), CloudSegments(place, home)), found)
    return set(found)


def _of_checkpoints(cloud: Cloud, lake: Path | None) -> set[int]:
    """The commits that checkpoints name, of the run around this place and around a lake on this disk.

    Raises if one cannot be read: the commit that it needs is not known then.
    """
    found = set() if lake is None else checkpointed(lake)
    if (run := _around(cloud)) is not None:
        above = Store(run)
        for name in above.list("checkpoints"):
            if not re.fullmatch(rf"checkpoints/{CHECKPOINT.pattern}/state\.json", name):
                continue
            try:
                found |= commit_of_state(above.read(name))
            except ValueError as error:
                raise CloudCorrupt(
                    f"{name} of {run} cannot be read, so the commit that it needs is not known; nothing is "
                    f"deleted. Delete that checkpoint by hand if it is not needed ({error})."
                ) from error
    return found


def _around(cloud: Cloud) -> Cloud | None:
    """The place above this one; None if this is a whole bucket."""
    scheme, bucket, prefix = cloud.parts()
    if not prefix and (scheme != "file" or len(Path(bucket).parts) < 2):
        return None
    return replace(cloud, url=cloud.url.rstrip("/").rpartition("/")[0])
