"""Files and folders in a lake that lakepond did not write: ignored everywhere, and never deleted."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp
from lakepond.cli import main
from lakepond.flow.following.chains import chains_at
from lakepond.lake import writers
from lakepond.lake.elsewhere import Elsewhere
from lakepond.lake.format import commits, names
from lakepond.lake.segments import Segments
from lakepond.report.view.files import describe_uploads
from lakepond.report.view.opened import OpenedLake

WORLD = "frames first"


def write(path: Path, counts: list[int], **how: object) -> None:
    with lp.Replay.open(path, spec_of(WORLD), capacity=60, **how) as replay:
        for count in counts:
            n = replay.stats().recorded
            record(replay, WORLD, n, n + count)
            replay.commit()


def intact(path: Path, steps: int, first: int = 0) -> None:
    with lp.Lake.open(path, writer="") as lake:
        lake.verify()
        assert lake.ids().tolist() == list(range(first, steps))
        batch = lake.steps(first, steps)
        for i in range(steps - first):
            agrees(batch, i, WORLD)


STRANGERS = {
    "segments": [
        "thesis.tex",
        "keys.txt",
        "x.rows",
        f"{'0' * 39}.rows",
        f"{'0' * 40}.rows.bak",
        "1-00.aside",
    ],
    "commits": ["0000000000.json.bak", "7.json", "\u00b2\u00b3.json", "notes.json", "12.aside"],
    "writers": ["README", ".hidden"],
    "elsewhere": ["notes.txt", "places.aside"],
    "quarantine": ["notes.txt", "0000000000.json.orig"],
}
FOLDERS = {
    "segments": ["lost+found", f"{'a' * 40}.rows"],
    "commits": ["lost+found", "0000000007.json"],
    "writers": ["lost+found", "notes"],
    "elsewhere": ["lost+found", f"{'a' * 12}.txt"],
    "quarantine": ["lost+found", "0000000009.json"],
}


def plant(lake: Path) -> dict[Path, bytes | None]:
    """Strangers in every folder of a lake, with a file in each folder; returns the content of each."""
    found: dict[Path, bytes | None] = {}
    for folder in STRANGERS:
        (lake / folder).mkdir(exist_ok=True)
        for name in STRANGERS[folder]:
            found[lake / folder / name] = b"not of the lake: \xff\x00"
        for name in FOLDERS[folder]:
            (lake / folder / name).mkdir()
            found[lake / folder / name] = None
            found[lake / folder / name / "inside"] = b"not of the lake either"
    for file, content in found.items():
        if content is not None:
            file.write_bytes(content)
    return found


def untouched(planted: dict[Path, bytes | None]) -> bool:
    return all(p.is_dir() if content is None else p.read_bytes() == content for p, content in planted.items())


def test_strangers_are_ignored_by_everything_and_deleted_by_nothing(tmp_path, capsys):
    path, cloud = tmp_path / "lake", f"file://{tmp_path}/bucket"
    write(path, [10, 10])
    lp.push(path, cloud)
    planted = plant(path)
    intact(path, 20)
    write(path, [10, 10], max_steps=60, keep_last=1)
    intact(path, 40)
    assert commits.numbers(path / "commits") == [11]  # above 9.json and 7.json, which are folders
    assert writers.names(path) == [""]
    for command in (["ls"], ["ls", "--json"], ["status"], ["show"], ["verify"], ["repair"]):
        assert main([command[0], str(path), *command[1:]]) == 0, capsys.readouterr()
    newest, problems = OpenedLake(chains_at(path)).newest()
    assert newest is not None
    assert (newest.number, problems) == (11, [])
    assert [place["place"] for place in describe_uploads(path, "", newest)["places"]] == [cloud]
    assert lp.push(path, cloud).done
    write(path, [5, 5])
    assert main(["compact", str(path), "--keep-last", "1"]) == 0, capsys.readouterr()
    intact(path, 50)
    with lp.Lake.open(path) as lake:
        assert names.segment_files(path / "segments").keys() == dict(lake.files()).keys()
    assert lp.repair(path).quarantined == ()
    assert lp.push(path, cloud).done
    Segments(path, budget=0, safe=Elsewhere(path, cloud)).make_room()
    assert names.segment_files(path / "segments") == {}  # all that is safe elsewhere
    assert untouched(planted)
    lp.pull(path, cloud).close()
    intact(path, 50)
    assert untouched(planted)


def test_a_folder_named_like_the_next_commit_does_not_stop_commits(tmp_path):
    path = tmp_path / "lake"
    write(path, [10])
    (path / "commits" / "0000000001.json").mkdir()
    write(path, [10])
    intact(path, 20)
    assert commits.numbers(path / "commits") == [0, 2]


def test_links_in_a_lake_are_never_deleted_and_nothing_behind_them_is(tmp_path):
    path, outside = tmp_path / "lake", tmp_path / "outside"
    outside.mkdir()
    write(path, [10, 10, 10])
    (outside / "thesis.tex").write_text("years of work")
    (outside / f"{'0' * 40}.rows").write_text("not a segment of this lake")
    (path / "segments" / "thesis.tex").symlink_to(outside / "thesis.tex")
    (path / "segments" / f"{'0' * 40}.rows").symlink_to(outside / f"{'0' * 40}.rows")
    (path / "segments" / f"{'1' * 40}.steps").symlink_to(outside / "is not there")
    (path / "segments" / "7-0123abcd.aside").symlink_to(outside / "thesis.tex")
    kept = path / "commits" / commits.file_name(0)
    kept.rename(outside / kept.name)
    kept.symlink_to(outside / kept.name)  # a commit that was moved to another disk
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
    assert commits.numbers(path / "commits") == [0, 3]  # a link is not deleted, and what it names is kept
    with lp.Lake.open(path, 0) as lake:
        lake.verify()
    intact(path, 30)
    Segments(path, budget=0, safe=_all_listed(path)).make_room()
    assert len(list((path / "segments").iterdir())) == 4
    assert all(entry.is_symlink() for entry in (path / "segments").iterdir())
    assert sorted(file.name for file in outside.iterdir()) == [kept.name, f"{'0' * 40}.rows", "thesis.tex"]
    assert (outside / "thesis.tex").read_text() == "years of work"


def _all_listed(path: Path) -> Elsewhere:
    listed = Elsewhere(path, "memory://everything")
    listed.add(entry.name for entry in (path / "segments").iterdir() if names.SEGMENT.fullmatch(entry.name))
    return listed


@pytest.fixture
def other_disk() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as disk:
        yield Path(disk)


def test_segments_on_another_disk_are_written_compacted_and_repaired_and_the_rest_of_that_disk_stays(
    tmp_path, other_disk
):
    path = tmp_path / "lake"
    write(path, [10, 10])
    (other_disk / "thesis.tex").write_text("years of work")
    (other_disk / "lost+found").mkdir()
    for file in (path / "segments").iterdir():
        shutil.move(file, other_disk)
    (path / "segments").rmdir()
    (path / "segments").symlink_to(other_disk)
    write(path, [10], keep_last=1)
    with lp.Lake.open(path) as lake:
        lake.compact(keep_last=1)
        named = dict(lake.files())
        broken = other_disk / lake.commit.segments[0].name
    intact(path, 30)
    assert {file.name for file in other_disk.iterdir()} == {*named, "thesis.tex", "lost+found"}
    data = bytearray(broken.read_bytes())
    data[len(data) // 2] ^= 1
    broken.write_bytes(bytes(data))
    assert broken.name in lp.repair(path).quarantined
    assert (path / "quarantine" / broken.name).read_bytes() == bytes(data)
    assert not broken.exists()
    assert (other_disk / "thesis.tex").read_text() == "years of work"


def test_gc_deletes_no_file_in_a_bucket_that_is_not_a_segment(tmp_path):
    url = f"file://{tmp_path}/bucket/lake"
    write(tmp_path / "lake", [10, 10])
    lp.push(tmp_path / "lake", url)
    segments = tmp_path / "bucket" / "lake" / "segments"
    (segments / "thesis.tex").write_text("years of work")
    (segments / f"{'0' * 40}.rows").write_text("left by a push that was cut off")
    lp.gc(url, keep_last=1, older_than=0, dry_run=False)
    swept = lp.gc(url, keep_last=1, older_than=0, dry_run=False)
    assert swept.segments == (f"{'0' * 40}.rows",)
    assert (segments / "thesis.tex").read_text() == "years of work"


def test_only_names_that_lakepond_gives_can_be_deleted(tmp_path):
    for name in ("thesis.tex", "lost+found", f"{'0' * 41}.rows", "1-00.aside", "7.json", "lake.json"):
        (tmp_path / name).write_text("stays")
        with pytest.raises(AssertionError, match="is not a file of a lake"):
            names.delete(tmp_path / name)
        assert (tmp_path / name).exists()


def test_files_of_a_writer_whose_commits_cannot_be_read_are_not_deleted(caplog):
    """An unreadable folder of commits is not an empty one: what it names would be deleted."""
    if os.getuid():
        pytest.fail("run the tests as root, or in a container: root alone can become another user")
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # pytest's own may be entered by its user alone
        path = Path(folder) / "lake"
        write(path, [20, 20], writer="private")
        write(path, [20, 20, 20], max_steps=60)  # the same steps, so the same files
        private = path / "writers" / "private"
        for file in (private / "segments").iterdir():  # as in format 1: all writers share one folder
            file.replace(path / "segments" / file.name)
        (private / "segments").rmdir()
        before = set(os.listdir(path / "segments"))
        for file in (path, *path.rglob("*")):
            os.chown(file, 12345, 12345)
        (private / "commits").chmod(0)
        os.seteuid(12345)
        try:
            write(path, [60, 20], max_steps=60, keep_last=1)  # names none of the first files any more
        finally:
            os.seteuid(0)
        assert "could not be deleted" in caplog.text
        assert before <= set(os.listdir(path / "segments"))
        with lp.Lake.open(path, writer="private") as lake:
            lake.verify()
            assert lake.steps(0, 40).reward.tolist() == list(range(40))
