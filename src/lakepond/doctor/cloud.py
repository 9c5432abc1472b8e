"""Checks of credentials, which are never shown, and of a bucket, with a small object that is deleted."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping

from lakepond.doctor.check import Finding, judged
from lakepond.errors import CloudError, CloudRefused, SpecError
from lakepond.formats import duration

SKEW_FAIL = 600.0
"""seconds; object stores refuse signatures from about 15 minutes on"""


def credentials(environment: Mapping[str, str]) -> Finding:
    """For which object stores `push` finds credentials; none is shown, and no server is asked."""
    from lakepond.cloud.credentials import NoCredentials, PackageMissing, client_options
    from lakepond.cloud.place import Cloud

    found, incomplete, wrong = list[str](), list[str](), list[str]()
    for name, scheme in {"Google": "gs", "S3": "s3", "Azure": "az"}.items():
        try:
            client_options(Cloud(f"{scheme}://bucket"), environment)
            found.append(name)
        except NoCredentials:
            continue
        except PackageMissing as error:
            incomplete.append(str(error))
        except CloudRefused as error:
            wrong.append(str(error))
    result = "; ".join([f"found for {', '.join(found)}" if found else "none found", *wrong, *incomplete])
    step = "only needed for push and pull: set GOOGLE_APPLICATION_CREDENTIALS, AWS_... or AZURE_STORAGE_..."
    return judged("credentials", result, step, fail=bool(wrong), warn=bool(incomplete) or not found)


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
