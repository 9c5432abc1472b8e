"""Credentials: found in the environment or in a cloud's own configuration files, or one clear sentence.

obstore reads keys, tokens and metadata servers by itself. AWS profiles with SSO, a role or a
`credential_process` and Google's federated accounts go through its providers in `obstore.auth`, which need
boto3 or google-auth. Without any credentials, obstore would ask the metadata server of a cloud machine, for
minutes, wherever it runs. So it may do that only on such a machine.
"""

from __future__ import annotations

import configparser
import json
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

from lakepond.cloud.place import Cloud
from lakepond.errors import CloudRefused

Found = dict[str, Any]
BOTO3 = (
    "role_arn",
    "sso_session",
    "sso_start_url",
    "login_session",
    "web_identity_token_file",
    "credential_process",
)
"""settings of an AWS profile that boto3 evaluates"""
GOOGLE_SCOPES = ("https://www.googleapis.com/auth/devstorage.read_write",)
ANSWER_SECONDS = 1.5
"""for one request of boto3, which is not repeated: an error should come within 2 s"""
VALID = timedelta(minutes=10)
"""for which boto3 guarantees its answer: it renews credentials that expire earlier"""


class NoCredentials(CloudRefused):
    """There are none for this cloud."""


class PackageMissing(CloudRefused):
    """The credentials need a package that is not installed."""


class Provider:
    """One of obstore's credential providers, made at its first use; its errors are free of secrets."""

    def __init__(self, make: Callable[[], Callable[[], Any]], source: str, advice: str) -> None:
        self._make = make
        self._made: Callable[[], Any] | None = None
        self._source, self._advice = source, advice

    def __call__(self) -> Any:
        """The credentials that are valid now; called by the client. Raises `CloudRefused`."""
        try:
            self._made = self._made or self._make()
            return self._made()
        except Exception as error:  # its text may hold what a script printed
            raise CloudRefused(
                f"{self._source} gives no credentials ({type(error).__name__}): {self._advice}."
            ) from None

    def __repr__(self) -> str:
        return f"Provider({self._source})"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self!r} holds credentials and is not pickled.")


def client_options(cloud: Cloud, env: Mapping[str, str] = os.environ) -> Found:
    """What the client of this place needs beside the bucket.

    Raises `NoCredentials`, `PackageMissing`, or another `CloudRefused` if those that are set cannot be used.
    """
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
    given = (
        "service_account",
        "service_account_key",
        "bearer_token",
        "application_credentials",
        "credential_provider",
    )
    if any(name in found for name in given) or found.get("skip_signature"):
        return found
    named = env.get("GOOGLE_APPLICATION_CREDENTIALS")
    file = Path(named or _home(env) / ".config/gcloud/application_default_credentials.json")
    # False, unlike `Path.is_file`, for text that is longer than any path
    if os.path.isfile(file) and os.access(file, os.R_OK):
        if (kind := _google_kind(file)) not in (None, "service_account", "authorized_user"):
            return {**found, "credential_provider": _google_provider(file, kind)}
        return {**found, "application_credentials": str(file)}
    if named:  # which may be the key itself
        raise CloudRefused(
            f"GOOGLE_APPLICATION_CREDENTIALS is not the path of a readable file; {cloud} needs it to be the "
            "path of the JSON key of a service account."
        )
    known = ("GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_BEARER_TOKEN")
    if any(env.get(name) for name in known) or _made_by("Google"):
        return found
    raise NoCredentials(
        f"no credentials for {cloud}: set GOOGLE_APPLICATION_CREDENTIALS to the JSON key file of a service "
        "account."
    )


