"""Where the cloud is and how to use it: one URL, a few settings, and the environment for the rest.

gs://bucket/prefix    s3://bucket/prefix    az://container/prefix
file:///folder        memory://name/prefix  (memory: for tests, it ends with the process)
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lakepond.errors import SpecError

PROVIDERS = {"gcs": "gs", "s3": "s3", "azure": "az", "local": "file"}
"""what `CLOUD_PROVIDER` may say, and the scheme it means"""
SCHEMES = ("gs", "s3", "az", "file", "memory")


@dataclass(frozen=True)
class Cloud:
    """A place in the cloud and how to use it; never holds a secret that its repr would show."""

    url: str
    """gs://bucket/prefix, s3://, az://, file:///folder or memory://name"""
    workers: int = 4
    """files sent or fetched at the same time"""
    max_rate: float | None = None
    """bytes a second sent at most, by all workers together"""
    min_rate: float = 1e6
    """bytes a second below which a request is given up: a time-out is four times what this rate needs"""
    read_back: float = 1.0
    """the share of new files that is read again where the server does not tell their MD5"""
    retry_cap: float = 60.0
    """seconds between tries at most"""
    patience: float = 120.0
    """seconds that somebody who waits for a file waits for a server that does not answer"""
    most_in_flight: int = 256 << 20
    """bytes held in memory on their way at most; a single larger file goes alone"""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """for the client, beside what the environment says: endpoint, access_key_id, service_account, ..."""

    def __post_init__(self) -> None:
        scheme, bucket, _ = self.parts()
        if scheme not in SCHEMES or not bucket:
            raise SpecError(
                f"{hidden(self.url)!r} is no place in the cloud; write it like gs://bucket/demo, "
                f"or with one of {', '.join(SCHEMES)}."
            )
        if "@" in bucket:
            raise SpecError(
                f"{hidden(self.url)!r} has a user in it; credentials come from the environment, not the URL."
            )
        if self.workers < 1 or self.min_rate <= 0 or (self.max_rate is not None and self.max_rate <= 0):
            raise SpecError("a cloud needs at least one worker and rates above 0.")
        if not 0 <= self.read_back <= 1:
            raise SpecError(f"read_back is a share from 0 to 1, but is {self.read_back!r}.")

    @classmethod
    def of(cls, cloud: str | Cloud) -> Cloud:
        """A URL with all settings as they are, or settings that were made before."""
        return cloud if isinstance(cloud, Cloud) else cls(cloud)

    @classmethod
    def from_env(cls, prefix: str = "", env: Mapping[str, str] = os.environ) -> Self | None:
        """What `CLOUD_PROVIDER` and `CLOUD_BUCKET` say; None where they name nothing."""
        provider, bucket = env.get("CLOUD_PROVIDER", "local").lower(), env.get("CLOUD_BUCKET", "")
        if provider not in PROVIDERS:
            raise SpecError(
                f"CLOUD_PROVIDER is {provider!r}; lakepond knows {', '.join(PROVIDERS)}: set one of them."
            )
        if not bucket:
            if provider != "local":
                raise SpecError(f"CLOUD_PROVIDER is {provider}, but CLOUD_BUCKET is empty; set it.")
            return None
        where = str(Path(bucket).absolute()) if provider == "local" else bucket.strip("/")
        return cls(f"{PROVIDERS[provider]}://{where}" + (f"/{prefix}" if prefix else ""))

    def parts(self) -> tuple[str, str, str]:
        """Scheme, bucket (a folder for file://) and prefix."""
        match = re.fullmatch(r"([a-z][a-z0-9]*)://(.*)", self.url)
        if match is None:
            return "", "", ""
        scheme, rest = match[1], match[2].rstrip("/")
        if scheme == "file":
            return scheme, rest, ""
        bucket, _, prefix = rest.partition("/")
        return scheme, bucket, prefix

    def __str__(self) -> str:
        return hidden(self.url)

    def __getstate__(self) -> dict[str, Any]:
        """Pickled like any value, unless a secret would be written with it."""
        if self.options:
            raise TypeError(f"the settings of {self} may hold a secret and are not pickled; send the URL.")
        return dict(vars(self))


def hidden(url: str) -> str:
    """A URL without the user or key that somebody may have put into it."""
    return re.sub(r"//[^/@]*@", "//***@", url.partition("?")[0])
