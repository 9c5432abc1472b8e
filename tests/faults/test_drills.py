"""The drills themselves: each finds a defect that is planted, and the model of the disk is right."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lakepond as lp
from faults import crash_points, full_disk, model, operations, page, soak
from faults.disk import Disk
from faults.journal import Change, Journal, Perform, record
from faults.outcome import Outcome, Skipped


def failures(name: str, tmp_path: Path, *modes: str) -> list[str]:
    return crash_points.drill(operations.OPERATIONS[name], tmp_path, modes=modes, most=40).failures


def plant(monkeypatch, defect: Callable[[list[Change]], list[Change]]) -> None:
    """Record operations as if the code had made its changes in this other order."""

    def recorded(root: Path, perform: Perform) -> Journal:
        journal = record(root, perform)
        journal.changes = defect(journal.changes)
        return journal

    monkeypatch.setattr(crash_points, "record", recorded)


def without_fsync(changes: list[Change], *, of_files: bool) -> list[Change]:
    files = {change.handle for change in changes if change.kind == "open" and change.to == "created"}
    return [each for each in changes if each.kind != "fsync" or (each.handle in files) != of_files]


def test_a_file_that_is_renamed_before_it_is_synced_is_found(tmp_path, monkeypatch):
    plant(monkeypatch, lambda changes: without_fsync(changes, of_files=True))
    assert failures("commit", tmp_path / "power", "data lost")
    assert failures("checkpoint", tmp_path / "power", "data lost")
    assert not failures("commit", tmp_path / "killed", "kill", "torn")  # a kill needs no fsync


def test_a_folder_that_is_not_synced_is_found(tmp_path, monkeypatch):
    plant(monkeypatch, lambda changes: without_fsync(changes, of_files=False))
    assert failures("commit", tmp_path, "names lost")
    assert failures("push", tmp_path, "names lost")


def test_a_commit_that_is_acknowledged_too_early_is_found(tmp_path, monkeypatch):
    def early(changes: list[Change]) -> list[Change]:
        at = max(n for n, change in enumerate(changes) if "acknowledged" in change.marks)
        return [*changes[: at - 12], changes[at], *changes[at - 12 : at], *changes[at + 1 :]]

    plant(monkeypatch, early)
    assert failures("commit", tmp_path, "kill")
    assert failures("checkpoint", tmp_path, "kill")


def test_a_file_that_is_written_in_place_is_found(tmp_path, monkeypatch):
    """Temporary names are never used: a file has its last name from the start."""

    def in_place(changes: list[Change]) -> list[Change]:
        named = ("rename", "link")
        last = {change.path: change.to for change in changes if change.kind in named}
        kept = [
            change
            for change in changes
            if change.kind not in named and not (change.kind == "unlink" and change.path in last)
        ]
        return [change._replace(path=last.get(change.path, change.path)) for change in kept]

    plant(monkeypatch, in_place)
    assert failures("commit", tmp_path, "kill", "torn")


def test_a_step_that_is_stored_wrongly_is_found(tmp_path, monkeypatch):
    def wrong(replay: lp.Replay, start: int, stop: int) -> None:
        model.record(replay, start, min(stop, 20))
        model.record(replay, max(start, 20) + 1, stop + 1)  # a step of the future in its place

    monkeypatch.setattr(operations, "record", wrong)
    assert failures("commit", tmp_path, "kill")


def test_a_change_that_the_recorder_does_not_see_is_an_error(tmp_path):
    def unseen(root: Path, journal: Journal) -> None:
        os.posix_fallocate(os.open(root / "file", os.O_RDWR | os.O_CREAT), 0, 100)

    with pytest.raises(AssertionError, match="missed changes of"):
        record(tmp_path, unseen)


def test_the_disk_keeps_what_was_synced_and_may_lose_the_rest(tmp_path):
    def perform(root: Path, journal: Journal) -> None:
        with (root / "a").open("wb", buffering=0) as file:
            file.write(b"one ")
            os.fsync(file.fileno())
            file.write(b"two")
        (root / "a").rename(root / "b")

    disk = Disk.after(record(tmp_path, perform))
    assert disk.content("kill") == {"b": b"one two"}
    assert disk.content("data lost") in ({"b": b"one "}, {"b": b"one \0\0\0"})
    assert disk.content("names lost") == {}
    descriptor = os.open(tmp_path, os.O_RDONLY)
    synced = record(tmp_path, lambda root, journal: os.fsync(descriptor) or (root / "c").touch())
    os.close(descriptor)
    assert Disk.after(synced).content("names lost") == {"b": b"one two"}


def test_a_full_disk_is_full(tmp_path):
    try:
        with full_disk.small_disk(tmp_path / "small", 1 << 20) as disk:
            disk.fill(8192)
            assert disk.free == 8192
            with pytest.raises(OSError, match="No space left"):
                (disk.folder / "file").write_bytes(bytes(10_000))
            disk.empty()
            (disk.folder / "file").write_bytes(bytes(10_000))
    except Skipped as why:
        pytest.skip(str(why))


def test_a_failed_case_is_reported_on_the_page_and_by_the_exit_code(tmp_path, monkeypatch, capsys):
    def bad(scratch: Path, chance: Any, scale: float) -> Outcome:
        outcome = Outcome("crash points", "planted")
        with outcome.attempt("point 3"):
            raise AssertionError("a step is gone")
        with outcome.attempt("point 4"):
            pass
        return outcome

    monkeypatch.setattr(soak, "cases", lambda: {"crash points: planted": bad})
    monkeypatch.setattr(soak, "run_as_process", soak.run_case)
    results, shown = tmp_path / "results.jsonl", tmp_path / "page.md"
    words = ["faults", "--results", str(results), "--page", str(shown)]
    for _ in range(2):  # a case that failed is done again
        monkeypatch.setattr("sys.argv", words)
        assert soak.main() == 1
        assert "0 done before" in capsys.readouterr().out
    assert len(results.read_text().splitlines()) == 1
    assert "| planted | 2 | 1 |" in shown.read_text()
    assert "a step is gone" in shown.read_text()
    assert page.ABOUT["crash points"] in shown.read_text()
