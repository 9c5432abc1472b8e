"""Files of later versions are refused by name and left alone; what this version does not know is ignored."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from test_lake import agrees, record, settle, spec_of

import lakepond as lp
from lakepond.flow.device_to_lake import DeviceLake, Lanes
from lakepond.lake import lock
from lakepond.lake.format import commits, manifests, names
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.sealed import seal, unseal
from lakepond.lake.write import packing

WORLD = "dict and tuple"


@pytest.fixture
def path(tmp_path, monkeypatch) -> Path:
    """A lake with eight commits, and manifests."""
    monkeypatch.setattr(packing, "LOOSE", 2)
    with lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=60, merge_after=None) as replay:
        for k in range(8):
            record(replay, WORLD, 5 * k, 5 * k + 5)
            replay.commit()
    return tmp_path / "lake"


def newest(path: Path) -> Path:
    return path / "commits" / commits.file_name(commits.numbers(path / "commits")[-1])


def change(file: Path, **more: object) -> None:
    file.write_bytes(seal(unseal(file.read_bytes()) | more))


def contents(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


LATER = [({"format": 3}, "format 3"), ({"requires": ["sparse rows"]}, "requires sparse rows")]


@pytest.mark.parametrize(("more", "says"), LATER)
@pytest.mark.parametrize("which", ["lake.json", "commit"])
def test_a_later_version_is_refused_by_name_and_nothing_is_moved(path, which, more, says):
    change(path / "lake.json" if which == "lake.json" else newest(path), **more)
    before = contents(path)
    for attempt in (
        lambda: lp.Lake.open(path),
        lambda: lp.Replay.open(path, capacity=60),
        lambda: lp.repair(path),
    ):
        with pytest.raises(lp.LakeTooNew, match=says):
            attempt()
        assert {n: d for n, d in contents(path).items() if n != "lock"} == {
            n: d for n, d in before.items() if n != "lock"
        }
    if which == "commit":  # an older one can be read
        with lp.Lake.open(path, 3) as lake:
            lake.verify()


@pytest.mark.parametrize(("more", "says"), LATER)
def test_a_manifest_of_a_later_version_is_refused_by_name(path, monkeypatch, more, says):
    with lp.Lake.open(path) as lake:
        found = next(entry for entry in lake.commit.segments if isinstance(entry, manifests.Manifest))
    data = seal(unseal((path / "segments" / found.name).read_bytes()) | more)
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    with pytest.raises(lp.LakeTooNew, match=says):
        manifests.decode(found, data, None, 1)
    (path / "segments" / found.name).write_bytes(data)  # its size has changed: older commits do not name it
    commit = json.loads(newest(path).read_text())
    steps = [{**e, "size": len(data)} if e.get("manifest") == found.digest else e for e in commit["steps"]]
    change(newest(path), steps=steps)
    with lp.Lake.open(path) as lake, pytest.raises(lp.LakeTooNew, match=says):
        lake.verify()
    before = contents(path)
    with pytest.raises(lp.LakeTooNew, match=says):
        lp.repair(path)
    assert contents(path) == before


def test_a_later_version_may_be_sealed_in_another_way(path):
    file = newest(path)
    file.write_bytes(b'{"format": 7, "signature": "of a later version"}')
    with pytest.raises(lp.LakeTooNew, match="format 7"):
        lp.Lake.open(path)


def test_unknown_keys_are_ignored(path):
    with lp.Lake.open(path) as lake:
        before = lake.commit
    content = json.loads(newest(path).read_text())
    change(
        newest(path),
        mood="good",
        steps=[each | {"colour": "red"} for each in content["steps"]],
        rows=[[each | {"colour": "red"} for each in listed] for listed in content["rows"]],
    )
    change(path / "lake.json", mood="good")
    with lp.Lake.open(path) as lake:
        assert lake.commit == before
        lake.verify()
    with lp.Replay.open(path, capacity=60) as replay:
        record(replay, WORLD, 40, 50)
    with lp.Lake.open(path) as lake:
        lake.verify()
        agrees(lake.steps(0, 50), 49, WORLD)


def test_unknown_keys_in_a_manifest_are_ignored(path, monkeypatch):
    """In the manifest itself, and in its entries; the commit names it by the digest of all its bytes."""
    monkeypatch.setattr(manifests, "_kept", manifests._Kept())
    content = json.loads(newest(path).read_text())

    def renamed(entry: dict[str, object]) -> dict[str, object]:
        if "manifest" not in entry:
            return entry
        manifest = unseal((path / "segments" / f"{entry['manifest']}.manifest").read_bytes())
        listed = [renamed(each) | {"colour": "red"} for each in manifest["entries"]]
        data = seal(manifest | {"mood": "good", "entries": listed})
        digest = digest_of(data)
        (path / "segments" / f"{digest}.manifest").write_bytes(data)
        changed.append(digest)
        return entry | {"manifest": digest, "size": len(data)}

    changed: list[str] = []
    steps = [renamed(entry) for entry in content["steps"]]
    rows = [[renamed(entry) for entry in listed] for listed in content["rows"]]
    change(newest(path), steps=steps, rows=rows)
    assert len(changed) > 2
    with lp.Lake.open(path) as lake:
        assert {entry.name for entry in lake.commit.segments} & {f"{each}.manifest" for each in changed}
        lake.verify()
        batch = lake.steps(0, 40)
        for i in range(40):
            agrees(batch, i, WORLD)
    with lp.Replay.open(path, capacity=60) as replay:
        record(replay, WORLD, 40, 50)
    with lp.Lake.open(path) as lake:
        lake.verify()
        agrees(lake.steps(0, 50), 49, WORLD)
    assert lp.repair(path).quarantined == ()


@pytest.mark.parametrize("wrong", [{"format": 0}, {"format": "2"}, {"format": True}, {"requires": "none"}])
def test_an_invalid_version_is_damage(path, wrong):
    change(newest(path), **wrong)
    with pytest.raises(lp.LakeCorrupt, match="has the format"):
        commits.read(path / "commits", 7)
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == 6


def test_every_file_of_a_new_lake_says_its_version(path):
    files = [path / "lake.json", *(path / "commits").glob("*.json"), *(path / "segments").glob("*.manifest")]
    assert len(files) > 10
    for file in files:
        content = json.loads(file.read_text())
        assert (content["format"], content["requires"]) == (2, [])


def test_a_lake_of_format_1_says_format_2_from_its_next_commit_on(tmp_path):
    path = tmp_path / "lake"
    shutil.copytree(Path(__file__).parent / "golden" / "v1", path)
    with lp.Replay.open(path, capacity=60, alpha=0.6):
        pass
    assert json.loads((path / "lake.json").read_text())["format"] == 1
    with lp.Replay.open(path, capacity=60, alpha=0.6) as replay:
        record(replay, WORLD, 120, 130)
    assert json.loads((path / "lake.json").read_text())["format"] == 2
    assert json.loads(newest(path).read_text())["format"] == 2
    for number, steps in zip(commits.numbers(path / "commits"), (20, 50, 110, 120, 130), strict=True):
        with lp.Lake.open(path, number) as lake:
            lake.verify()
            assert len(lake) == steps
            agrees(lake.steps(0, steps), steps - 1, WORLD)
    assert lp.repair(path).quarantined == ()


def test_numbers_in_notes_that_are_not_finite_become_strings(tmp_path):
    path = tmp_path / "lake"
    note = {"loss": float("nan"), "all": [float("inf"), -float("inf"), 1.5], "why": {"x": float("nan")}}
    with lp.Replay.open(path, spec_of("vector"), capacity=10) as replay:
        record(replay, "vector", 0, 3)
        committed = replay.commit(note=note)
        pending = replay.commit(note=note, wait=False)
        note["loss"] = "changed later"
        pending.result()
    expected = {"loss": "NaN", "all": ["Infinity", "-Infinity", 1.5], "why": {"x": "NaN"}}

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    text = (path / "commits" / commits.file_name(0)).read_text()
    assert json.loads(text, parse_constant=refused)["note"] == expected
    assert committed.note == expected  # as it is read back
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == 1
        assert lake.commit.note == expected


@pytest.mark.parametrize("save", ["commit", "pour"])
def test_the_note_of_a_commit_is_the_one_that_is_read_back(tmp_path, save):
    """With lists for tuples and text for NaN."""
    path, note = tmp_path / "lake", {"shape": (2, 3), "a": {"b": True}, "loss": float("nan")}
    if save == "commit":
        with lp.Replay.open(path, spec_of("vector"), capacity=10) as replay:
            record(replay, "vector", 0, 3)
            replay.cut(0)
            commit = replay.commit(note)
    else:
        spec = lp.Spec(obs=lp.Field((8,), "uint8"), action=lp.Field((), "int32"))
        at, ended = np.arange(3)[None], np.zeros((1, 3), bool)
        columns = {"action": at.astype(np.int32), "reward": at.astype(np.float32)}
        columns |= {"terminated": ended, "truncated": ended}
        rows = np.zeros((1, 4, 8), np.uint8)
        with DeviceLake(path, spec) as device:
            lanes = Lanes(rows, 3, np.zeros(1, np.int64), at, at + 1, columns)
            commit = device.pour([lanes], note).result()
    assert {"shape": [2, 3], "a": {"b": True}, "loss": "NaN"}.items() <= commit.note.items()
    with lp.Lake.open(path) as lake:
        assert lake.commit.note == commit.note


@pytest.mark.parametrize("note", [{"loss": object()}, {"loss": {1, 2}}])
def test_a_note_that_is_not_json_is_refused_and_nothing_is_committed(tmp_path, note):
    with lp.Replay.open(tmp_path / "lake", spec_of("vector"), capacity=10) as replay:
        record(replay, "vector", 0, 3)
        with pytest.raises(lp.SpecError, match=r"note\['loss'\] is (object|set); a note takes"):
            replay.commit(note)
        note["loss"] = note
        with pytest.raises(ValueError, match="or contains itself"):
            replay.commit(note)
        assert commits.numbers(tmp_path / "lake" / "commits") == []


# --- the newest commit -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "hint", [None, b"", b"nonsense", b"-1\n", b"999\n", b"0\n", b"3\n", b"7\n", b"\xff", b"9" * 5000]
)
def test_the_newest_commit_is_found_whatever_the_hint_says(path, hint):
    file = path / "commits" / commits.NEWEST
    assert file.read_bytes() == b"7\n"
    file.unlink()
    if hint is not None:
        file.write_bytes(hint)
    assert commits.newest(path / "commits") == 7
    with lp.Lake.open(path) as lake:
        assert lake.commit.number == 7
    with lp.Replay.open(path, capacity=60) as replay:
        record(replay, WORLD, 40, 45)
        assert replay.commit().number == 8
    assert commits.newest(path / "commits") == 8


def test_a_gap_between_commits_hides_none(path):
    """As retention leaves one, or a number that the quarantine has."""
    (path / "quarantine").mkdir()
    newest(path).rename(path / "quarantine" / newest(path).name)
    with lp.Replay.open(path, capacity=60) as replay:
        record(replay, WORLD, 35, 40)
        assert replay.commit().number == 8
        assert commits.newest(path / "commits") == 8
    (path / "commits" / commits.NEWEST).write_bytes(b"6\n")  # of a copy that was made before
    with lp.Lake.open(path) as lake:
        assert lake.commits() == [0, 1, 2, 3, 4, 5, 6, 8]


# --- locks and disks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_named(path, monkeypatch, code):
    def no_locks(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(lp.LakeError, match="does not support file locks"):
        lp.Replay.open(path, capacity=60)
    with lp.Lake.open(path) as lake:  # reading needs none
        lake.verify()
        agrees(lake.steps(0, 40), 39, WORLD)
    with lock.unread(newest(path)) as free:
        assert free
    with lock.FileLock(path / "lock") as shared, pytest.raises(lp.LakeError, match="not support file locks"):
        shared.wait(1)


@pytest.mark.parametrize(
    ("code", "says"), [(errno.EROFS, "read-only file system"), (errno.EACCES, "may not be written")]
)
def test_a_lake_that_cannot_be_written_is_named(path, monkeypatch, code, says):
    opened = os.open

    def refuse(file: object, flags: int, *more: int, **others: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise OSError(code, os.strerror(code), str(file))
        return opened(file, flags, *more, **others)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(lp.LakeReadOnly, match=says):
        lp.Replay.open(path, capacity=60)
    with lp.Lake.open(path) as lake:
        lake.verify()


def test_a_temporary_file_that_is_being_written_survives(tmp_path):
    """Also one without a lock yet: it is made again."""
    from lakepond.lake import files

    held = files._temporary(tmp_path)
    names.delete_temporary(tmp_path)
    assert held[0].exists()
    held[1].close()
    names.delete_temporary(tmp_path)
    assert not held[0].exists()


def test_what_a_function_wrote_to_a_path_is_deleted_if_it_was_killed_and_not_while_it_writes(tmp_path):
    from lakepond.lake import files

    def write(path: Path) -> None:
        path.write_bytes(b"content")
        names.delete_temporary(tmp_path)
        assert path.read_bytes() == b"content"

    files.write_path(tmp_path / "name", write)
    assert [file.name for file in tmp_path.iterdir()] == ["name"]
    code = """
        import os, signal, sys
        from pathlib import Path
        from lakepond.lake import files

        files.write_path(Path(sys.argv[1]), lambda path: os.kill(os.getpid(), signal.SIGKILL))
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), tmp_path / "other"], check=False)
    assert len(list(tmp_path.iterdir())) == 2
    names.delete_temporary(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["name"]


def test_a_temporary_file_that_is_deleted_before_it_is_locked_is_made_again(tmp_path, monkeypatch):
    from lakepond.lake import files

    flock, seen = fcntl.flock, []

    def late(file: object, how: int) -> None:
        if not seen:
            seen.append(file)
            for each in tmp_path.iterdir():
                each.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    files.write_bytes(tmp_path, "name", b"content")
    assert (tmp_path / "name").read_bytes() == b"content"
    assert [file.name for file in tmp_path.iterdir()] == ["name"]


def test_retention_works_without_locks(tmp_path, monkeypatch):
    """A lake is opened, then its file system loses its locks."""
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=60, keep_last=1) as replay:

        def no_locks(*_: object) -> None:
            raise OSError(errno.ENOLCK, "No locks available")

        monkeypatch.setattr(fcntl, "flock", no_locks)
        for k in range(3):
            record(replay, WORLD, 5 * k, 5 * k + 5)
            replay.commit()
            settle(replay)
        assert commits.numbers(path / "commits") == [2]
        monkeypatch.undo()
