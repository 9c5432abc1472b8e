"""CloudSync has the interface of the trading project, and uploads each byte once."""

from __future__ import annotations

import gzip
import os

import numpy as np
import pytest

import lakepond as lp
from lakepond.adapters import trading
from lakepond.adapters.cloud_sync import files_of
from lakepond.cloud.store import Store


@pytest.fixture
def sync(tmp_path, monkeypatch) -> trading.CloudSync:
    """As the environment says: a folder that stands for a bucket."""
    monkeypatch.setenv("CLOUD_PROVIDER", "local")
    monkeypatch.setenv("CLOUD_BUCKET", str(tmp_path / "bucket"))
    monkeypatch.chdir(tmp_path)
    return trading.CloudSync.from_env(project_name="demo")


def add(buffer: trading.ReplayBuffer, start: int, stop: int) -> None:
    days = np.random.default_rng(0).random((200, 6, 3)).astype(np.float32)
    for t in range(start, stop):
        buffer.add(days[t : t + 20], np.full((6, 2), t, np.float32), t, days[t + 1 : t + 21], False)


def sent(sync: trading.CloudSync) -> int:
    return sync.upload_status().uploaded_bytes


def test_a_file_goes_and_comes_back(sync, tmp_path):
    (tmp_path / "model.bin").write_bytes(b"weights")
    sync.upload_file("model.bin")
    sync.upload_file(tmp_path / "model.bin", "demo/other.bin", background=True)
    assert sync.wait_for_uploads(timeout=30).done
    assert sync.exists("demo/model.bin")
    assert not sync.exists("demo/none.bin")
    assert sync.download_file("demo/other.bin", tmp_path / "new/folder/back.bin")
    assert (tmp_path / "new/folder/back.bin").read_bytes() == b"weights"
    assert not sync.download_file("demo/none.bin", tmp_path / "none")
    assert sync.get_upload_status() == (0, 1, 0)  # pending, completed, failed: as it ever was
    with pytest.raises(FileNotFoundError):
        sync.upload_file("not-there.bin")


def test_what_did_not_change_is_not_sent_again_also_by_the_next_process(sync, tmp_path):
    for agent in range(4):
        (tmp_path / "checkpoints").mkdir(exist_ok=True)
        (tmp_path / f"checkpoints/agent_{agent}.bin").write_bytes(bytes([agent]) * 1000)
    sync.sync_checkpoints("checkpoints", background=True)
    assert sync.wait_for_uploads(30).done
    assert sent(sync) == 4000
    (tmp_path / "checkpoints/agent_2.bin").write_bytes(b"x" * 1000)
    os.utime(tmp_path / "checkpoints/agent_3.bin")  # touched, not changed
    for again in (sync, trading.CloudSync.from_env(project_name="demo")):
        before = sent(again)
        again.sync_checkpoints("checkpoints", background=True)
        assert again.wait_for_uploads(30).done
        assert sent(again) - before == (1000 if again is sync else 0)
    assert sync.download_checkpoints("checkpoints")
    assert sync.file_exists_on_cloud("agent_2.bin")


def test_patterns_exclude_by_part_or_glob_and_temporary_files_never_go(sync, tmp_path):
    folder = tmp_path / "checkpoints"
    (folder / "best").mkdir(parents=True)
    for name in ("a.pt", "replay_buffer.pkl", "replay_buffer.pkl.gz", "x.tmp", ".hidden", "y~", "best/b.pt"):
        (folder / name).write_bytes(b"1")
    (folder / "z.pkl.gz.part").write_bytes(b"1")

    def names(exclude):
        return [path.relative_to(folder).as_posix() for path in files_of(folder, exclude)]

    assert names([]) == ["a.pt", "replay_buffer.pkl", "replay_buffer.pkl.gz", "best/b.pt"]
    assert names(["replay_buffer"]) == ["a.pt", "best/b.pt"]
    assert names(["*.pkl*"]) == ["a.pt", "best/b.pt"]
    assert names(["best/*"]) == ["a.pt", "replay_buffer.pkl", "replay_buffer.pkl.gz"]
    sync.upload_directory(folder, "demo/x", exclude_patterns=["replay_buffer"])
    assert sorted(Store(sync.cloud).list("demo/x")) == ["demo/x/a.pt", "demo/x/best/b.pt"]


