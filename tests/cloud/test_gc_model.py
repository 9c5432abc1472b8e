"""`gc` beside writers, lazy readers and another `gc`: the real code, in random orders of requests.

Nothing that is named is ever deleted: no file of a commit that exists, no commit and no file that the valid
lease of a reader names, no commit of a snapshot. Readers that were opened read all of their steps. In the end
two more runs leave exactly the commits to keep.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from greenlet import getcurrent, greenlet
from inline import Inline
from simulation import DAY, HOUR, Held, Simulation
from small_runs import SPEC, record

import lakepond as lp
from lakepond.cloud import copying, garbage, leases, pace, store
from lakepond.cloud.chains import ChainCopy
from lakepond.cloud.copying import Copier
from lakepond.cloud.layout import commit_name, commit_numbers
from lakepond.cloud.slots import Changed
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudError, CloudNotFound, CloudUnreachable
from lakepond.flow import cloud_to_lake
from lakepond.lake.format import commits
from lakepond.lake.format.sealed import seal
from lakepond.lake.format.snapshots import commits_named

RUNS = int(os.environ.get("LAKEPOND_GC_RUNS", "40"))
CLOUD = lp.Cloud("memory://simulated/run", patience=HOUR)
NAMED = "worker.6553f100abcd"
COMMITS, STEPS = 6, 4
OLD = 4
"""commits that are days old in the beginning; all but the newest are marked, and due"""


class Histories:
    """Real lakes, made once: one writer's commits, and those of another machine that left it after `OLD`."""

    def __init__(self, folder: Path) -> None:
        self.a, self.b = folder / "a", folder / "b"
        how = {"capacity": 2 * STEPS, "max_steps": 2 * STEPS, "merge_after": None}
        with lp.Replay.open(self.a, SPEC, **how) as replay:
            for n in range(COMMITS):
                if n == OLD:
                    shutil.copytree(self.a, self.b)
                record(replay, n * STEPS, (n + 1) * STEPS)
                replay.commit()
        with lp.Replay.open(self.b, **how) as replay:
            for n in range(2):
                record(replay, 1000 + n * STEPS, 1000 + (n + 1) * STEPS)
                replay.commit()
        self.names: dict[bytes, frozenset[str]] = {}
        """the files of each commit, by its bytes"""
        for lake in (self.a, self.b):
            for number in commits.numbers(lake / "commits"):
                with lp.Lake.open(lake, number) as opened:
                    data = (lake / "commits" / commits.file_name(number)).read_bytes()
                    self.names[data] = frozenset(name for name, _ in opened.files())
        self.objects: dict[str, Held] = {}

    def prepare(self, folder: Path, monkeypatch) -> None:
        """Publish the old commits of two writers, and let a `gc` mark them."""
        world = World(0, self, folder)
        world.sim._faults = world.sim._stalls = 0.0
        install(world, monkeypatch)
        for chain in ("", NAMED):
            path = folder / f"prepare-{chain}"
            home = path / "writers" / chain if chain else path
            put_here(self.a, path, home)
            for n in range(OLD):
                os.link(self.a / "commits" / commits.file_name(n), home / "commits" / commits.file_name(n))
            Copier(ChainCopy(path, Store(CLOUD), chain), Inline(9)).round()
        world.sim.now += 2 * DAY
        garbage.gc(CLOUD, keep_last=1, dry_run=False)
        world.sim.now += 2 * DAY
        self.objects, self.now = world.sim.objects, world.sim.now


def put_here(source: Path, path: Path, home: Path) -> None:
    """A folder with all files of a lake, and none of its commits."""
    home.mkdir(parents=True, exist_ok=True)
    for folder in (home / "commits", home / "segments"):
        folder.mkdir()
    os.link(source / "lake.json", path / "lake.json")
    for file in (source / "segments").iterdir():
        os.link(file, home / "segments" / file.name)


