"""Cloud storage settings: a URL and transfer limits; credentials come from the environment.

gs://bucket/prefix    s3://bucket/prefix    az://container/prefix
file:///folder        memory://name/prefix  (memory: for tests; lost when the process ends)
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
"""values of `CLOUD_PROVIDER`, and the scheme of each"""
SCHEMES = ("gs", "s3", "az", "file", "memory")


@dataclass(frozen=True)
class Cloud:
    """URL and transfer settings of a cloud location. Its repr never shows secrets.

    Raises `SpecError` for an invalid URL or setting.
    """

    url: str
    """gs://bucket/prefix, s3://, az://, file:///folder or memory://name"""
    workers: int = 4
    """number of parallel uploads or downloads"""
    max_rate: float | None = None
    """maximum upload rate of all workers together, in bytes per second; None: unlimited"""
    min_rate: float = 1e6
    """slowest acceptable rate of a request, in bytes per second; requests time out after four times the
    duration that this rate implies"""
    read_back: float = 1.0
    """fraction of new files that is downloaded again for verification if the server does not report an MD5"""
    retry_cap: float = 60.0
    """maximum seconds between two attempts"""
    patience: float = 120.0
    """seconds that a blocking call waits for a server that does not answer"""
    most_in_flight: int = 256 << 20
    """maximum bytes of uploads in memory; a larger file is transferred alone"""
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """client options in addition to the environment: endpoint, access_key_id, service_account, ..."""

    def __post_init__(self) -> None:
        scheme, bucket, _ = self.parts()
        if scheme not in SCHEMES or not bucket:
            raise SpecError(
                f"{hidden(self.url)!r} is not a valid cloud URL; write it like gs://bucket/demo, "
                f"or with one of {', '.join(SCHEMES)}."
            )
        if "?" in self.url or (scheme != "file" and re.search("[@:]", bucket)):
            part = "a query ('?')" if "?" in self.url else "a user name or a key"
            raise SpecError(  # without the URL, which may contain a secret
                f"this {scheme}:// URL contains {part}; write {scheme}://bucket/prefix, and give credentials "
                "in the environment or in Cloud(options=...)."
            )
        if self.workers < 1 or self.min_rate <= 0 or (self.max_rate is not None and self.max_rate <= 0):
            raise SpecError("workers must be at least 1, and min_rate and max_rate above 0.")
        if not 0 <= self.read_back <= 1:
            raise SpecError(f"read_back must be a fraction between 0 and 1, but is {self.read_back!r}.")

    @classmethod
    def of(cls, cloud: str | Cloud) -> Cloud:
        """Return a `Cloud` unchanged, or make one with default settings from a URL."""
        return cloud if isinstance(cloud, Cloud) else cls(cloud)

    @classmethod
    def from_env(cls, prefix: str = "", env: Mapping[str, str] = os.environ) -> Self | None:
        """Create the location named by `CLOUD_PROVIDER` (gcs, s3, azure, local) and `CLOUD_BUCKET`.

        Returns None if no bucket is set and the provider is local. Raises `SpecError` for an unknown provider
        or a missing bucket.
        """
        provider, bucket = env.get("CLOUD_PROVIDER", "local").lower(), env.get("CLOUD_BUCKET", "")
        if provider not in PROVIDERS:
            raise SpecError(f"CLOUD_PROVIDER is {provider!r}; set it to one of {', '.join(PROVIDERS)}.")
        if not bucket:
            if provider != "local":
                raise SpecError(
                    f"CLOUD_PROVIDER is {provider}, but CLOUD_BUCKET is empty; set it to the bucket's name."
                )
            return None
        where = str(Path(bucket).absolute()) if provider == "local" else bucket.strip("/")
        return cls(f"{PROVIDERS[provider]}://{where}" + (f"/{prefix}" if prefix else ""))

    def parts(self) -> tuple[str, str, str]:
        """Split the URL into scheme, bucket (a folder for file://) and prefix."""
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
        """Refuse to pickle `options`, which may contain a secret."""
        if self.options:
            raise TypeError(f"the settings of {self} may hold a secret and are not pickled; send the URL.")
        return dict(vars(self))


def hidden(url: str) -> str:
    """Return a URL without user name, key or query."""
    return re.sub(r"//[^/@]*@", "//***@", url.partition("?")[0])