def _google_kind(file: Path) -> str | None:
    """The type that a file of credentials names; None if it cannot be read, which the client then reports."""
    try:
        return str(json.loads(file.read_bytes())["type"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _google_provider(file: Path, kind: str | None) -> Provider:
    source = f"the {kind} in {file}"
    for module, package in (("google.auth", "google-auth"), ("requests", "requests")):
        _require(module, package, source)

    def make() -> Callable[[], Any]:
        from google.auth import load_credentials_from_file
        from obstore.auth.google import GoogleCredentialProvider

        return GoogleCredentialProvider(load_credentials_from_file(file, scopes=GOOGLE_SCOPES)[0])

    return Provider(make, source, "check it with `gcloud auth application-default print-access-token`")


def _amazon(found: Found, env: Mapping[str, str], cloud: Cloud) -> Found:
    files = {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}
    shared, config = (Path(env.get(variable) or _home(env) / name) for variable, name in files.items())
    name = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    profile = _section(config, name if name == "default" else f"profile {name}") | _section(shared, name)
    if endpoint := (
        env.get("AWS_ENDPOINT_URL_S3")
        or env.get("AWS_ENDPOINT_URL")
        or env.get("AWS_ENDPOINT")
        or profile.get("endpoint_url")
    ):
        found.setdefault("endpoint", endpoint)
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or profile.get("region") or "us-east-1"
    found.setdefault("region", region)
    # a server that checks it refuses what was changed on the way; SHA256 costs both sides far more
    found.setdefault("checksum_algorithm", "CRC64NVME")
    if "access_key_id" in found or found.get("skip_signature") or "credential_provider" in found:
        return found
    if keys := _aws_keys({variable.lower(): value for variable, value in env.items() if value}):
        return {**found, **keys}
    if setting := next((each for each in BOTO3 if each in profile), None):
        return {**found, "credential_provider": _amazon_provider(name, setting, config)}
    if keys := _aws_keys(profile):
        return {**found, **keys}
    known = (
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    )
    if any(env.get(variable) for variable in known) or _made_by("Amazon"):
        return found
    either = " or ".join(
        f"the file that {variable} names" if env.get(variable) else f"~/{file}"
        for variable, file in files.items()
    )
    raise NoCredentials(
        f"no credentials for {cloud}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write the profile "
        f"{name} to {either}."
    )


def _aws_keys(source: Mapping[str, str]) -> Found:
    """The keys in an environment or a profile, as options of the client; empty if they are not complete."""
    names = ("access_key_id", "secret_access_key", "session_token")
    keys = {name: source[f"aws_{name}"] for name in names if f"aws_{name}" in source}
    return keys if keys.keys() >= set(names[:2]) else {}


def _section(file: Path, name: str) -> dict[str, str]:
    """The settings of one section of an AWS configuration file; empty if there is none."""
    sections = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        sections.read(file)
    except (configparser.Error, UnicodeDecodeError) as error:  # its text may repeat a line with a key
        raise CloudRefused(f"{file} is not a valid configuration file ({type(error).__name__}).") from None
    return dict(sections[name]) if name in sections else {}


def _amazon_provider(profile: str, setting: str, file: Path) -> Provider:
    source = f"the AWS profile {profile}, which uses {setting},"
    _require("boto3", "boto3", source.removesuffix(","))

    def make() -> Callable[[], Any]:
        import boto3
        import botocore.session
        from botocore.config import Config
        from obstore.auth.boto3 import Boto3CredentialProvider

        session = botocore.session.Session(profile=profile)
        retries: Any = {"total_max_attempts": 1}
        session.set_default_client_config(
            Config(connect_timeout=ANSWER_SECONDS, read_timeout=ANSWER_SECONDS, retries=retries)
        )
        return Boto3CredentialProvider(boto3.Session(botocore_session=session), ttl=VALID)

    sign_in = setting.startswith(("sso", "login"))
    command = f"aws {'sso ' if setting.startswith('sso') else ''}login --profile {profile}"
    return Provider(make, source, f"run `{command}`" if sign_in else f"check {setting} in {file}")


def _azure(found: Found, env: Mapping[str, str], cloud: Cloud) -> Found:
    settings = dict(
        part.split("=", 1)
        for part in env.get("AZURE_STORAGE_CONNECTION_STRING", "").split(";")
        if "=" in part
    )
    names = {"account_name": "AccountName", "account_key": "AccountKey", "endpoint": "BlobEndpoint"}
    for name, key in names.items():
        if key in settings:
            found.setdefault(name, settings[key])
    if "SharedAccessSignature" in settings:
        found.setdefault("sas_key", settings["SharedAccessSignature"])
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
        "AZURE_USE_AZURE_CLI",
    )
    account = found.get("account_name") or env.get("AZURE_STORAGE_ACCOUNT_NAME")
    given = any(
        name in found for name in ("account_key", "sas_key", "token", "client_secret", "credential_provider")
    )
    if account and (given or any(env.get(name) for name in known) or _made_by("Microsoft")):
        return found
    raise NoCredentials(
        f"no credentials for {cloud}: set AZURE_STORAGE_CONNECTION_STRING, or AZURE_STORAGE_ACCOUNT_NAME "
        "with AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_KEY."
    )


def _home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME", "/nonexistent"))


def _require(module: str, package: str, source: str) -> None:
    """Raise `PackageMissing` unless a package that these credentials need is installed."""
    if find_spec(module.partition(".")[0]) is None or find_spec(module) is None:
        raise PackageMissing(f"{source} needs the package {package}: pip install {package}.")


def _made_by(vendor: str) -> bool:
    """Whether this is a machine of that cloud, whose metadata server then hands out credentials."""
    for name in ("sys_vendor", "product_name"):
        try:
            if vendor in Path("/sys/class/dmi/id", name).read_text():
                return True
        except OSError:
            continue
    return False
