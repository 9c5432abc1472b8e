"""Two machines and one place: the second to publish after a common commit is refused, and hides nothing.

Machine A records rewards from 1000 on, machine B from 2000 on, after the common steps [0, 4).
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from small_runs import SPEC, record

import lakepond as lp
from lakepond.cloud.store import Store

FIRST = {"a": 1000, "b": 2000}
COMMON = [0.0, 1.0, 2.0, 3.0]


def place(request, kind: str, name: str, folder: Path) -> lp.Cloud:
    if kind == "file":
        return lp.Cloud(f"file://{folder}/cloud")
    return request.getfixturevalue(kind).cloud(name)


class Machine:
    """A folder, the replay that writes it, and the rewards that it has recorded.

    `new_process`: each push is one of a process that knows only what is on the disk, like `lakepond push`.
    """

    def __init__(self, name: str, folder: Path, cloud: lp.Cloud, new_process: bool, **settings) -> None:
        self.name, self.folder, self.cloud, self.new_process = name, folder, cloud, new_process
        self.rewards = list(COMMON)
        lp.pull(folder, cloud).close()
        self.replay = lp.Replay.open(folder, capacity=64, cloud=None if new_process else cloud, **settings)

    def commit(self) -> None:
        start = FIRST[self.name] + len(self.rewards)
        record(self.replay, start, start + 2)
        self.replay.commit()
        self.rewards += [float(start), float(start + 1)]

    def push(self) -> lp.UploadStatus:
        if self.new_process:
            return lp.push(self.folder, self.cloud, timeout=60)
        return self.replay.push(wait=True, timeout=60)


def common_start(
    cloud: lp.Cloud, folder: Path, *, new_process: bool = False, **settings
) -> tuple[Machine, Machine]:
    with lp.Replay.open(folder / "a", SPEC, capacity=64, cloud=cloud) as replay:
        record(replay, 0, 4)
    a, b = (Machine(name, folder / name, cloud, new_process, **settings) for name in "ab")
    return a, b


def rewards_in(cloud: lp.Cloud, folder: Path) -> list[float]:
    with lp.pull(folder, cloud) as lake:
        lake.verify()
        rewards = lake.steps(lake.commit.oldest, lake.commit.recorded).reward.tolist()
    shutil.rmtree(folder)
    return rewards


def published(cloud: lp.Cloud) -> dict[str, bytes]:
    store = Store(cloud)
    return {name: store.read(name) for name in store.list("commits")}


def play(order: str, cloud: lp.Cloud, folder: Path, **settings) -> None:
    """Let each letter be the next step of that machine: commit, push, commit, push, ..."""
    machines = dict(zip("ab", common_start(cloud, folder, **settings), strict=True))
    steps = dict.fromkeys("ab", 0)
    owner = None
    for letter in order:
        machine = machines[letter]
        steps[letter] += 1
        if steps[letter] % 2:
            machine.commit()
            continue
        before = published(cloud)
        status = machine.push()
        if owner in (None, letter):  # the first to publish after the common commit is the only one that may
            assert status.done, (order, status.last_error)
            assert published(cloud).items() > before.items()
            owner = letter
        else:
            assert status.state == "failed", order
            assert "another machine has published commit" in status.last_error
            assert "fresh folder" in status.last_error
            assert published(cloud) == before
    for machine in machines.values():
        machine.replay.close()
        machine.push() if machine.new_process else None
    assert rewards_in(cloud, folder / "look") == machines[owner].rewards, order
    for letter, machine in machines.items():  # what was refused is still on its own disk
        with lp.Lake.open(machine.folder) as lake:
            mine = lake.steps(lake.commit.oldest, lake.commit.recorded).reward.tolist()
            assert mine == machines[letter].rewards


ORDERS = sorted({"".join(order) for order in itertools.permutations("aaabbb")})
BY_PUSH = sorted({"".join(order) for order in itertools.permutations(["aa", "aa", "bb", "bb"])})


def test_in_every_interleaving_of_two_machines_the_second_to_publish_is_refused(tmp_path):
    assert len(ORDERS) == 20
    for k, order in enumerate(ORDERS):
        play(order, lp.Cloud(f"file://{tmp_path}/{k}/cloud"), tmp_path / str(k))


@pytest.mark.parametrize("kind", ["file", "moto"])
def test_a_machine_that_restarted_and_kept_only_its_newest_commit_is_refused_too(
    request, kind, name, tmp_path
):
    for k, order in enumerate(BY_PUSH):  # what was published last is not on the disk of who published it
        folder = tmp_path / str(k)
        play(order, place(request, kind, f"{name}-{k}", folder), folder, new_process=True, keep_last=1)


@pytest.mark.parametrize("kind", ["file", "moto"])
def test_the_steps_of_the_first_are_not_hidden_by_a_higher_number_of_the_second(
    request, kind, name, tmp_path
):
    cloud = place(request, kind, name, tmp_path)
    a, b = common_start(cloud, tmp_path, keep_last=1)
    b.commit()
    assert b.push().done
    for _ in range(3):  # commits 1 to 3, of which the disk keeps 3: a number that the cloud does not have
        a.commit()
    status = a.push()
    assert status.state == "failed"
    assert "commit 1" in status.last_error
    assert rewards_in(cloud, tmp_path / "look") == b.rewards
    a.replay.close()
    with pytest.raises(lp.CloudConflict, match="never pushed"):
        lp.pull(a.folder, cloud)
    assert lp.push(a.folder, cloud).state == "failed"  # that changed nothing
    assert rewards_in(cloud, tmp_path / "look") == b.rewards


@pytest.mark.parametrize("kind", ["file", "moto"])
def test_steps_that_were_never_pushed_are_not_taken_for_deleted_after_a_gc(request, kind, name, tmp_path):
    cloud = place(request, kind, name, tmp_path)
    a, b = common_start(cloud, tmp_path)
    for _ in range(3):
        b.commit()
        assert b.push().done
    lp.gc(cloud, keep_last=1, older_than=-60, dry_run=False)
    assert lp.gc(cloud, keep_last=1, older_than=-60, dry_run=False).commits == (0, 1, 2)
    a.commit()  # commit 1, where the cloud has commit 3 alone
    status = a.push()
    assert status.state == "failed"
    assert "another machine has published commit 3" in status.last_error
    a.replay.close()
    with pytest.raises(lp.CloudConflict, match="never pushed"):
        lp.pull(a.folder, cloud)
    assert rewards_in(cloud, tmp_path / "look") == b.rewards


def test_an_unrelated_lake_of_the_same_kind_is_refused_at_a_place_that_is_taken(name, tmp_path):
    a, _ = common_start(lp.Cloud(f"memory://{name}"), tmp_path)
    with lp.Replay.open(tmp_path / "other", SPEC, capacity=64, keep_last=1) as other:
        for n in range(3):
            record(other, 5000 + n, 5001 + n)
            other.commit()
    status = lp.push(tmp_path / "other", a.cloud)
    assert status.state == "failed"
    assert "another machine has published commit 0" in status.last_error
    assert rewards_in(a.cloud, tmp_path / "look") == COMMON


def test_a_machine_that_has_nothing_new_is_not_refused_when_another_one_has_published(name, tmp_path):
    a, b = common_start(lp.Cloud(f"memory://{name}"), tmp_path)
    a.commit()
    assert a.push().done
    assert b.push().done  # it has nothing that is new
    b.replay.close()
    with lp.Replay.open(b.folder, capacity=64, cloud=a.cloud, pull="all") as replay:  # and may continue then
        assert replay.stats().recorded == 6


def test_two_machines_that_publish_one_number_at_the_same_moment_leave_one(name, tmp_path, monkeypatch):
    a, b = common_start(lp.Cloud(f"memory://{name}"), tmp_path)
    a.commit()
    b.commit()
    real = Store.publish

    def publish(self, name, data, sound):  # b comes between the last LIST of a and its PUT
        monkeypatch.setattr(Store, "publish", real)
        assert b.push().done
        real(self, name, data, sound)

    monkeypatch.setattr(Store, "publish", publish)
    assert "with different content" in a.push().last_error
    assert rewards_in(a.cloud, tmp_path / "look") == b.rewards
