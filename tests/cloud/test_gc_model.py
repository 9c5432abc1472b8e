"""`gc` beside writers, lazy readers, a follower and another `gc`: the real code in random orders of requests.

Nothing that is named is ever deleted: no file of a commit that exists, no commit and no file that the valid
lease of a reader names, no commit of a snapshot. Readers that were opened read all of their steps, a follower
reads each step once, and its snapshot can be loaded in the end. Then two more runs leave exactly the commits
to keep, and the segments and row sources that they name.
"""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from greenlet import getcurrent, greenlet
from inline import Inline
from simulation import DAY, HOUR, Held, Simulation
from small_runs import SPEC, record

import lakepond as lp
from lakepond import background
from lakepond.cloud import garbage, leases, pace, store
from lakepond.cloud.chains import ChainCopy
from lakepond.cloud.copying import Copier
from lakepond.cloud.layout import commit_name, commit_numbers
from lakepond.cloud.slots import Changed
from lakepond.cloud.store import Store
from lakepond.errors import CloudConflict, CloudError, CloudNotFound, CloudUnreachable
from lakepond.flow import cloud_to_lake
from lakepond.flow.following import cloud_chains, snapshots
from lakepond.flow.following import follower as following
from lakepond.flow.following.cloud_chains import CloudChains
from lakepond.flow.following.limits import Limits
from lakepond.lake.format import commits
from lakepond.lake.format.names import SOURCES, is_shared
from lakepond.lake.format.snapshots import commits_named

RUNS = int(os.environ.get("LAKEPOND_GC_RUNS", "0"))
"""how many orders; 0: as many as there is time for, at least `LEAST_RUNS`"""
LEAST_RUNS, SECONDS = 40, 5.0
CLOUD = lp.Cloud("memory://simulated/run", patience=HOUR)
NAMED, LATE = "worker.6553f100abcd", "late.6553f100abce"
ORPHAN = f"run/{SOURCES}/{'7' * 40}.source"
"""of a push that was given up days ago, and that nobody names"""
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
        self.c = folder / "c"
        """of a machine that comes late, and needs a row source that another one has left in the bucket"""
        rows = np.arange(2700, dtype="<i4").view(np.uint8).reshape(2700, 4).repeat(100, axis=1)
        source = lp.RowSource(rows.reshape(2700, 20, 20))  # 1 MB: smaller ones are not shared
        with lp.Replay.open(self.c, SPEC, **how) as replay:
            for n in range(2):
                for t in range(n * STEPS, (n + 1) * STEPS):
                    windows = {"obs": lp.WindowRef(source, 4 + t), "next_obs": lp.WindowRef(source, 5 + t)}
                    replay.record(**windows, action=t, reward=float(t), terminated=False, truncated=False)
                replay.commit()
        self.names: dict[bytes, frozenset[str]] = {}
        """the files of each commit, by its bytes"""
        for lake in (self.a, self.b, self.c):
            for number in commits.numbers(lake / "commits"):
                with lp.Lake.open(lake, number) as opened:
                    data = (lake / "commits" / commits.file_name(number)).read_bytes()
                    self.names[data] = frozenset(name for name, _ in opened.files())
        self.objects: dict[str, Held] = {}

    def prepare(self, folder: Path, monkeypatch) -> None:
        """Publish the old commits of two writers, and let a `gc` mark them."""
        world = World(0, self, folder)
        world.sim.now = time.time()  # when the commits were made
        world.sim._faults = world.sim._stalls = 0.0
        install(world, monkeypatch)
        for chain in ("", NAMED):
            path = folder / f"prepare-{chain}"
            home = path / "writers" / chain if chain else path
            put_here(self.a, path, home)
            for n in range(OLD):
                os.link(self.a / "commits" / commits.file_name(n), home / "commits" / commits.file_name(n))
            Copier(ChainCopy(path, Store(CLOUD), chain), Inline(9)).round()
        for file in (self.c / SOURCES).glob("*.source"):
            world.sim.objects[f"run/{SOURCES}/{file.name}"] = Held(file.read_bytes(), world.sim.now)
        world.sim.objects[ORPHAN] = Held(b"rows", world.sim.now)
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
    for file in (source / SOURCES).glob("*.source"):
        (path / SOURCES).mkdir(exist_ok=True)
        os.link(file, path / SOURCES / file.name)


