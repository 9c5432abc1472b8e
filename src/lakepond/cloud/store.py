"""A place in the cloud whose writes are known to be right: every one is checked.

    keep      under a name given by the content: put if it does not exist; a wrong object is replaced
    publish   a pointer: put if it does not exist; `CloudConflict` if another one exists
    replace   a file that changes: put over the old one

That an object exists is not enough: a create-only put would keep a corrupt copy. So size and MD5 are compared
(the ETag on S3 and GCS), or the object is read back (Azure, encrypted buckets), and the wrong is overwritten.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lakepond.cloud.bucket import Bucket, Exists, Listed, Unlistable, valid_name
from lakepond.cloud.local import LocalBucket
from lakepond.cloud.memory import MemoryBucket
from lakepond.cloud.pace import LEAST_TIMEOUT, TokenBucket, timeout_for
from lakepond.cloud.place import Cloud
from lakepond.cloud.remote import RemoteBucket, require_client
from lakepond.errors import CloudConflict, CloudCorrupt, CloudUnreachable

log = logging.getLogger("lakepond")
LARGE = 64 << 20
"""bytes from which on a file that changes is sent in parts; what is named by content never is"""


class Server:
    """What all places on one server share: the client, the pace, and what is known of the server."""

    def __init__(self, cloud: Cloud, bucket: Bucket | None) -> None:
        self._cloud, self._bucket = cloud, bucket
        self._making = threading.Lock()
        self.pace = None if cloud.max_rate is None else TokenBucket(cloud.max_rate)
        self.conditions: bool | None = None
        """whether it honours "only if it is not there"; None: not known yet"""
        self.md5_etags = cloud.parts()[0] != "az"
        self.bytes_sent = 0
        """all that was sent, second tries included"""

    @property
    def bucket(self) -> Bucket:
        """The bucket; made at its first use, so that credentials may come later than the run."""
        with self._making:
            if self._bucket is None:
                self._bucket = _bucket(self._cloud)
            return self._bucket


class Store:
    """One place. Each call is one try; all threads may call."""

    def __init__(
        self, cloud: Cloud, bucket: Bucket | None = None, least_timeout: float = LEAST_TIMEOUT
    ) -> None:
        self.cloud = cloud
        scheme, _, self._prefix = cloud.parts()
        if bucket is None and scheme not in ("file", "memory"):
            require_client()
        self.server = Server(cloud, bucket)
        self._least = least_timeout
        self._ignored, self._unlistable = 0, False

    @classmethod
    def at(cls, place: str | os.PathLike[str] | Cloud) -> Store:
        """The objects in a folder or at a URL."""
        if isinstance(place, Cloud):
            return cls(place)
        text = os.fspath(place)
        return cls(Cloud(text if "://" in text else f"file://{os.path.abspath(text)}"))

    def under(self, folder: str) -> Store:
        """The place of a folder below this one, on the same server."""
        below = Store.__new__(Store)
        vars(below).update(vars(self))
        below.cloud = replace(self.cloud, url=f"{self.cloud.url.rstrip('/')}/{folder}")
        below._prefix = self._key(folder)
        return below

    @property
    def bucket(self) -> Bucket:
        """The bucket; one for all places on the server."""
        return self.server.bucket

    # --- writing ---------------------------------------------------------------------------------

    def keep(self, name: str, read: Callable[[], bytes]) -> int:
        """Store bytes under a name given by their content; returns how many were sent."""
        data = read()
        try:
            etag = self._put(name, data, create=True)
        except Exists:
            if self.holds(name, data):
                return 0
            log.warning("%s: %s existed with different content; it is uploaded again", self.cloud, name)
            etag = self._put(name, data, create=False)
        self._check(name, data, etag)
        return len(data)

    def publish(self, name: str, data: bytes, sound: Callable[[bytes], bool]) -> bool:
        """Have a pointer there; `CloudConflict` if another one is that is `sound`, overwriting it if not.

        Returns whether this call put it there; False if it was there already.
        """
        try:
            etag = self._put(name, data, create=True)
        except Exists:
            self.server.conditions = True
            if self.holds(name, data):  # our own, whose answer was lost
                return False
            if not sound(self.read(name)):  # our own, changed on the way: nobody can read it
                self.replace(name, data)
                return True
            raise CloudConflict(
                f"another machine has published {name} in {self.cloud} with different content; nothing was "
                "overwritten: pull that lake to a fresh folder to continue from it, or push this one to "
                "another place."
            ) from None
        self._check(name, data, etag)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """Have these bytes there, whatever was there before."""
        self._check(name, data, self._put(name, data, create=False))

    def replace_file(self, name: str, path: Path) -> None:
        """Have a large file there: in parts, then read back piece by piece."""
        size = path.stat().st_size
        if self.server.pace is not None:
            self.server.pace.take(size)
        self.bucket.put_file(self._key(name), path, self._timeout(size))
        self.server.bytes_sent += size
        if self.bucket.checks != "own" and self.md5_of(name) != md5_of_file(path):
            raise CloudUnreachable(
                f"{self.cloud} has {name}, but its checksum differs after the upload; it is uploaded again."
            )

    def _put(self, name: str, data: bytes, create: bool) -> str | None:
        if self.server.pace is not None:
            self.server.pace.take(len(data))
        self.server.bytes_sent += len(data)
        return self.bucket.put(self._key(name), data, create=create, timeout=self._timeout(len(data)))

    def _check(self, name: str, data: bytes, etag: str | None) -> None:
        """After a put: raise an error that is retried unless the object has the bytes that were sent."""
        if self.bucket.checks == "own":
            return
        if not self.server.md5_etags and random.random() >= self.cloud.read_back:
            return
        if not self._same(name, data, etag):
            self._put(name, data, create=False)
            if not self._same(name, data, None):
                raise CloudUnreachable(
                    f"{self.cloud} has {name}, but its checksum differs after the upload; it is "
                    "uploaded again."
                )

    def _same(self, name: str, data: bytes, etag: str | None) -> bool:
        md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
        reported = Listed(name, len(data), etag, 0.0).md5 if self.server.md5_etags else None
        if reported == md5:
            return True
        if self.md5_of(name) != md5:
            return False
        if reported is not None:  # an encrypted bucket's ETags look like MD5s and are none
            self.server.md5_etags = False
            log.info("%s: ETags are not MD5 checksums here; new files are read back and compared", self.cloud)
        return True

    # --- reading ---------------------------------------------------------------------------------

    def holds(self, name: str, data: bytes, listed: Listed | None = None) -> bool:
        """Whether the object of that name has just these bytes; compared, not believed."""
        listed = listed if listed is not None else self.head(name)
        if listed is None or listed.size != len(data):
            return False
        return self._same(name, data, listed.etag)

    def head(self, name: str) -> Listed | None:
        """The entry of one object; None if there is none."""
        return self._relative(self.bucket.head(self._key(name)))

    def list(self, under: str = "", known: Sequence[str] = ()) -> dict[str, Listed]:
        """The objects of this place, or of a folder of it, that have valid names; the others are ignored.

        `known`: names, and folders with a slash at the end, to ask for one by one where a key that the client
        cannot name keeps it from listing everything at once. Without them that is an error.
        """
        start, ignored = self._start(under), set[str]()
        try:
            names = {each.name: each for each in self._valid(self.bucket.list(start), ignored)}
        except Unlistable as error:
            if not known:
                raise
            if not self._unlistable:
                self._unlistable = True
                log.warning("%s: only %s are used: %s", self.cloud, ", ".join(known), error)
            found = (each for name in known for each in self._one_by_one(start + name))
            names = {each.name: each for each in self._valid(found, ignored)}
        for folder in {parent for name in names for parent in _parents(name)}:
            if names.pop(folder, None) is not None:
                ignored.add(folder)
        self._report_ignored(len(ignored))
        return names

    def scan(self, under: str) -> Iterator[Listed]:
        """The objects of a folder one by one, for folders of any size; an object may come twice."""
        ignored: set[str] = set()
        yield from self._valid(self.bucket.list(self._start(under)), ignored)
        self._report_ignored(len(ignored))

    def _start(self, under: str) -> str:
        start = "/".join(part for part in (self._prefix, under.strip("/")) if part)
        return f"{start}/" if start else ""

    def _valid(self, found: Iterable[Listed], ignored: set[str]) -> Iterator[Listed]:
        """Those with valid names, relative to this place; the names of the others are added to `ignored`."""
        below = f"{self._prefix}/" if self._prefix else ""
        for each in found:
            name = each.name.removeprefix(below)
            if each.name.startswith(below) and valid_name(name):
                yield each._replace(name=name)
            else:
                ignored.add(each.name)

    def _one_by_one(self, key: str) -> Iterable[Listed]:
        if key.endswith("/"):
            return self.bucket.list(key)
        found = self.bucket.head(key)
        return [] if found is None else [found]

    def _report_ignored(self, count: int) -> None:
        """Log how many keys a listing ignored, when that changes."""
        if count > self._ignored:
            log.info("%s: %d keys that are not valid file names are ignored", self.cloud, count)
        self._ignored = max(self._ignored, count)

    def folders(self, under: str = "") -> Sequence[str]:
        """The names of the folders directly below this place, or below a folder of it, sorted; one LIST."""
        start = self._key(f"{under}/" if under else "")
        return [name for name in self.bucket.folders(start) if valid_name(name)]

    def read(self, name: str, most: int = 1 << 30) -> bytes:
        """All bytes of a small object."""
        pieces, size = [], 0
        for piece in self.stream(name, most=0):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise CloudCorrupt(f"{name} in {self.cloud} has more than {most:,} bytes.")
        return b"".join(pieces)

    def stream(self, name: str, most: int) -> Iterator[bytes]:
        """The bytes of an object of about `most` bytes, piece by piece."""
        yield from self.bucket.get(self._key(name), self._timeout(most))

    def md5_of(self, name: str) -> str:
        """The MD5 of the stored bytes, read back."""
        listed = self.head(name)
        digest = hashlib.md5(usedforsecurity=False)
        for piece in self.stream(name, 0 if listed is None else listed.size):
            digest.update(piece)
        return digest.hexdigest()

    def delete(self, name: str) -> None:
        """Delete one object; it need not be there."""
        self.bucket.delete(self._key(name))

    def _timeout(self, size: int) -> float:
        return timeout_for(size, self.cloud.min_rate, self._least)

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _relative(self, listed: Listed | None) -> Listed | None:
        if listed is None or not self._prefix:
            return listed
        return listed._replace(name=listed.name.removeprefix(f"{self._prefix}/"))

    def __repr__(self) -> str:
        return f"Store({self.cloud})"

    def __reduce__(self) -> str | tuple[Any, ...]:
        raise TypeError(f"{self!r} holds credentials and is not pickled; open it in the other process.")


def md5_of_file(path: Path) -> str:
    """The MD5 of a file, read piece by piece."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _parents(name: str) -> Iterator[str]:
    """The folders above a name."""
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name


def _bucket(cloud: Cloud) -> Bucket:
    scheme, bucket, _ = cloud.parts()
    if scheme == "file":
        return LocalBucket(bucket)
    if scheme == "memory":
        return MemoryBucket(bucket)
    return RemoteBucket(cloud)
