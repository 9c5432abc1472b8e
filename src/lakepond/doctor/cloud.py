"""Checks of credentials, which are never shown, and of a bucket, with a small object that is deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from lakepond.doctor.check import Finding
from lakepond.errors import CloudError, SpecError
from lakepond.formats import duration

SKEW_FAIL = 600.0
"""seconds; object stores refuse signatures from about 15 minutes on"""


def credentials(environment: Mapping[str, str]) -> Finding:
    """Which credentials of object stores exist; none is read or shown."""
    found = []
    named = environment.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        if not os.access(named, os.R_OK):
            step = "set GOOGLE_APPLICATION_CREDENTIALS to a key file that exists and is readable."
            # without its value if it is not a path: it may be the key itself
            file = named if os.path.exists(named) else "in GOOGLE_APPLICATION_CREDENTIALS"
            return Finding("credentials", "fail", f"the Google key file {file} cannot be read", step)
        found.append("Google (key file)")
    if environment.get("AWS_ACCESS_KEY_ID") and environment.get("AWS_SECRET_ACCESS_KEY"):
        found.append("S3 (variables)")
    elif (Path.home() / ".aws" / "credentials").exists():
        found.append("S3 (file)")
    if environment.get("AZURE_STORAGE_ACCOUNT_KEY") or environment.get("AZURE_STORAGE_CONNECTION_STRING"):
        found.append("Azure (variables)")
    if found:
        return Finding("credentials", "pass", f"found for {', '.join(found)}")
    step = "only needed for push and pull: set GOOGLE_APPLICATION_CREDENTIALS, AWS_... or AZURE_STORAGE_..."
    return Finding("credentials", "warn", "none found", step)


def bucket(url: str) -> Finding:
    """Write, read, compare and delete a small object; compare the store's clock with ours."""
    from lakepond.cloud.place import Cloud
    from lakepond.cloud.store import Store

    def failed(result: object, step: str) -> Finding:
        return Finding("bucket", "fail", str(result), step)

    name, data = f"lakepond-doctor-{os.urandom(8).hex()}", os.urandom(1024)
    try:
        store = Store(Cloud.of(url))
    except (CloudError, SpecError) as error:
        return failed(error, "give the URL of an existing bucket, and set its credentials.")
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
        return failed(error, "check that the bucket exists and that the credentials allow writing.")
    took = time.perf_counter() - began
    if not same or not gone or listed is None:
        step = "this store does not return the bytes that were written; do not use it."
        return failed(f"{store.cloud} lost an object, changed it, or did not delete it", step)
    skew = listed.modified - time.time()
    if abs(skew) > SKEW_FAIL:
        result = f"{store.cloud}: its clock differs from this machine's by {skew:+,.0f} s"
        return failed(result, "set this machine's clock (timedatectl set-ntp true).")
    return Finding("bucket", "pass", f"{store.cloud}: wrote, read and deleted an object in {duration(took)}")
