"""Credentials, of which only the presence is told; and a bucket, which is written, read and cleaned up."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from lakepond.doctor.check import Check
from lakepond.errors import CloudError, SpecError

SKEW_FAIL = 600.0
"""seconds; object stores refuse signatures from about 15 minutes on"""


def credentials(environment: Mapping[str, str]) -> Check:
    """Which credentials of object stores are there; none is read or shown."""
    found = []
    named = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        if not os.access(named, os.R_OK):
            step = "point GOOGLE_APPLICATION_CREDENTIALS at a key file that is there."
            return Check("credentials", "fail", f"the Google key file {named} cannot be read", step)
        found.append("Google (key file)")
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        found.append("S3 (variables)")
    elif (Path.home() / ".aws" / "credentials").exists():
        found.append("S3 (file)")
    if environment.get("AZURE_STORAGE_ACCOUNT_KEY") or environment.get("AZURE_STORAGE_CONNECTION_STRING"):
        found.append("Azure (variables)")
    if found:
        return Check("credentials", "pass", f"found for {', '.join(found)}")
    step = "only needed for a cloud copy: GOOGLE_APPLICATION_CREDENTIALS, AWS_ACCESS_KEY_ID or AZURE_…"
    return Check("credentials", "warn", "none found", step)


def bucket(url: str) -> Check:
    """Write, read back, compare and delete a small object; and the store's clock beside ours."""
    from lakepond.cloud.place import Cloud
    from lakepond.cloud.store import Store

    name = f"lakepond-doctor-{os.urandom(8).hex()}"
    data = os.urandom(1024)
    try:
        store = Store(Cloud.of(url))
    except (CloudError, SpecError) as error:
        return Check("bucket", "fail", str(error), "name a bucket that is there, and its credentials.")
    began = time.perf_counter()
    try:
        store.replace(name, data)
        try:
            listed = store.head(name)
            same = store.read(name) == data
        finally:
            store.delete(name)
        gone = store.head(name) is None
    except CloudError as error:
        return Check("bucket", "fail", str(error), "see that the bucket is there and that the key may write.")
    took = time.perf_counter() - began
    if not same or not gone or listed is None:
        step = "this store does not give back what was written; do not use it."
        return Check("bucket", "fail", f"{store.cloud} lost or kept what it should not", step)
    skew = listed.modified - time.time()
    if abs(skew) > SKEW_FAIL:
        step = "set this machine's clock (timedatectl set-ntp true)."
        return Check("bucket", "fail", f"{store.cloud}: its clock is {skew:+,.0f} s from ours", step)
    return Check("bucket", "pass", f"{store.cloud}: written, read, deleted in {took:.2f} s")
