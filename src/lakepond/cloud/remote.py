"""gs:// s3:// az://: a bucket behind obstore, which makes one attempt at one request at a time.

What it does under fault was measured, and decides what is done here (docs/design/003-cloud.md): its own
retries are off, because they do not cover conditional puts; time-outs come from the size, because its default
is 30 s for everything; errors are reported in our own words, because its texts may repeat what was sent;
and it is never used in a child that was forked after it, because it hangs there.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lakepond.cloud.bucket import Checks, Exists, Listed, Unlistable
from lakepond.cloud.credentials import client_options
from lakepond.cloud.place import Cloud
from lakepond.errors import (
    CloudClientMissing,
    CloudError,
    CloudForked,
    CloudNotFound,
    CloudRefused,
    CloudUnreachable,
)

log = logging.getLogger("lakepond")
PIECE = 8 << 20
"""bytes read at a time, and sent in one part of a large file"""
CONNECT_SECONDS = 1.5
_STORES = {"gs": "GCSStore", "s3": "S3Store", "az": "AzureStore"}
_used_in: int | None = None
"""the process in which the client's threads run"""


class RemoteBucket:
    """Objects in somebody else's data centre."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        self._scheme, self._bucket, _ = cloud.parts()
        self.checks: Checks = "read" if self._scheme == "az" else "etag"
        self._options = client_options(cloud)
        self._clients: dict[float, Any] = {}
        self._lock = threading.Lock()
        self._reported = False  # whether invalid keys were logged

    def put(self, name: str, data: bytes, *, create: bool, timeout: float) -> str | None:
        """Store bytes in one request."""
        with self._asking(name):
            mode = "create" if create else "overwrite"
            client = self._client(timeout)
            result = _obstore().put(client, name, data, mode=mode, use_multipart=False)
        return _plain(result["e_tag"])

    def put_file(self, name: str, path: Path, timeout: float) -> None:
        """Store a large file in parts, four at a time."""
        with self._asking(name), path.open("rb") as file:
            _obstore().put(self._client(timeout), name, file, chunk_size=PIECE, max_concurrency=4)

    def get(self, name: str, timeout: float) -> Iterator[bytes]:
        """The bytes, piece by piece."""
        with self._asking(name):
            for piece in _obstore().get(self._client(timeout), name).stream(min_chunk_size=PIECE):
                yield bytes(piece)

    def head(self, name: str) -> Listed | None:
        """The entry of one object; None if there is none."""
        try:
            with self._asking(name):
                return _listed(_obstore().head(self._client(60.0), name))
        except CloudNotFound:
            return None

    def list(self, prefix: str) -> Iterator[Listed]:
        """All objects under a prefix whose keys the client can name.

        The client fails on a page of a listing because of one key like `demo//x` or `demo/../x`. Then each
        folder is listed alone, and a folder that has such a key is listed from the name "0" on, which sorts
        after it; objects that were listed before come again.
        """
        with self._asking(prefix):
            yield from self._list(prefix)

    def _list(self, prefix: str) -> Iterator[Listed]:
        from obstore.exceptions import InvalidPathError

        client, where = self._client(60.0), prefix or None

        def from_key(offset: str | None) -> Iterator[Listed]:
            pages = _obstore().list(client, where, offset=offset)
            return (_listed(each) for page in pages for each in page)

        try:
            yield from from_key(None)
            return
        except InvalidPathError as error:
            if not self._reported:
                self._reported = True
                log.info("%s: invalid keys are ignored: %s", self._cloud, _first_line(error))
        with suppress(InvalidPathError):
            level = _obstore().list_with_delimiter(client, where)
            yield from map(_listed, level["objects"])
            for folder in level["common_prefixes"]:
                yield from self._list(f"{folder}/")
            return
        yield from from_key(f"{prefix}0")

    def folders(self, prefix: str) -> Sequence[str]:
        """The names of the folders directly below a prefix, sorted."""
        from obstore.exceptions import InvalidPathError

        with self._asking(prefix):
            try:
                level = _obstore().list_with_delimiter(self._client(60.0), prefix or None)
                found = (folder.rstrip("/").removeprefix(prefix) for folder in level["common_prefixes"])
            except InvalidPathError:  # one key that the client cannot name: list what it can
                names = (each.name.removeprefix(prefix) for each in self._list(prefix))
                found = (name.partition("/")[0] for name in names if "/" in name)
            return sorted(set(found))

    def delete(self, name: str) -> None:
        """Delete one object."""
        try:
            with self._asking(name):
                _obstore().delete(self._client(60.0), name)
        except CloudNotFound:
            return

    def _client(self, timeout: float) -> Any:
        """A client whose requests may take that long; there are a few, by powers of two."""
        with self._lock:
            if timeout not in self._clients:
                import obstore.store

                options = dict(self._options)
                options["client_options"] = {
                    "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
                    **options["client_options"],
                    "timeout": timedelta(seconds=timeout),
                }
                kind = getattr(obstore.store, _STORES[self._scheme])
                try:
                    self._clients[timeout] = kind(self._bucket, retry_config={"max_retries": 0}, **options)
                except Exception as error:  # for example, an invalid key file; its text may hold the key
                    raise CloudRefused(
                        f"the credentials for {self._cloud} cannot be used ({type(error).__name__}); check "
                        "that they are complete and of the right kind."
                    ) from None
        return self._clients[timeout]

    @contextmanager
    def _asking(self, name: str) -> Iterator[None]:
        """One request; what goes wrong becomes one sentence without secrets."""
        global _used_in
        if _used_in is None:
            _used_in = os.getpid()
        elif _used_in != os.getpid():
            raise CloudForked(
                f"process {os.getpid()} was forked from one that uses {self._cloud}, and the client would "
                "hang in it; start it with the method 'spawn', or use the cloud in the parent only."
            )
        try:
            yield
        except CloudError:
            raise
        except Exception as error:
            translated = self._translated(error, name)
            if translated is None:
                raise
            raise translated from None

    def _translated(self, error: Exception, name: str) -> CloudError | None:
        kind, text = type(error).__name__, str(error)
        why = reason(text)
        where = f"{self._scheme}://{self._bucket}"
        if ours := re.search(r"credential provider: CloudRefused: (.*)", text):
            return CloudRefused(ours[1])
        if kind == "AlreadyExistsError" or kind == "PreconditionError":
            return Exists(f"{name} already exists in {where}.")
        if re.search(r"NoSuchBucket|ContainerNotFound|bucket does not exist", text):
            return CloudNotFound(f"the bucket {where} does not exist; create it, or give another URL.")
        if kind in ("PermissionDeniedError", "UnauthenticatedError") or re.search(
            r"status code: 40[13]|InvalidAccessKeyId|SignatureDoesNotMatch|AuthenticationFailed|"
            r"AccessDenied|invalid_grant|decode private key|reading credentials",
            text,
        ):
            return CloudRefused(f"{where} rejects these credentials ({why}); check that they permit writing.")
        if kind == "NotFoundError" or isinstance(error, FileNotFoundError):
            return CloudNotFound(f"{where} has no {name} ({why}).")
        if kind == "InvalidPathError":
            return Unlistable(
                f"the client cannot list {where} because of one key ({_first_line(error)}): delete it, or "
                "move it to another place."
            )
        if kind in ("GenericError", "JoinError"):
            return CloudUnreachable(f"a request to {where} failed ({why}); it is retried.")
        return None


def reason(text: str) -> str:
    """The error of a server or the network in a few words: codes only, nothing that was sent."""
    status = re.search(r"status code: (\d{3}(?: [A-Z][A-Za-z-]+){0,4})", text)
    code = re.search(r"<Code>(\w{1,60})</Code>", text)
    if status or code:
        return ", ".join(match[1] for match in (status, code) if match)
    for pattern, words in [
        (r"[Cc]onnection refused", "connection refused"),
        (r"dns error|failed to lookup|Name or service", "the name of the server is unknown"),
        (r"timed out|TimedOut|timeout", "no answer in time"),
        (
            r"[Cc]onnection ?[Rr]eset|[Bb]roken ?[Pp]ipe|closed before|[Ii]ncomplete",
            "the connection broke",
        ),
        (r"[Nn]etwork is unreachable", "no network"),
    ]:
        if re.search(pattern, text):
            return words
    return "the connection failed"


def require_client() -> None:
    """Raise `CloudClientMissing` unless the client is installed."""
    if find_spec("obstore") is None:
        raise CloudClientMissing(
            "gs://, s3:// and az:// need the package obstore: pip install 'lakepond[cloud]'."
        )


def _obstore() -> Any:
    import obstore

    return obstore


def _listed(found: Any) -> Listed:
    return Listed(found["path"], found["size"], _plain(found["e_tag"]), found["last_modified"].timestamp())


def _first_line(error: Exception) -> str:
    """The client's message about an invalid key, without control characters."""
    return re.sub(r"[^\x20-\x7e]", "?", str(error).partition("\n")[0])[:200]


def _plain(etag: str | None) -> str | None:
    return None if etag is None else etag.strip('"').removeprefix("W/").strip('"')
