"""Upload and download files, folders and buffers, with the interface of the trading project eigen2.

Unchanged files are not uploaded again, and temporary files never are. A buffer is a lake and is uploaded as
one: each segment once.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent import futures
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Self

from lakepond.cloud.bucket import Listed
from lakepond.cloud.pace import patiently
from lakepond.cloud.place import Cloud
from lakepond.cloud.pusher import Pusher
from lakepond.cloud.status import UploadStatus, together
from lakepond.cloud.store import LARGE, Store, md5_of_file
from lakepond.cloud.uploader import Upload, Uploader
from lakepond.errors import CloudCorrupt, CloudNotFound, LakepondError, SpecError
from lakepond.flow.cloud_to_lake import pull
from lakepond.forks import ThreadPool
from lakepond.lake.files import make_folders, write_path
from lakepond.lake.links import target_in

log = logging.getLogger("lakepond")
TEMPORARY = (
    *("*.tmp", "*.tmp.*", "*.temp", "*.part", "*.partial", "*.aside", "*.swp", "*~"),
    *(".*", "__pycache__"),
)
"""names that are never sent"""
WAIT_SECONDS = 600.0


class Counts(NamedTuple):
    """Result of `get_upload_status`: numbers of files; `upload_status` reports more."""

    pending: int
    completed: int
    failed: int


class CloudSync:
    """Uploads and downloads files, folders and buffers, optionally in the background."""

    def __init__(
        self,
        provider: str = "local",
        bucket_name: str | None = None,
        project_name: str = "lakepond",
        credentials_path: str | None = None,
        max_workers: int = 4,
        *,
        buffer_every: int = 5,
        cloud: Cloud | None = None,
    ) -> None:
        """`provider`: gcs, s3, azure, or local with a folder as bucket; without a bucket nothing is uploaded.

        `buffer_every`: generations between two pushes of the buffer, see `save_and_upload_buffer`. `cloud`:
        all settings, instead of `provider` and `bucket_name`.
        """
        if buffer_every < 1:
            raise SpecError(f"buffer_every is a number of generations, at least 1, but is {buffer_every!r}.")
        env = {"CLOUD_PROVIDER": provider, "CLOUD_BUCKET": bucket_name or ""}
        if cloud is None and (found := Cloud.from_env(env=env)) is not None:
            named = {"application_credentials": credentials_path} if credentials_path else {}
            cloud = Cloud(found.url, workers=max_workers, options=named if provider == "gcs" else {})
        self.provider, self.bucket_name = provider, bucket_name
        self.project_name, self.buffer_every = project_name, buffer_every
        self.cloud = cloud
        self._store = None if cloud is None else Store(cloud)
        self._uploader = None if cloud is None else Uploader(cloud)
        self._pushers: dict[tuple[Path, str], Pusher] = {}
        self._saver = ThreadPool(1, "lakepond-save")  # saves of a buffer run one after another
        self._saves: list[Future[None]] = []
        self._sent: dict[str, tuple[Path, int, int]] = {}  # remote name: the file that is there, size, time
        self._save_failed = 0
        if cloud is None:
            log.info(
                "CloudSync: no bucket is set, so nothing is uploaded; set CLOUD_PROVIDER and CLOUD_BUCKET."
            )

    @classmethod
    def from_env(cls, project_name: str = "lakepond", **settings: Any) -> Self:
        """Create a `CloudSync` from `CLOUD_PROVIDER` (gcs, s3, azure, local) and `CLOUD_BUCKET`.

        Credentials come from `GOOGLE_APPLICATION_CREDENTIALS` and the other providers' usual variables.
        """
        return cls(project_name=project_name, cloud=Cloud.from_env(), **settings)

    # --- files -----------------------------------------------------------------------------------

    def upload_file(
        self, local_path: str | Path, cloud_path: str | None = None, background: bool = False
    ) -> None:
        """Upload a file unless it is unchanged, by default to `<project_name>/<local_path>`."""
        path = Path(local_path)
        if not path.is_file():
            raise CloudNotFound(f"{path} is not a file; nothing was uploaded.")
        self._upload([(path, cloud_path or f"{self.project_name}/{path.as_posix()}")], background)

    def upload_directory(
        self,
        local_dir: str | Path,
        cloud_prefix: str | None = None,
        background: bool = False,
        exclude_patterns: Sequence[str] = (),
    ) -> None:
        """Upload the new and changed files of a folder.

        A pattern excludes paths that contain it or match it as a glob. Temporary files and lakes are not
        uploaded; `Replay.push` and `save_and_upload_buffer` upload lakes.
        """
        folder = Path(local_dir)
        if not folder.is_dir():
            raise CloudNotFound(f"{folder} is not a folder; nothing was uploaded.")
        prefix = cloud_prefix or f"{self.project_name}/{folder.as_posix()}"
        found = files_of(folder, exclude_patterns)
        self._upload(
            [(path, f"{prefix}/{path.relative_to(folder).as_posix()}") for path in found], background
        )

    def sync_checkpoints(
        self,
        checkpoint_dir: str | Path = "checkpoints",
        background: bool = False,
        exclude_patterns: Sequence[str] = (),
    ) -> None:
        """`upload_directory` to `<project_name>/<checkpoint_dir>`."""
        self.upload_directory(checkpoint_dir, None, background, exclude_patterns)

    def sync_logs(self, log_dir: str | Path = "logs", background: bool = False) -> None:
        """`upload_directory` to `<project_name>/<log_dir>`."""
        self.upload_directory(log_dir, None, background)

    def exists(self, cloud_path: str) -> bool:
        """Whether the bucket contains a file of that name."""
        return self._store is not None and self._retried(self._store.head, cloud_path) is not None

    def file_exists_on_cloud(self, filename: str) -> bool:
        """Whether `<project_name>/checkpoints` contains that file."""
        return self.exists(f"{self.project_name}/checkpoints/{filename}")

    def download_file(self, cloud_path: str, local_path: str | Path) -> bool:
        """Download a file atomically; return False if it does not exist.

        Raises `CloudCorrupt` if the downloaded bytes do not match the checksum.
        """
        store = self._store
        info = None if store is None else self._retried(store.head, cloud_path)
        if store is None or info is None:
            return False
        target = Path(local_path)
        make_folders(target.parent)
        write_path(target, lambda temporary: self._retried(_download, store, cloud_path, info, temporary))
        return True

    def download_directory(self, cloud_prefix: str, local_dir: str | Path) -> bool:
        """Download all files and lakes under a prefix; return False if there are none."""
        if self._store is None:
            return False
        names = self._retried(self._store.list, cloud_prefix)
        start, folder = cloud_prefix.strip("/") + "/", Path(local_dir)
        lakes = [name.removesuffix("lake.json") for name in names if name.endswith("/lake.json")]
        for name in names:
            if not name.startswith(tuple(lakes)):
                self.download_file(name, target_in(folder, name.removeprefix(start)))
        for lake in lakes:
            pull(target_in(folder, lake.removeprefix(start).rstrip("/")), self._place(lake)).close()
        return bool(names)

    def download_checkpoints(self, checkpoint_dir: str | Path = "checkpoints") -> bool:
        """Download the files that `sync_checkpoints` uploaded."""
        return self.download_directory(
            f"{self.project_name}/{Path(checkpoint_dir).as_posix()}", checkpoint_dir
        )

    # --- the buffer ------------------------------------------------------------------------------

    def buffer_due(self, generation: int, last: bool = False) -> bool:
        """Whether the buffer is saved after this generation; the first generation is 1."""
        return last or generation % self.buffer_every == 0

    def save_and_upload_buffer(
        self,
        replay_buffer: Any,
        local_path: str | Path,
        cloud_path: str,
        *,
        generation: int | None = None,
        last: bool = False,
    ) -> bool:
        """Save the buffer by its `save(local_path)` and upload its new steps, both in the background.

        generation: save only if `buffer_due(generation, last)`. Returns whether a save was started. A lake is
        uploaded to the folder `cloud_path`, anything else as one file.
        """
        if generation is not None and not self.buffer_due(generation, last):
            return False
        self._saves = [save for save in self._saves if not save.done()]
        self._saves.append(self._saver.submit(self._save, replay_buffer, local_path, cloud_path))
        return True

    def _save(self, replay_buffer: Any, local_path: str | Path, cloud_path: str) -> None:
        try:
            replay_buffer.save(local_path)
            self._send_buffer(Path(local_path), cloud_path)
        except Exception as error:
            self._save_failed += 1
            expected = isinstance(error, LakepondError | OSError)
            log.error(
                "the buffer was not saved to %s: %s", local_path, error, exc_info=None if expected else error
            )

    def _send_buffer(self, path: Path, cloud_path: str) -> None:
        if self.cloud is None:
            return
        if not is_lake(path):
            self.upload_file(path, cloud_path, background=True)
            return
        key = path.resolve(), cloud_path
        if key not in self._pushers:
            self._pushers[key] = Pusher(path, self._place(cloud_path))
        self._pushers[key].push()

    def _place(self, cloud_path: str) -> Cloud:
        assert self.cloud is not None
        return replace(self.cloud, url=f"{self.cloud.url.rstrip('/')}/{cloud_path.strip('/')}")

    # --- status ----------------------------------------------------------------------------------

    def upload_status(self) -> UploadStatus:
        """Return the progress of all uploads, including buffers."""
        saving, failed = sum(not save.done() for save in self._saves), self._save_failed
        saves = UploadStatus(
            state="failed" if failed else "sending" if saving else "idle",
            uploaded=0,
            uploaded_bytes=0,
            pending=saving,
            pending_bytes=0,
            failed=failed,
            lag_seconds=0.0,
            bytes_per_second=0.0,
            last_error=None,
        )
        return together([saves, *(each.status() for each in self._uploaders())])

    def _uploaders(self) -> list[Pusher | Uploader]:
        return [*self._pushers.values(), *filter(None, [self._uploader])]

    def get_upload_status(self) -> Counts:
        """Return the numbers of pending, completed and failed files."""
        status = self.upload_status()
        return Counts(status.pending, status.uploaded, status.failed)

    def wait_for_uploads(self, timeout: float | None = None) -> UploadStatus:
        """Wait for all uploads, at most `timeout` seconds (default 600); return the progress."""
        until = time.monotonic() + (WAIT_SECONDS if timeout is None else timeout)
        futures.wait(self._saves, max(0.0, until - time.monotonic()))
        for each in self._uploaders():  # a save may have added one
            each.wait(max(0.0, until - time.monotonic()))
        return self.upload_status()

    def shutdown(self, wait: bool = True, timeout: float | None = None) -> UploadStatus:
        """Stop uploading, with `wait` after `wait_for_uploads`; log what is missing, return the progress."""
        status = self.wait_for_uploads(timeout) if wait else self.upload_status()
        for pusher in self._pushers.values():
            pusher.close(0.0)
        self._saver.shutdown(wait=False)
        if self._uploader is not None:
            self._uploader.close()
        if status.pending or status.failed:
            log.warning("CloudSync: uploads are incomplete: %s", status)
        return status

    # --- inside ----------------------------------------------------------------------------------

    def _upload(self, files: Iterable[tuple[Path, str]], background: bool) -> None:
        if self._store is None or self._uploader is None:
            return
        uploads = []
        for path, name in files:
            info = path.stat()
            stamp = (path.resolve(), info.st_size, info.st_mtime_ns)
            if self._sent.get(name) != stamp:
                send = partial(_send_changed, self._store, path, name)
                done = partial(self._sent.__setitem__, name, stamp)
                uploads.append(Upload(name, info.st_size, send=send, done=done))
        if background:
            self._uploader.submit(*uploads)
            return
        for upload in uploads:
            self._retried(upload.send)
            upload.done()

    def _retried(self, request: Callable[..., Any], *arguments: Any) -> Any:
        """The result of a request, which is repeated while the server cannot be reached."""
        assert self.cloud is not None
        attempt = partial(request, *arguments)
        return patiently(attempt, for_seconds=self.cloud.patience, cap=self.cloud.retry_cap)


def files_of(folder: Path, exclude: Sequence[str] = ()) -> list[Path]:
    """List the files of a folder to upload: not excluded, not temporary, not part of a lake.

    Symbolic links and special files are skipped with a warning.
    """
    found: list[Path] = []
    links: list[Path] = []
    for here, folders, files in os.walk(folder):
        inside = Path(here)
        linked = [name for name in folders if (inside / name).is_symlink()]
        folders[:] = sorted(
            f for f in folders if f not in linked and not _is_temporary(f) and not is_lake(inside / f)
        )
        for name in sorted([*files, *linked]):
            path = inside / name
            relative = path.relative_to(folder).as_posix()
            if not _is_temporary(name) and not any(_matches(relative, pattern) for pattern in exclude):
                (found if stat.S_ISREG(path.lstat().st_mode) else links).append(path)
    if links:
        names = ", ".join(str(path.relative_to(folder)) for path in links[:8])
        log.warning("%s: %d symbolic links or special files are not sent: %s", folder, len(links), names)
    return found


def is_lake(path: Path) -> bool:
    """Whether a folder is a lake, which is uploaded by a `Pusher`."""
    return (path / "lake.json").is_file() and (path / "segments").is_dir()


def _is_temporary(name: str) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in TEMPORARY)


def _matches(path: str, pattern: str) -> bool:
    return pattern in path or fnmatch.fnmatch(path, pattern) or fnmatch.fnmatch(Path(path).name, pattern)


def _send_changed(store: Store, path: Path, name: str) -> int:
    """Upload a file if it differs from the object of that name; return the bytes uploaded."""
    size = path.stat().st_size
    info = store.head(name)
    if size > LARGE:
        if info is not None and info.size == size and store.md5_of(name) == md5_of_file(path):
            return 0
        store.replace_file(name, path)
        return size
    data = path.read_bytes()
    if info is not None and store.holds(name, data, info):
        return 0
    store.replace(name, data)
    return len(data)


def _download(store: Store, name: str, info: Listed, path: Path) -> None:
    """Download an object to a file and check it; an ETag that is not an MD5 is checked by reading again."""
    with path.open("wb") as file:
        for piece in store.stream(name, info.size):
            file.write(piece)
    md5 = md5_of_file(path)
    if path.stat().st_size != info.size or (info.md5 not in (None, md5) and store.md5_of(name) != md5):
        raise CloudCorrupt(f"checksum mismatch after downloading {name} from {store.cloud}; try again.")