class InlinePool:
    """An executor without threads."""

    def __init__(self, *_: object) -> None: ...

    def __enter__(self) -> InlinePool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, work: Callable, *arguments: object) -> Future:
        future: Future = Future()
        try:
            future.set_result(work(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


class InlineLease(leases.Lease):
    """A lease without a thread; `renew` is called by the reader."""

    made: ClassVar[dict[greenlet, InlineLease]] = {}
    """the last one of each reader"""
    before: ClassVar[Callable[[Store], None]]
    """called before the first request of each"""

    def pin(self, commit, names):
        self._asked += 1
        self._pinned[commit.number] = (commit.number, names)
        self.made[getcurrent()] = self
        type(self).before(self.store)
        if self.renew():
            self._check_there(commit, names)
        return lambda _: None

    def renew(self) -> bool:
        return self._attempt(self._asked, list(self._pinned.values()))

    def close(self) -> None:
        self._attempt(self._asked, [])


class World:
    """One simulated lake, and what must be true of it."""

    def __init__(self, seed: int, histories: Histories, folder: Path) -> None:
        self.sim = Simulation(seed)
        self.rng, self.histories, self.folder = self.sim.rng, histories, folder
        self.sim.on_delete = self.check_delete
        if histories.objects:
            self.chains = ("", NAMED) if self.rng.random() < 0.3 else ("",)
            self.sim.now = histories.now
            self.sim.objects = {
                name: held
                for name, held in histories.objects.items()
                if NAMED in self.chains or NAMED not in name
            }
        self.safe: dict[str, tuple[str, int, frozenset[str]]] = {}
        """readers that were told that their commit is safe: their lease, its chain, number and files"""
        self.acknowledged: list[tuple[str, int]] = []
        self.refused = self.opened = 0
        self.keep_last = self.rng.choice((1, 1, 2))

    # --- what must be true -------------------------------------------------------------------------

    def slots(self, chain: str) -> dict[int, bytes]:
        under = f"run/writers/{chain}/" if chain else "run/"
        return {
            number: self.sim.objects[under + commit_name(number)].data
            for number in commit_numbers((n for n in self.sim.objects if n.startswith(under)), under)
        }

    def check_delete(self, name: str) -> None:
        """Called before an object is deleted."""
        chain = NAMED if NAMED in name else ""
        short = name.rpartition("/")[2]
        if "/segments/" in name:
            for number, data in self.slots(chain).items():
                assert short not in self.histories.names[data], f"commit {number} names {name}"
        for lease, (where, number, files) in self.safe.items():
            held = self.sim.objects.get(lease)
            if where == chain and held is not None and self.sim.now - held.modified < leases.SECONDS:
                assert short not in files, f"{name} is leased"
                assert "/commits/" not in name or short != commits.file_name(number), f"{name} is leased"
        if "/commits/" in name:
            assert int(short[:10]) not in self.snapshot(chain), f"a snapshot names {name}"

    def snapshot(self, chain: str) -> set[int]:
        found: set[int] = set()
        for name, held in self.sim.objects.items():
            if "/snapshots/" in name:
                found |= commits_named(held.data, name).get(chain, set())
        return found

    def check_end(self) -> None:
        """Two more runs leave exactly the commits to keep, and each is complete."""
        self.sim._faults = self.sim._stalls = 0.0
        for _ in range(2):
            self.sim.now += 3 * DAY
            self.sim._apply_delayed()
            garbage.gc(CLOUD, keep_last=self.keep_last, dry_run=False)
        chains = {NAMED if NAMED in name else "" for name in self.sim.objects}
        for chain in chains:
            under = f"run/writers/{chain}/" if chain else "run/"
            slots = self.slots(chain)
            existing = {n.rpartition("/")[2] for n in self.sim.objects if n.startswith(f"{under}segments/")}
            named = frozenset().union(*(self.histories.names[data] for data in slots.values()))
            assert existing == named, f"{chain}: {existing ^ named}"
            kept = {*sorted(slots)[-self.keep_last :], *self.snapshot(chain)}
            assert set(slots) == kept, f"{chain}: {sorted(slots)} are there, {sorted(kept)} are kept"
            mine = [number for where, number in self.acknowledged if where == chain]
            assert not mine or max(slots) >= max(mine), f"{chain}: commit {max(mine)} is lost"
            assert not [name for name in self.sim.objects if name.startswith(f"{under}leases/")]

    # --- the actors --------------------------------------------------------------------------------

    def until_deleting(self, chain: Store) -> None:
        """Half of the time, sleep until a `gc` deletes in a chain, or for some minutes."""
        under = chain.cloud.parts()[2]
        for _ in range(30 if self.rng.random() < 0.5 else 0):
            if any(name.startswith(under) and name.endswith(".gc") for name in self.sim.objects):
                break
            self.sim.sleep(5.0)
        self.sim.sleep(self.rng.uniform(0, 60))

    def writer(self, source: Path, chain: str) -> Callable[[], None]:
        """A machine that makes commits and pushes them; it is restarted now and then."""

        def run() -> None:
            self.sim.sleep(self.rng.choice((100.0, 100.0, DAY)) * self.rng.random())
            path = self.folder / f"writer-{source.name}-{chain}"
            home = path / "writers" / chain if chain else path
            put_here(source, path, home)
            for n in range(OLD):
                os.link(source / "commits" / commits.file_name(n), home / "commits" / commits.file_name(n))
            copier = None
            for n in range(OLD, len(commits.numbers(source / "commits"))):
                os.link(source / "commits" / commits.file_name(n), home / "commits" / commits.file_name(n))
                while True:
                    if copier is None or self.rng.random() < 0.1:
                        copier = Copier(ChainCopy(path, Store(CLOUD), chain), Inline(9))
                    try:
                        copier.round()
                        break
                    except Changed:
                        continue
                    except CloudConflict:
                        self.refused += 1
                        return
                    except CloudError:
                        self.sim.sleep(self.rng.uniform(1, 60))
                self.acknowledged.append((chain, n))
                self.sim.sleep(self.rng.choice((60.0, HOUR, 12 * HOUR)))

        return run

    def reader(self, number: int) -> Callable[[], None]:
        """A machine that opens a commit lazily, and reads it later."""

        def run() -> None:
            self.sim.sleep(self.rng.uniform(0, 150))
            chain = self.rng.choice(self.chains)
            wanted = self.rng.choice((None, *self.slots(chain)))
            while True:
                try:
                    pulled = cloud_to_lake._pull(self.folder / f"reader-{number}", CLOUD, wanted, chain, True)
                    lake = lp.Lake(*pulled)
                    break
                except CloudNotFound:  # deleted before the lease was written
                    return
                except CloudError:
                    self.sim.sleep(self.rng.uniform(1, 60))
            lease = InlineLease.made.get(getcurrent())
            if lease is None or lease._served < lease._asked:
                return  # the lease could not be written: nothing is promised
            self.opened += 1
            key = f"run/{'writers/' + chain + '/' if chain else ''}{lease.name}"
            commit = next(iter(pulled.heads.values()))
            names = frozenset(name for name, _ in lake.files())
            self.safe[key] = (chain, commit.number, names)
            for _ in range(self.rng.randrange(4)):
                self.sim.sleep(self.rng.uniform(1, 20) * HOUR)
                lease.renew()
            held = self.sim.objects.get(key)
            valid = held is not None and self.sim.now - held.modified < leases.SECONDS / 2
            with suppress(CloudUnreachable if valid else CloudError):
                rewards = lake.steps(commit.oldest, commit.recorded).reward.tolist()
                assert rewards == [*range(commit.oldest, commit.recorded)] or rewards[-1] >= 1000
            del self.safe[key]
            lease.close()

        return run

    def collector(self) -> Callable[[], None]:
        """A machine that runs `gc` each day."""

        def run() -> None:
            for _ in range(2):
                self.sim.sleep(self.rng.uniform(0, 20))
                try:
                    garbage.gc(CLOUD, keep_last=self.keep_last, dry_run=False)
                except CloudError:
                    continue  # it is run again soon
                self.sim.sleep(1.1 * DAY)

        return run

    def follower(self) -> None:
        """A machine that stores a snapshot of the newest commits."""
        self.sim.sleep(self.rng.uniform(0, 150))
        heads = {
            chain: {"commit": max(slots), "digest": ""}
            for chain in self.chains
            if (slots := self.slots(chain))
        }
        place = Store(CLOUD)
        for _ in range(5):
            try:
                place.publish(
                    "snapshots/0000000000.json", seal({"format": 2, "heads": heads}), lambda _: True
                )
                return
            except CloudConflict:
                return
            except CloudError:
                self.sim.sleep(2.0)
        self.sim.sleep(self.rng.uniform(0, 60))


def install(world: World, monkeypatch) -> None:
    """Let lakepond use the simulated bucket and clock, and no threads."""
    clock = world.sim.time
    monkeypatch.setattr(store, "_bucket", lambda cloud: world.sim)
    for module in (leases, pace, garbage, copying):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(leases, "clock", clock.time)
    monkeypatch.setattr(cloud_to_lake, "Lease", InlineLease)
    monkeypatch.setattr(cloud_to_lake, "ThreadPoolExecutor", InlinePool)
    InlineLease.made.clear()
    InlineLease.before = world.until_deleting


def simulate(seed: int, histories: Histories, folder: Path, monkeypatch) -> World:
    world = World(seed, histories, folder)
    install(world, monkeypatch)
    sim, rng = world.sim, world.rng
    sim.actor("a", world.writer(histories.a, ""))
    if NAMED in world.chains:
        sim.actor("worker", world.writer(histories.a, NAMED))
    if rng.random() < 0.5:  # another machine that continues the same commit
        sim.actor("b", world.writer(histories.b, ""))
    for n in range(rng.choice((1, 2))):
        sim.actor(f"reader {n}", world.reader(n))
    for n in range(rng.choice((1, 1, 2))):
        sim.actor(f"gc {n}", world.collector(), pace=rng.choice((2.0, 8.0)))
    if rng.random() < 0.3:
        sim.actor("follower", world.follower)
    sim.run()
    world.check_end()
    return world


def test_nothing_that_is_named_is_deleted_in_any_order(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    logging.disable(logging.CRITICAL)
    histories = Histories(tmp_path)
    histories.prepare(tmp_path / "prepare", monkeypatch)
    opened = refused = 0
    for seed in range(RUNS):
        folder = tmp_path / str(seed)
        try:
            world = simulate(seed, histories, folder, monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise
        opened, refused = opened + world.opened, refused + world.refused
        shutil.rmtree(folder, ignore_errors=True)
    logging.disable(logging.NOTSET)
    assert opened > RUNS / 2
    assert refused > RUNS / 20
