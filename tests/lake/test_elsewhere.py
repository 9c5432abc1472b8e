"""The list of files that are elsewhere: no crash makes it lose a file that was deleted here."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp
from lakepond.errors import LakeLocked
from lakepond.lake import elsewhere
from lakepond.lake.elsewhere import Elsewhere, known
from lakepond.lake.format.names import segment_files
from lakepond.lake.lock import FileLock
from lakepond.lake.segments import Segments

WORLD = "market window"
URL = "memory://everything"


@pytest.fixture
def lake(tmp_path) -> Path:
    """Three commits; `copy/` holds all segments, as a bucket would."""
    path = tmp_path / "lake"
    with lp.Replay.open(path, spec_of(WORLD), capacity=200) as replay:
        for n in range(3):
            record(replay, WORLD, 50 * n, 50 * n + 50)
            replay.commit()
    shutil.copytree(path / "segments", tmp_path / "copy")
    return path


def read_back(path: Path) -> None:
    """Every step, of every commit, the files fetched from the copy."""
    copy = path.parent / "copy"
    segments = Segments(path, fetch=lambda name: shutil.copy(copy / name, path / "segments" / name))
    for number in range(3):
        with lp.Lake.open(path, number, segments=segments) as lake:
            batch = lake.steps(0, 50 * number + 50)
            for i in range(len(batch.reward)):
                agrees(batch, i, WORLD)


def test_wherever_a_crash_cuts_the_list_nothing_is_lost_by_adding_to_it_and_evicting(lake):
    Elsewhere(lake, URL).add(sorted(segment_files(lake / "segments")))
    (file,) = (lake / "elsewhere").glob("*.txt")
    complete = file.read_bytes()
    every = sorted(segment_files(lake / "segments"))
    assert len(every) >= 6
    for length in range(len(complete)):
        file.write_bytes(complete[:length])
        listed = Elsewhere(lake, URL)
        listed.add(every[length % len(every) :])  # some of them are in the list already
        safe = Elsewhere(lake, URL)  # in the next process
        Segments(lake, budget=0, safe=safe).make_room()
        left = segment_files(lake / "segments").keys()
        assert left == set(every) - known(lake).keys()
        assert set(known(lake).values()) == {URL}
        assert not left & set(every[length % len(every) :])  # what was added is listed, and was evicted
        for number in range(3):
            lp.Lake.open(lake, number).close()  # LakeCorrupt if a file is neither here nor listed
        for name in every:
            if name not in left:
                shutil.copy(lake.parent / "copy" / name, lake / "segments" / name)
    Segments(lake, budget=0, safe=Elsewhere(lake, URL)).make_room()
    read_back(lake)


def test_a_list_that_a_power_cut_filled_with_other_bytes_opens_and_only_names_count(lake):
    every = sorted(segment_files(lake / "segments"))
    Elsewhere(lake, URL).add(every[:3])
    (file,) = (lake / "elsewhere").glob("*.txt")
    torn = b"\xff\x00" * 20 + b"\n" + every[4].encode()[:-1] + b"\n" + b"../../thesis.tex\n" + bytes(30)
    with file.open("ab") as opened:
        opened.write(torn)
    assert known(lake).keys() == set(every[:3])
    listed = Elsewhere(lake, URL)
    listed.add(every[3:5])
    assert known(lake).keys() == set(every[:5])
    assert file.read_text().split("\n") == [URL, "published", *sorted(every[:3]), *every[3:5], ""]
    with pytest.raises(AssertionError, match="is not the name of a segment"):
        listed.add(["../../thesis.tex"])


def test_one_process_does_not_undo_what_another_added_to_the_list(lake):
    """One drops a file after another has listed, and evicted, a second one."""
    every = sorted(segment_files(lake / "segments"))
    one = Elsewhere(lake, URL)
    one.add(every[:2])
    other = Elsewhere(lake, URL)
    other.add(every[2:])
    Segments(lake, budget=0, safe=other).make_room()
    shutil.copy(lake.parent / "copy" / every[0], lake / "segments" / every[0])
    one.drop([every[0]])  # the cloud has lost it
    assert known(lake).keys() == set(every[1:])
    Segments(lake, budget=0, safe=other).make_room()  # which had listed it at its start
    assert segment_files(lake / "segments").keys() == {every[0]}
    one.add([every[0]])
    assert known(lake).keys() == set(every)
    read_back(lake)
    assert sorted(each.suffix for each in (lake / "elsewhere").iterdir()) == ["", ".slots", ".txt"]


def test_a_file_that_the_list_on_disk_does_not_name_is_not_evicted(lake):
    every = sorted(segment_files(lake / "segments"))
    listed = Elsewhere(lake, URL)
    listed.add(every)
    (file,) = (lake / "elsewhere").glob("*.txt")
    file.write_text(f"{URL}\npublished\n{every[0]}\n")
    Segments(lake, budget=0, safe=listed).make_room()
    assert segment_files(lake / "segments").keys() == set(every[1:])
    file.unlink()
    Segments(lake, budget=0, safe=listed).make_room()
    assert segment_files(lake / "segments").keys() == set(every[1:])


def test_a_file_that_another_reader_uses_is_not_evicted(lake):
    """Another object here, or a process: a copy of the replay, say, that was sent to a worker."""
    every = sorted(segment_files(lake / "segments"))
    Elsewhere(lake, URL).add(every)
    evicting = Segments(lake, budget=0, safe=Elsewhere(lake, URL))
    reader = Segments(lake, fetch=lambda name: pytest.fail(f"{name} is here"))
    with reader.using(every[0]), reader.using(every[0]):
        assert evicting.make_room() > 0
        assert segment_files(lake / "segments").keys() == {every[0]}
    program = f"""
        import sys
        from pathlib import Path
        from lakepond.lake.segments import Segments
        with Segments(Path({str(lake)!r}), fetch=print).using({every[0]!r}):
            print("in use", flush=True)
            sys.stdin.read()
    """
    line = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "in use\n"
        assert evicting.make_room() > 0
        process.stdin.close()
        assert process.wait(60) == 0
    assert evicting.make_room() == 0
    assert not segment_files(lake / "segments")
    read_back(lake)


def test_a_file_that_is_evicted_before_its_reader_has_it_is_fetched_again(lake):
    every = sorted(segment_files(lake / "segments"))
    Elsewhere(lake, URL).add(every)
    evicting = Segments(lake, budget=0, safe=Elsewhere(lake, URL))
    evicting.make_room()
    fetched = []

    def fetch(name: str) -> None:
        shutil.copy(lake.parent / "copy" / name, lake / "segments" / name)
        fetched.append(name)
        if len(fetched) < 3:
            evicting.make_room()

    with Segments(lake, fetch=fetch).using(every[0]) as file:
        assert file.read_bytes() == (lake.parent / "copy" / every[0]).read_bytes()
    assert fetched == [every[0]] * 3


def test_a_pushed_commit_is_read_after_a_torn_line_a_push_and_an_eviction(tmp_path, caplog):
    path, cloud = tmp_path / "lake", lp.Cloud(f"memory://{tmp_path.name}")
    with lp.Replay.open(path, spec_of(WORLD), capacity=60, cloud=cloud) as replay:
        record(replay, WORLD, 0, 20)
        replay.commit()
        assert replay.push(wait=True).done
    (file,) = (path / "elsewhere").glob("*.txt")
    file.write_bytes(file.read_bytes()[:-7])  # the machine stopped in the middle of a line
    with lp.Replay.open(path, capacity=60, cloud=cloud, local_budget=1) as replay:
        record(replay, WORLD, 20, 40)
        replay.commit()
        assert replay.push(wait=True).done
    assert segment_files(path / "segments") == {}
    caplog.set_level(logging.WARNING)
    caplog.clear()
    lp.Lake.open(path).close()
    assert caplog.text == ""  # no commit was skipped
    with lp.pull(path, cloud) as lake:
        batch = lake.steps(0, 40)
        for i in range(40):
            agrees(batch, i, WORLD)


def test_a_process_that_is_stopped_with_the_list_locked_is_named_and_nothing_is_waited_for(lake, monkeypatch):
    monkeypatch.setattr(elsewhere, "WAIT_SECONDS", 0.05)
    files = sorted(segment_files(lake / "segments"))
    Elsewhere(lake, URL).add(files[:1])
    with FileLock(lake / "elsewhere" / "lock") as stopped:
        stopped.wait(0.0)
        with pytest.raises(LakeLocked, match=r"elsewhere/lock locked for 0.05 s; if it is stopped"):
            Elsewhere(lake, URL).add(files)
    Elsewhere(lake, URL).add(files)
    assert known(lake) == dict.fromkeys(files, URL)