def inline_results(call: Callable, items: Iterable, *_: object) -> Iterator:
    """`background.results` without threads."""
    return map(call, list(items))


class InlineCondition(nullcontext):
    """A condition that nobody notifies: waiting for it takes its time on the simulated clock."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        super().__init__()
        self._sleep = sleep

    def notify_all(self) -> None:
        pass

    def wait_for(self, is_met: Callable[[], bool], seconds: float) -> bool:
        self._sleep(seconds)
        return is_met()


class InlineLease(leases.Lease):
    """A lease without a thread; `renew` is called by the reader."""

    sleep: ClassVar[Callable[[float], None]]
    """of the simulation"""
    made: ClassVar[dict[greenlet, list[InlineLease]]] = {}
    """those of each reader"""
    before: ClassVar[Callable[[Store], None]]
    """called before the first request of each"""

    def __init__(self, *args: Any, **how: Any) -> None:
        super().__init__(*args, **how)
        self._change = InlineCondition(type(self).sleep)

    def pin(self, commit, names):
        self._asked += 1
        self._pinned[commit.number] = (commit.number, names)
        self.made.setdefault(getcurrent(), []).append(self)
        type(self).before(self.store)
        if self.renew():
            self._check_there(commit, names)
        return lambda _: None

    def renew(self) -> bool:
        return self._attempt(self._asked, list(self._pinned.values()))

    def wait(self, timeout: float) -> bool:
        return self._served >= self._asked

    def close(self) -> None:
        self._attempt(self._asked, [])

    @property
    def chain(self) -> str:
        return chain_of(self.store.cloud.parts()[2])

    @property
    def key(self) -> str:
        return f"{under(self.chain)}{self.name}"


def chain_of(name: str) -> str:
    """The chain of an object, or of a place."""
    return next((chain for chain in (NAMED, LATE) if chain in name), "")


def under(chain: str) -> str:
    return f"run/writers/{chain}/" if chain else "run/"


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
        self.stored: list[tuple[int, list[float]]] = []
        """snapshots, and the rewards of their steps"""
        self.safe: dict[str, tuple[str, int, frozenset[str]]] = {}
        """readers to which their commit was reported as safe: their lease, its chain, number and files"""
        self.acknowledged: list[tuple[str, int]] = []
        self.refused = self.opened = 0
        self.keep_last = self.rng.choice((1, 1, 2))

    # --- what must be true -------------------------------------------------------------------------

    def slots(self, chain: str) -> dict[int, bytes]:
        start = under(chain)
        return {
            number: self.sim.objects[start + commit_name(number)].data
            for number in commit_numbers((n for n in self.sim.objects if n.startswith(start)), start)
        }

    def check_delete(self, name: str) -> None:
        """Called before an object is deleted."""
        chain = chain_of(name)
        short = name.rpartition("/")[2]
        shared = name.startswith(f"run/{SOURCES}/")
        for each in ("", NAMED, LATE) if shared else (chain,):
            for number, data in self.slots(each).items() if "/commits/" not in name else ():
                assert short not in self.histories.names[data], f"commit {number} of {each} names {name}"
        for lease, (where, number, files) in self.safe.items():
            held = self.sim.objects.get(lease)
            if (
                (shared or where == chain)
                and held is not None
                and self.sim.now - held.modified < leases.SECONDS
            ):
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
        sources: set[str] = set()
        for chain in {chain_of(name) for name in self.sim.objects}:
            slots = self.slots(chain)
            existing = self.files(f"{under(chain)}segments/")
            named = frozenset().union(*(self.histories.names[data] for data in slots.values()))
            sources |= {name for name in named if is_shared(name)}
            assert existing == named - sources, f"{chain}: {existing ^ (named - sources)}"
            kept = {*sorted(slots)[-self.keep_last :], *self.snapshot(chain)}
            assert set(slots) == kept, f"{chain}: {sorted(slots)} are there, {sorted(kept)} are kept"
            mine = [number for where, number in self.acknowledged if where == chain]
            assert not mine or max(slots) >= max(mine), f"{chain}: commit {max(mine)} is lost"
            assert not self.files(f"{under(chain)}leases/")
        assert self.files(f"run/{SOURCES}/") - {"garbage.json"} == sources
        for number, expected in self.stored:
            loaded = self.follow(self.folder / f"loaded-{number}")
            snapshots.load(loaded, snapshots.read(loaded.chains, number), None)
            assert rewards(loaded) == expected

    def files(self, start: str) -> set[str]:
        return {name.rpartition("/")[2] for name in self.sim.objects if name.startswith(start)}

    # --- the actors --------------------------------------------------------------------------------

    def until_deleting(self, chain: Store) -> None:
        """Half of the time, sleep until a `gc` deletes in a chain, or for some minutes."""
        place = chain.cloud.parts()[2]
        for _ in range(30 if self.rng.random() < 0.5 else 0):
            if any(name.startswith(place) and name.endswith(".gc") for name in self.sim.objects):
                break
            self.sim.sleep(5.0)
        self.sim.sleep(self.rng.uniform(0, 60))

    def writer(self, source: Path, chain: str) -> Callable[[], None]:
        """A machine that makes commits and pushes them; it is restarted now and then."""

        def run() -> None:
            self.sim.sleep(self.rng.choice((100.0, 100.0, DAY)) * self.rng.random() * (chain != LATE))
            path = self.folder / f"writer-{source.name}-{chain}"
            home = path / "writers" / chain if chain else path
            put_here(source, path, home)
            old = 0 if chain == LATE else OLD
            if chain == LATE:
                self.until_deleting(Store(CLOUD))
                self.sim.sleep(self.rng.uniform(0, 150))
            for n in range(old):
                os.link(source / "commits" / commits.file_name(n), home / "commits" / commits.file_name(n))
            copier = None
            for n in range(old, len(commits.numbers(source / "commits"))):
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
        """A machine that opens a lake, or a commit of it, lazily, and reads it later."""

        def run() -> None:
            self.sim.sleep(self.rng.uniform(0, 150))
            chain = self.rng.choice(self.chains)
            wanted = self.rng.choice((None, *self.slots(chain)))
            cache, pull = self.folder / f"reader-{number}", self.rng.random() < 0.3
            while True:
                try:
                    if pull:
                        lake = lp.pull(cache, CLOUD, lazy=True)
                    else:
                        lake = cloud_chains.open_lake(CLOUD.url, wanted, chain, cache)
                    break
                except (CloudNotFound, lp.LakeNotFound):  # deleted before the lease was written
                    return
                except CloudError:
                    self.sim.sleep(self.rng.uniform(1, 60))
            mine = {lease.chain: lease for lease in InlineLease.made.get(getcurrent(), ())}
            if any(lease._served < lease._asked for lease in mine.values()):
                return  # a lease could not be written: nothing is promised
            self.opened += 1
            for head in lake.reader.heads:
                names = frozenset(name for name, _ in head.catalog.files())
                self.safe[mine[head.writer].key] = (head.writer, head.commit.number, names)
            for _ in range(self.rng.randrange(4)):
                self.sim.sleep(self.rng.uniform(1, 20) * HOUR)
                for lease in mine.values():
                    lease.renew()
            puts = [self.sim.objects.get(lease.key) for lease in mine.values()]
            try:
                for head in lake.reader.heads:
                    first, stop = head.commit.oldest, head.commit.recorded
                    found = lake.steps(first + head.offset, stop + head.offset).reward.tolist()
                    assert found == [*range(first, stop)] or found[-1] >= 1000
            except CloudUnreachable:
                pass
            except CloudError:  # right only if a lease has ended: this machine may have been suspended
                if all(held and self.sim.now - held.modified < leases.SECONDS for held in puts):
                    raise
            for lease in mine.values():
                self.safe.pop(lease.key, None)
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

    def follow(self, cache: Path) -> following.Follower:
        """A follower without a thread."""
        chains = CloudChains(CLOUD, cache)
        replay = lp.Replay(chains.spec, 64)
        follower = following.Follower(chains, replay._pond, Limits(0, None), 1.0, 600.0)
        follower.replay = replay
        return follower

    def follower(self) -> None:
        """A machine that follows the lake for some days, and stores snapshots."""
        self.sim.sleep(self.rng.uniform(0, 150))
        while True:
            try:
                follower = self.follow(self.folder / "follower")
                follower._discover()
                break
            except CloudError:
                self.sim.sleep(60.0)
        with suppress(CloudError):
            for _ in follower._load_first():
                pass
        for _ in range(self.rng.randrange(2, 6)):
            self.sim.sleep(self.rng.choice((30.0, HOUR, DAY)))
            while follower.poll():
                pass
            for chain in follower.states:
                found = np.array(rewards(follower, chain))
                assert (np.diff(found[found < 1000]) > 0).all()
            if self.rng.random() < 0.5:
                with suppress(CloudError, lp.LakeNotFound):  # what is in memory is not in the lake any more
                    stored = snapshots.write(follower, np.random.default_rng(0))
                    self.stored.append((stored.number, rewards(follower)))


def rewards(follower: following.Follower, chain: str | None = None) -> list[float]:
    """Of the steps in the memory of a follower, all or those of one chain, in the order of their arrival."""
    ids = follower.pond.ids()
    found = follower.replay.steps(ids).reward.tolist() if len(ids) else []
    if chain is None:
        return found
    owners = [owner.name for owner, first, stop, _ in follower.arrivals.runs for _ in range(first, stop)]
    return [reward for owner, reward in zip(owners, found, strict=True) if owner == chain]


def install(world: World, monkeypatch) -> None:
    """Let lakepond use the simulated bucket and clock, and no threads."""
    clock = world.sim.time
    monkeypatch.setattr(store, "_bucket", lambda cloud: world.sim)
    for module in (leases, pace, garbage, cloud_chains, following):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(leases, "clock", clock.time)
    for module in (cloud_to_lake, cloud_chains):
        monkeypatch.setattr(module, "Lease", InlineLease)
    monkeypatch.setattr(background, "results", inline_results)
    InlineLease.made.clear()
    InlineLease.sleep = world.sim.sleep
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
    if rng.random() < 0.4:
        sim.actor("late", world.writer(histories.c, LATE))
    if rng.random() < 0.3:
        sim.actor("follower", world.follower)
    sim.run()
    world.check_end()
    return world


def test_nothing_that_is_named_is_deleted_in_any_order(disk, monkeypatch):
    logging.disable(logging.CRITICAL)
    histories = Histories(disk)
    histories.prepare(disk / "prepare", monkeypatch)
    runs = opened = refused = stored = 0
    until = time.monotonic() + SECONDS
    while runs < (RUNS or LEAST_RUNS) or (not RUNS and time.monotonic() < until):
        folder = disk / str(runs)
        try:
            world = simulate(runs, histories, folder, monkeypatch)
        except BaseException as error:
            error.add_note(f"seed {runs}")
            raise
        opened, refused, stored = opened + world.opened, refused + world.refused, stored + len(world.stored)
        shutil.rmtree(folder, ignore_errors=True)
        runs += 1
    logging.disable(logging.NOTSET)
    assert opened > runs / 2
    assert refused > runs / 20
    assert stored > runs / 20
