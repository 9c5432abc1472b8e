"""An import appears when it is complete: one that fails or is killed leaves no lake, and can be run again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import lakepond as lp
from lakepond.adapters.episodes import COMMIT_STEPS, Episode, import_episodes
from lakepond.adapters.legacy import Transition, import_legacy, write_legacy
from lakepond.adapters.minari import import_minari
from lakepond.adapters.npz import import_npz
from lakepond.cli import main

KILLED = """
import os, sys
import numpy as np
from lakepond.adapters import episodes
from lakepond.adapters.episodes import Episode, import_episodes
episodes.COMMIT_STEPS = 20

def some():
    for n in range(1000):
        steps = np.arange(10 * n, 10 * n + 10)
        flags, obs = np.zeros(10, bool), np.arange(10.0 * n, 10 * n + 11)[:, None]
        yield Episode(obs, steps, steps.astype(np.float32), flags, flags, {})
        if n == 5:
            print("half", flush=True)
            sys.stdin.read()

import_episodes(some(), sys.argv[1])
"""


def episode(n: int, steps: int = 10) -> Episode:
    """Steps whose rewards are their ids."""
    ids = np.arange(steps * n, steps * (n + 1))
    flags = np.zeros(steps, bool)
    obs = np.arange(float(steps * n), steps * (n + 1) + 1)[:, None]
    return Episode(obs, ids, ids.astype(np.float32), flags, flags, {})


def some_then_fail(count: int) -> Iterator[Episode]:
    yield from map(episode, range(count))
    raise lp.SpecError("this episode is broken.")


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_failed_import_leaves_nothing(tmp_path):
    with pytest.raises(lp.SpecError, match="broken"):
        import_episodes(some_then_fail(COMMIT_STEPS // 10 + 3), tmp_path / "lake")  # after the first commit
    assert left(tmp_path) == []
    done = import_episodes(map(episode, range(3)), tmp_path / "lake")
    assert done.steps == 30
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.steps(0, 30).reward.tolist() == list(range(30))


def test_a_failed_import_of_a_folder_of_npz_leaves_nothing_and_works_when_it_is_run_again(tmp_path, capsys):
    source = tmp_path / "source"
    source.mkdir()
    for n in range(10):
        one = episode(n, steps=100)
        whole = {"obs": one.obs, "action": one.action, "reward": one.reward, "done": one.terminated}
        np.savez_compressed(source / f"{n}.npz", **whole)
    good = (source / "5.npz").read_bytes()
    (source / "5.npz").write_bytes(good[:200] + bytes([good[200] ^ 16]) + good[201:])
    assert main(["import", str(source), str(tmp_path / "lake")]) == 2
    printed = capsys.readouterr().err.strip()
    assert printed.startswith(f"lakepond: {source / '5.npz'} cannot be read: ")
    assert printed.endswith("restore or remove it.")
    assert len(printed.splitlines()) == 1
    assert left(tmp_path) == ["source"]
    (source / "5.npz").write_bytes(good)
    assert main(["import", str(source), str(tmp_path / "lake")]) == 0
    assert main(["verify", str(tmp_path / "lake")]) == 0
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert lake.steps(0, 1000).reward.tolist() == list(range(1000))


def test_a_failed_import_of_a_pickle_leaves_nothing(tmp_path):
    state = np.arange(6, dtype=np.float32)
    steps = [Transition(state + n, np.float32(n), float(n), state + n + 1, False) for n in range(50)]
    write_legacy(tmp_path / "old.pkl", steps, capacity=50, compress=False)
    data = (tmp_path / "old.pkl").read_bytes()
    (tmp_path / "old.pkl").write_bytes(data[: len(data) * 3 // 4])
    with pytest.raises(lp.LakepondError):
        import_legacy(tmp_path / "old.pkl", tmp_path / "lake")
    assert left(tmp_path) == ["old.pkl"]
    (tmp_path / "old.pkl").write_bytes(data)
    assert import_legacy(tmp_path / "old.pkl", tmp_path / "lake").steps == 50


def test_an_import_that_was_killed_leaves_no_lake_and_the_next_one_removes_its_rest(tmp_path, capsys):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path / "lake")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "half\n"
    assert left(tmp_path) == [".lake.aside"]
    assert main(["ls", str(tmp_path)]) == 0  # a listing ignores it
    assert "no lake" in capsys.readouterr().err
    with pytest.raises(lp.SpecError, match=r"another import to .*lake is running"):
        import_episodes(map(episode, range(3)), tmp_path / "lake")
    assert left(tmp_path) == [".lake.aside"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    process.stdin.close()
    assert left(tmp_path) == [".lake.aside"]
    import_episodes(map(episode, range(3)), tmp_path / "lake")
    assert left(tmp_path) == ["lake"]
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == 30


def test_a_target_that_exists_is_refused_before_anything_is_read(tmp_path):
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "mine.txt").write_text("keep")
    for read in (import_npz, import_minari, import_legacy):
        with pytest.raises(lp.SpecError, match="already exists"):
            read(tmp_path / "not there", tmp_path / "lake")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    with pytest.raises(lp.SpecError, match="already exists"):
        import_episodes(some_then_fail(0), tmp_path / "link")
    assert left(tmp_path / "lake") == ["mine.txt"]


def test_a_target_that_appears_during_the_import_is_not_replaced(tmp_path):
    def slow() -> Iterator[Episode]:
        yield episode(0)
        (tmp_path / "lake").mkdir()
        (tmp_path / "lake" / "mine.txt").write_text("keep")
        yield episode(1)

    with pytest.raises(lp.SpecError, match="already exists"):
        import_episodes(slow(), tmp_path / "lake")
    assert left(tmp_path) == ["lake"]
    assert left(tmp_path / "lake") == ["mine.txt"]


def test_an_import_to_a_full_disk_leaves_nothing_and_its_writer_is_closed(tmp_path, caplog):
    disk = tmp_path / "disk"
    disk.mkdir()
    if os.geteuid() or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", disk]).returncode:
        pytest.skip("mounting a small tmpfs needs root")
    try:
        rng = np.random.default_rng(0)

        def noise() -> Iterator[Episode]:
            for n in range(40):
                yield episode(n)._replace(obs=rng.random((11, 2000)))

        with pytest.raises(OSError, match="space"):
            import_episodes(noise(), disk / "lake")
        assert left(disk) == []
        assert "they were discarded" in caplog.text
        assert "dropped without close" not in caplog.text
        assert import_episodes(map(episode, range(2)), disk / "lake").steps == 20
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)  # a file may still be open


def test_a_pickle_whose_transitions_do_not_fit_is_told_in_a_sentence(tmp_path):
    state = np.arange(6, dtype=np.float32)
    good = Transition(state, np.float32(1), 1.0, state + 1, False)
    for number, wrong in enumerate(
        (
            good._replace(reward=np.zeros(2)),
            good._replace(done=np.zeros(2, bool)),
            good._replace(next_state=np.zeros(5, np.float32)),
            good._replace(state=np.zeros(5, np.float32), next_state=np.zeros(5, np.float32)),
        )
    ):
        file = tmp_path / f"{number}.pkl"
        write_legacy(file, [good, wrong], capacity=5, compress=False)
        with pytest.raises(lp.LakepondError):
            import_legacy(file, tmp_path / "lake")
        assert not (tmp_path / "lake").exists()