def test_a_buffer_is_sent_by_its_lake_alone_each_segment_once(sync, tmp_path):
    buffer = trading.ReplayBuffer(1000, min_size=10)
    saved = []
    for generation in range(1, 26):
        add(buffer, 6 * generation - 6, 6 * generation)
        saved.append(
            sync.save_and_upload_buffer(
                buffer,
                "checkpoints/replay_buffer",
                "demo/buffer",
                generation=generation,
                last=generation == 25,
            )
        )
        if saved[-1]:
            assert sync.wait_for_uploads(60).done
        sync.sync_checkpoints("checkpoints") if (tmp_path / "checkpoints").exists() else None
    assert [k + 1 for k, done in enumerate(saved) if done] == [5, 10, 15, 20, 25]
    there = Store(lp.Cloud(f"file://{tmp_path}/bucket")).list()
    assert not [name for name in there if name.startswith("demo/checkpoints")]
    everything = sum(answer.size for answer in there.values())
    assert sent(sync) <= 1.01 * everything
    lp.pull(tmp_path / "again", f"file://{tmp_path}/bucket/demo/buffer").close()
    again = trading.ReplayBuffer.load(tmp_path / "again")
    assert len(again) == 150
    assert sync.shutdown().done
    again.close()
    buffer.close()


def test_what_is_sent_is_known_by_its_folder_and_its_name_in_the_cloud(sync, tmp_path, caplog):
    buffer = trading.ReplayBuffer(100)
    for folder, stop in (("one", 10), ("moved", 30)):
        add(buffer, len(buffer), stop)
        sync.save_and_upload_buffer(buffer, folder, "demo/buffer")
        assert sync.wait_for_uploads(30).done
        buffer.close()
        lp.pull(tmp_path / f"{folder}-again", f"file://{tmp_path}/bucket/demo/buffer").close()
        with lp.Lake.open(tmp_path / f"{folder}-again") as lake:
            assert len(lake) == stop
        os.rename(folder, "moved")
        buffer = trading.ReplayBuffer.load("moved")
    buffer.close()
    other = trading.ReplayBuffer(100)
    add(other, 50, 60)
    sync.save_and_upload_buffer(other, "another", "demo/buffer")  # of other steps
    assert "different content" in sync.wait_for_uploads(30).last_error
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "model.bin").write_text(f"of {folder}")
        os.utime(tmp_path / folder / "model.bin", (1, 1))
        sync.upload_file(f"{folder}/model.bin", "demo/model.bin")
    sync.download_file("demo/model.bin", "back.bin")
    assert (tmp_path / "back.bin").read_text() == "of b"
    sync.shutdown()


def test_a_buffer_that_saves_itself_as_a_file_goes_as_a_file(sync, tmp_path):
    class Old:
        def save(self, file_path):
            with gzip.open(file_path, "wb") as file:
                file.write(b"pickled")

    assert sync.save_and_upload_buffer(Old(), tmp_path / "old.pkl.gz", "demo/old.pkl.gz")
    assert sync.wait_for_uploads(30).done
    assert sync.exists("demo/old.pkl.gz")


def test_a_save_that_fails_is_counted_and_logged_and_training_goes_on(sync, caplog):
    class Full:
        def save(self, file_path):
            raise OSError(28, "No space left on device")

    sync.save_and_upload_buffer(Full(), "x", "demo/x")
    status = sync.wait_for_uploads(30)
    assert status.state == "failed"
    assert sync.get_upload_status().failed == 1
    assert "No space left" in caplog.text


