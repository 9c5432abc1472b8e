"""Drill 2, the full disk: a small tmpfs is filled in the middle of an operation, and emptied later.

Whatever the level: nothing acknowledged is lost, the operation fails with one sentence or continues, and when
the space returns everything that was handed over can be made durable. Trainers continue without saving and
end as undisturbed ones.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import lakepond as lp
from faults import training
from faults.model import SPEC, check_batch, check_lake, record
from faults.outcome import Outcome, Skipped

PAGE = 4096
DRILL = "full disk"
PAUSE = 3.0
"""seconds after which the space returns to a trainer that waits for it"""


class SmallDisk:
    """A tmpfs whose free space can be set."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._balloon = folder / "balloon"

    @property
    def free(self) -> int:
        found = os.statvfs(self.folder)
        return found.f_bavail * found.f_frsize

    def fill(self, free: int) -> None:
        """Leave only `free` bytes, rounded up to pages."""
        descriptor = os.open(self._balloon, os.O_RDWR | os.O_CREAT)
        try:
            held = os.fstat(descriptor).st_size
            size = held + self.free - (free + PAGE - 1) // PAGE * PAGE
            if size > held:
                os.posix_fallocate(descriptor, 0, size)
            else:
                os.ftruncate(descriptor, max(0, size))
        finally:
            os.close(descriptor)

    def empty(self) -> None:
        """Give the space back."""
        self._balloon.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(folder: Path, size: int = 8 << 20) -> Iterator[SmallDisk]:
    """Mount one; `Skipped` where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=777", "tmpfs", str(folder)]
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    try:
        subprocess.run([*as_root, *mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        raise Skipped("mounting a small tmpfs needs root") from None
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run([*as_root, "umount", "-l", str(folder)], check=True, capture_output=True)


# --- a replay and its files --------------------------------------------------------------------------


def walk_replay(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    """Record and commit into a disk that fills up; when space returns all of it is committed."""
    path = disk.folder / "lake"
    acknowledged = 0
    with contextlib.ExitStack() as stack:
        replay = stack.enter_context(lp.Replay.open(path, SPEC, capacity=40))
        stack.callback(disk.empty)  # first: the last commit needs space
        record(replay, 0, 20)
        acknowledged = replay.commit().recorded
        disk.fill(free)
        for stop in range(30, 131, 10):
            try:
                record(replay, replay.stats().recorded, stop)
                acknowledged = replay.commit().recorded
            except (lp.RecordError, OSError):
                outcome.count("refused with one sentence")
            with lp.Lake.open(path) as lake:
                assert lake.commit.recorded >= acknowledged, f"{lake.commit.recorded} of {acknowledged}"
                check_lake(lake)
        handed_over = replay.stats().recorded
        disk.empty()
        assert replay.commit().recorded == handed_over
    check_all(path, handed_over)


def walk_close(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    """`close` on a full disk raises and can be repeated: the steps are held until they are durable."""
    path = disk.folder / "lake"
    replay = lp.Replay.open(path, SPEC, capacity=400)
    record(replay, 0, 20)
    replay.commit()
    record(replay, 20, 320)
    disk.fill(free)
    try:
        replay.close()
    except OSError:
        outcome.count("refused with one sentence")
    disk.empty()
    replay.close()
    check_all(path, 320)
    with lp.Replay.open(path, capacity=400) as again:  # it is not locked
        check_batch(again.recent(320), range(320))


def walk_save(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    path = disk.folder / "saved"
    replay = lp.Replay(SPEC, 200)
    record(replay, 0, 30)
    replay.save(path)
    record(replay, 30, 230)
    disk.fill(free)
    try:
        replay.save(path)
    except OSError:
        outcome.count("refused with one sentence")
        with lp.Lake.open(path) as lake:
            check_lake(lake)
    disk.empty()
    replay.save(path)
    replay.close()
    with lp.Replay.open_saved(path, 200) as again:
        check_batch(again.recent(200), range(30, 230))


def walk_compact(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    path = disk.folder / "lake"
    with lp.Replay.open(path, SPEC, capacity=400, merge_after=None) as replay:
        for stop in range(20, 321, 20):
            record(replay, stop - 20, stop)
            replay.commit()
    disk.fill(free)
    with lp.Lake.open(path) as lake:
        try:
            lake.compact(keep_last=1)
        except OSError:
            outcome.count("refused with one sentence")
    check_all(path, 320)
    disk.empty()
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
    check_all(path, 320)


def walk_import(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    from lakepond.adapters.npz import import_npz

    source, path = disk.folder / "npz", disk.folder / "lake"
    with lp.Replay.open(disk.folder / "source", SPEC, capacity=400) as replay:
        record(replay, 0, 300)
    with lp.Lake.open(disk.folder / "source") as lake:
        lake.to_npz(source)
    disk.fill(free)
    try:
        import_npz(source, path)
    except OSError:
        outcome.count("refused with one sentence")
        assert not path.exists(), "a failed import left a lake"
        disk.empty()
        import_npz(source, path)
    with lp.Lake.open(path) as lake:
        lake.verify()
        assert sorted(lake.steps(0, len(lake)).reward.tolist()) == list(range(300))


def walk_pull(disk: SmallDisk, free: int, outcome: Outcome) -> None:
    lake, cloud = (
        disk.folder / "lake",
        lp.Cloud(f"file://{disk.folder / 'bucket'}", retry_cap=0.05, patience=0.2),
    )
    with lp.Replay.open(lake, SPEC, capacity=400, merge_after=None) as replay:
        for stop in range(30, 301, 30):
            record(replay, stop - 30, stop)
            replay.commit()
    lp.push(lake, cloud)
    disk.fill(free)
    try:
        lp.pull(disk.folder / "there", cloud).close()
    except (OSError, lp.CloudError):
        outcome.count("refused with one sentence")
        disk.empty()
        lp.pull(disk.folder / "there", cloud).close()
    check_all(disk.folder / "there", 300)


def check_all(path: Path, steps: int) -> None:
    with lp.Lake.open(path) as lake:
        assert len(lake) == steps, f"{len(lake)} of {steps} steps"
        check_lake(lake)


WALKS: dict[str, Callable[[SmallDisk, int, Outcome], None]] = {
    "commit": walk_replay,
    "close": walk_close,
    "save": walk_save,
    "compact": walk_compact,
    "import": walk_import,
    "pull": walk_pull,
}


def walk(name: str, scratch: Path, levels: Sequence[int]) -> Outcome:
    """One operation at each of these numbers of free bytes."""
    outcome = Outcome(DRILL, name)
    for free in levels:
        with (
            outcome.attempt(f"{free:,} bytes free"),
            small_disk(scratch / "small") as disk,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("ignore")  # a commit that failed is announced
            WALKS[name](disk, free, outcome)
    return outcome


# --- trainers ----------------------------------------------------------------------------------------


def walk_trainer(trainer: str, scratch: Path, levels: Sequence[int], **other: Any) -> Outcome:
    """The disk is full from the second look at it to the fourth; the run ends as an undisturbed one."""
    outcome = Outcome(DRILL, " ".join(["train", trainer, *map(str, other.values())]))
    undisturbed = scratch / "undisturbed"
    training.train_here(trainer, undisturbed, **other)
    wanted = training.fingerprint(undisturbed)
    for free in levels:
        with outcome.attempt(f"{free:,} bytes free"), small_disk(scratch / "small") as disk:
            with disk_full_during(disk, free, 2, 4):
                training.train_here(trainer, disk.folder / "run", **other)
            differ = training.differences(training.fingerprint(disk.folder / "run"), wanted)
            assert not differ, f"not as undisturbed: {differ}"
    return outcome


@contextlib.contextmanager
def disk_full_during(disk: SmallDisk, free: int, first: int, last: int) -> Iterator[None]:
    """Fill the disk when a trainer looks at it for the `first` time, and empty it at the `last`.

    A trainer that cannot continue without its lake pauses and looks no more: then after a while.
    """
    from lakepond.guards import Guard

    check, looks = Guard.check, 0
    later = threading.Timer(PAUSE, disk.empty)

    def look(self: Guard, number: int) -> Any:
        nonlocal looks
        looks += 1
        if looks == first:
            disk.fill(free)
            later.start()
        if looks == last:
            disk.empty()
        return check(self, number)

    try:
        with mock.patch.object(Guard, "check", look):
            yield
    finally:
        later.cancel()
        if later.is_alive():
            later.join()
