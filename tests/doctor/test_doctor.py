"""The checks of `lakepond doctor` use real files and objects, and never show a credential."""

import time
from pathlib import Path

import pytest

from lakepond import machine
from lakepond.cloud import credentials as client
from lakepond.doctor import cloud, disk, examine, software
from lakepond.formats import size

SECRET = "wJalrXUtnFEMI-do-not-show"


def test_this_machine_is_ready_and_nothing_is_left_behind(tmp_path):
    before = set(tmp_path.iterdir())
    found = {check.name: check for check in examine(tmp_path)}
    assert [check for check in found.values() if check.verdict == "fail"] == []
    assert {"python", "libraries", "accelerator", "disk", "memory", "sync", "locks", "clock"} <= found.keys()
    assert all(check.next_step for check in found.values() if check.verdict != "pass")
    assert set(tmp_path.iterdir()) == before


def test_a_folder_that_is_not_there_yet_is_tried_where_it_will_be(tmp_path):
    checks = {check.name: check for check in disk.sync_and_lock(tmp_path / "not" / "yet")}
    assert checks["sync"].verdict == "pass"
    assert not (tmp_path / "not").exists()


def test_a_folder_that_cannot_be_written_to_fails_with_a_next_step():
    (check,) = disk.sync_and_lock(Path("/proc"))
    assert check.verdict == "fail"
    assert "--path" in check.next_step


@pytest.mark.parametrize(("takes", "why"), [(True, "granted to two processes"), (False, "outlived")])
def test_locks_that_are_given_twice_or_outlive_their_process_fail(tmp_path, monkeypatch, takes, why):
    monkeypatch.setattr(disk, "_takes", lambda descriptor: takes)
    check = disk.lock(tmp_path)
    assert check.verdict == "fail"
    assert why in check.result


def test_memory_that_is_called_a_disk_is_a_warning():
    shared = Path("/dev/shm")
    if machine.file_system(shared) != "tmpfs":
        pytest.fail("this test needs a tmpfs at /dev/shm")
    checks = {check.name: check for check in disk.sync_and_lock(shared)}
    assert checks["sync"].verdict == "warn"


@pytest.mark.parametrize(("free", "verdict"), [(0.5e9, "fail"), (19e9, "warn"), (21e9, "pass")])
def test_free_disk_below_20_gb_is_a_warning(free, verdict, monkeypatch):
    monkeypatch.setattr(machine, "free_disk", lambda path: int(free))
    check = disk.free(Path())
    assert check.verdict == verdict
    assert f"{size(free)} free" in check.result


def test_a_clock_in_the_past_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    assert disk.clock(tmp_path).verdict == "fail"


def test_a_file_system_whose_clock_differs_is_a_warning(tmp_path, monkeypatch):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3_600)
    check = disk.clock(tmp_path)
    assert check.verdict == "warn"
    assert "differs by -3,600 s" in check.result


def test_missing_libraries_are_named_with_what_brings_them(monkeypatch):
    monkeypatch.setattr(software, "EXTRAS", {"train": ("jax", "no-such-library")})
    (check,) = software.extras()
    assert (check.verdict, check.result) == ("warn", "missing: no-such-library")
    assert check.next_step == "pip install 'lakepond[train]'"


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder on a machine of no cloud; `home(name, text)` writes a file there."""
    monkeypatch.setattr(client, "_made_by", lambda vendor: False)

    def write(name, text):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return str(file)

    return write


def test_credentials_are_listed_and_not_shown(home):
    environment = {
        "AWS_ACCESS_KEY_ID": "AKIA-do-not-show",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "GOOGLE_APPLICATION_CREDENTIALS": home("key.json", SECRET),
        "AZURE_STORAGE_CONNECTION_STRING": f"AccountName=runs;AccountKey={SECRET}",
    }
    check = cloud.credentials(environment)
    assert check.verdict == "pass"
    assert check.result == "found for Google, S3, Azure"
    assert "do-not-show" not in str(check)
    assert cloud.credentials({}).verdict == "warn"


def test_all_credentials_that_push_uses_are_found(home, tmp_path):
    process = "[profile work]\ncredential_process = keys\n"
    home(".aws/config", process)
    home(".config/gcloud/application_default_credentials.json", '{"type": "authorized_user"}')
    shared_access = {"AZURE_STORAGE_ACCOUNT_NAME": "runs", "AZURE_STORAGE_SAS_KEY": SECRET}
    check = cloud.credentials({"HOME": str(tmp_path), "AWS_PROFILE": "work", **shared_access})
    assert check.result == "found for Google, S3, Azure"


def test_a_key_file_that_is_not_there_fails(home, tmp_path):
    check = cloud.credentials({"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json")})
    assert check.verdict == "fail"


def test_credentials_that_need_a_package_are_a_warning_that_names_it(home, tmp_path, monkeypatch):
    home(".aws/config", "[default]\nsso_session = work\n")
    monkeypatch.setattr(client, "find_spec", lambda module: None)
    check = cloud.credentials({"HOME": str(tmp_path)})
    assert check.verdict == "warn"
    assert "pip install boto3" in check.result


def test_a_bucket_is_written_read_and_cleaned_up(tmp_path):
    check = cloud.bucket(f"file://{tmp_path}/bucket")
    assert check.verdict == "pass"
    assert [file for file in (tmp_path / "bucket").rglob("*") if file.is_file()] == []


@pytest.mark.parametrize("url", ["ftp://x/y", "file:///proc/nowhere"])
def test_a_bucket_that_cannot_be_is_one_sentence(url):
    check = cloud.bucket(url)
    assert check.verdict == "fail"
    assert check.next_step


def test_a_bucket_without_credentials_says_so_at_once(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    check = cloud.bucket("s3://some-bucket/runs")
    assert check.verdict == "fail"
    assert "no credentials" in check.result


def test_page_cache_of_a_container_counts_as_available_memory(tmp_path, monkeypatch):
    """The system takes it back when memory is needed, so it is not subtracted from the limit."""
    for name, text in {"memory.max": "1000000", "memory.current": "900000"}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "memory.stat").write_text("anon 200000\ninactive_file 700000\n")
    monkeypatch.setattr(machine, "_CGROUPS", ((tmp_path, "memory.max", "memory.current", "inactive_file"),))
    assert machine.memory() == machine.Memory(1_000_000, 800_000)