def test_large_files_go_in_parts_and_come_back(sync, tmp_path, monkeypatch):
    monkeypatch.setattr("lakepond.adapters.cloud_sync.LARGE", 1000)
    (tmp_path / "big").write_bytes(np.random.default_rng(0).bytes(5000))
    for _ in range(2):
        sync.upload_file("big")
    assert sync.download_file("demo/big", "back")
    assert (tmp_path / "back").read_bytes() == (tmp_path / "big").read_bytes()


def test_without_a_bucket_nothing_is_sent_and_nothing_fails(tmp_path, monkeypatch):
    for name in ("CLOUD_PROVIDER", "CLOUD_BUCKET", "CLOUD_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "x").write_bytes(b"1")
    for sync, project in (
        (trading.CloudSync.from_env(), "lakepond"),
        (trading.get_cloud_sync_from_env(), "eigen2"),
    ):
        assert (sync.project_name, sync.provider, sync.cloud) == (project, "local", None)
        sync.upload_file(tmp_path / "x", background=True)
        assert not sync.exists("x")
        assert not sync.download_file("x", tmp_path / "y")
        assert not sync.download_directory("x", tmp_path / "z")
        assert not sync.download_checkpoints("checkpoints")
        assert sync.wait_for_uploads(1).done
        assert sync.get_upload_status() == (0, 0, 0)
        sync.shutdown()


def test_an_environment_that_cannot_be_is_refused(monkeypatch):
    monkeypatch.setenv("CLOUD_PROVIDER", "dropbox")
    with pytest.raises(lp.SpecError, match="gcs, s3, azure, local"):
        trading.CloudSync.from_env()
    monkeypatch.setenv("CLOUD_PROVIDER", "gcs")
    monkeypatch.delenv("CLOUD_BUCKET", raising=False)
    with pytest.raises(lp.SpecError, match="CLOUD_BUCKET"):
        trading.CloudSync.from_env()
    with pytest.raises(lp.SpecError, match="buffer_every"):
        trading.CloudSync(buffer_every=0)


def test_another_machine_downloads_checkpoints_and_continues_with_the_buffer(tmp_path, monkeypatch):
    """The project's own order: save and upload, download_checkpoints, load."""
    monkeypatch.setenv("CLOUD_PROVIDER", "local")
    monkeypatch.setenv("CLOUD_BUCKET", str(tmp_path / "bucket"))
    monkeypatch.setenv("CLOUD_PROJECT", "other")
    for machine in ("first", "second"):
        (tmp_path / machine).mkdir()
        monkeypatch.chdir(tmp_path / machine)
        sync = trading.get_cloud_sync_from_env()
        assert (sync.provider, sync.project_name) == ("local", "other")
        path = "checkpoints/replay_buffer.pkl"
        if machine == "first":
            os.mkdir("checkpoints")
            with open("checkpoints/agent_0.pth", "wb") as file:
                file.write(b"weights")
            buffer = trading.ReplayBuffer(1000, min_size=10)
            add(buffer, 0, 40)
        else:
            assert sync.download_checkpoints("checkpoints")
            assert os.listdir("checkpoints") != []
            with open("checkpoints/agent_0.pth", "rb") as file:
                assert file.read() == b"weights"
            buffer = trading.ReplayBuffer.load(path, min_size=10)
            assert (len(buffer), buffer.capacity) == (40, 1000)
            assert sorted(buffer.sample(40)["rewards"][:, 0].tolist()) == list(range(40))
            add(buffer, 40, 60)
        sync.save_and_upload_buffer(buffer, path, f"{sync.project_name}/{path}")
        sync.sync_checkpoints("checkpoints", background=True, exclude_patterns=["replay_buffer"])
        assert sync.wait_for_uploads(60).done
        assert sync.get_upload_status().failed == 0
        sync.shutdown(wait=False)
        buffer.close()
