"""Credentials: found in the environment, or missed in one clear sentence.

Without any, the client would ask the metadata server of a cloud machine, for minutes, wherever it runs. So it
may do that only on such a machine.
"""

from __future__ import annotations

import configparser
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lakepond.cloud.place import Cloud
from lakepond.errors import CloudRefused

Found = dict[str, Any]


def client_options(cloud: Cloud, env: Mapping[str, str] = os.environ) -> Found:
    """What the client of this place needs beside the bucket; `CloudRefused` if nothing tells who we are."""
    scheme, _, _ = cloud.parts()
    found = {"gs": _google, "s3": _amazon, "az": _azure}[scheme](dict(cloud.options), env, cloud)
    endpoint = found.get("endpoint") or found.get("base_url") or ""
    client = {"allow_http": True} if str(endpoint).startswith("http://") or found.get("use_emulator") else {}
    found["client_options"] = {**client, **found.get("client_options", {})}
    return found


def _google(found: Found, env: Mapping[str, str], cloud: Cloud) -> Found:
    if host := env.get("STORAGE_EMULATOR_HOST"):
        found.setdefault("base_url", host if "://" in host else f"http://{host}")
        found.setdefault("bearer_token", "emulator")
    if any(name in found for name in ("service_account", "service_account_key", "bearer_token")):
        return found
    if "application_credentials" in found or found.get("skip_signature"):
        return found
    named = env.get("GOOGLE_APPLICATION_CREDENTIALS")
    if named:
        if not Path(named).is_file():
            raise CloudRefused(
                f"GOOGLE_APPLICATION_CREDENTIALS is {named}, which is not a file; {cloud} needs it to be the "
                "JSON key of a service account."
            )
        return {**found, "application_credentials": named}
    usual = Path(env.get("HOME", "/nonexistent")) / ".config/gcloud/application_default_credentials.json"
    known = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN")
    if any(env.get(name) for name in known) or usual.is_file() or _made_by("Google"):
        return found
    raise CloudRefused(
        f"no credentials for {cloud}: set GOOGLE_APPLICATION_CREDENTIALS to the JSON key file of a service "
        "account."
    )


def _amazon(found: Found, env: Mapping[str, str], cloud: Cloud) -> Found:
    if endpoint := env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL") or env.get("AWS_ENDPOINT"):
        found.setdefault("endpoint", endpoint)
    found.setdefault("region", env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or "us-east-1")
    # a server that checks it refuses what was changed on the way; SHA256 costs both sides far more
    found.setdefault("checksum_algorithm", "CRC64NVME")
    if "access_key_id" in found or found.get("skip_signature") or "credential_provider" in found:
        return found
    if env.get("AWS_ACCESS_KEY_ID") and env.get("AWS_SECRET_ACCESS_KEY"):
        found["access_key_id"], found["secret_access_key"] = (
            env["AWS_ACCESS_KEY_ID"],
            env["AWS_SECRET_ACCESS_KEY"],
        )
        if env.get("AWS_SESSION_TOKEN"):
            found["session_token"] = env["AWS_SESSION_TOKEN"]
        return found
    usual = Path(env.get("HOME", "/nonexistent")) / ".aws/credentials"
    file = Path(env.get("AWS_SHARED_CREDENTIALS_FILE") or usual)
    if file.is_file():
        profiles = configparser.ConfigParser(interpolation=None)
        profiles.read(file)
        profile = env.get("AWS_PROFILE", "default")
        if profile in profiles and "aws_access_key_id" in profiles[profile]:
            mine = profiles[profile]
            found["access_key_id"] = mine["aws_access_key_id"]
            found["secret_access_key"] = mine.get("aws_secret_access_key", "")
            if "aws_session_token" in mine:
                found["session_token"] = mine["aws_session_token"]
            return found
    known = (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    if any(env.get(name) for name in known) or _made_by("Amazon"):
        return found
    raise CloudRefused(
        f"no credentials for {cloud}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write a profile "
        f"to {file}."
    )


def _azure(found: Found, env: Mapping[str, str], cloud: Cloud) -> Found:
    told = dict(
        part.split("=", 1)
        for part in env.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    names = {"account_name": "AccountName", "account_key": "AccountKey", "endpoint": "BlobEndpoint"}
    for name, key in names.items():
        if key in told:
            found.setdefault(name, told[key])
    if "SharedAccessSignature" in told:
        found.setdefault("sas_key", told["SharedAccessSignature"])
    if found.get("use_emulator") or env.get("AZURE_STORAGE_USE_EMULATOR"):
        return {**found, "use_emulator": True}
    known = (
        "AZURE_STORAGE_ACCOUNT_KEY",
        "AZURE_STORAGE_ACCESS_KEY",
        "AZURE_STORAGE_SAS_KEY",
        "AZURE_STORAGE_SAS_TOKEN",
        "AZURE_STORAGE_TOKEN",
        "AZURE_STORAGE_CLIENT_SECRET",
        "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE",
    )
    account = found.get("account_name") or env.get("AZURE_STORAGE_ACCOUNT_NAME")
    given = any(
        name in found for name in ("account_key", "sas_key", "token", "client_secret", "credential_provider")
    )
    if account and (given or any(env.get(name) for name in known) or _made_by("Microsoft")):
        return found
    raise CloudRefused(
        f"no credentials for {cloud}: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME "
        "with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY."
    )


def _made_by(vendor: str) -> bool:
    """Whether this is a machine of that cloud, whose metadata server then hands out credentials."""
    for name in ("sys_vendor", "product_name"):
        try:
            if vendor in Path("/sys/class/dmi/id", name).read_text():
                return True
        except OSError:
            continue
    return False
