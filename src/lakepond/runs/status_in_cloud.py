"""A run at a glance, read from the copy in a bucket: nothing is fetched but small files."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from lakepond import untrusted
from lakepond.cloud.chains import chain_names, chain_store, parse_slot
from lakepond.cloud.layout import chain_folder, commit_name, commit_numbers
from lakepond.cloud.place import Cloud
from lakepond.cloud.store import Store
from lakepond.errors import CloudCorrupt, CloudNotFound
from lakepond.lake.format import description
from lakepond.lake.format.commits import Commit
from lakepond.runs.copies import KNOWN
from lakepond.runs.run import CONFIG
from lakepond.runs.status import BACK, LakeStatus, Status, judge, lake_status, learners, parse_log, together


def look_in_cloud(url: str) -> Status:
    """What there is to tell of a run, or of a lake, in a bucket."""
    store = Store(Cloud.of(url))
    listed = set(store.list(known=KNOWN))
    under = "lake/" if f"lake/{description.NAME}" in listed else ""
    if f"{under}{description.NAME}" not in listed and CONFIG not in listed:
        raise CloudNotFound(f"there is neither a run nor a lake at {store.cloud}; push one there first.")
    config = _config(store) if CONFIG in listed else {}
    found = (re.fullmatch(r"checkpoints/([0-9]+)/state\.json", name) for name in listed)
    saved = [int(match[1]) for match in found if match is not None]
    return judge(
        path=str(store.cloud),
        trainer=config.get("trainer"),
        config=config.get("config", {}),
        pid=None,
        lines=parse_log(store.read("metrics.jsonl")) if "metrics.jsonl" in listed else [],
        checkpoint=max(saved, default=None),
        lake=_lake(store, under, listed),
        upload=None,
        disk_free=None,
        problems=[],
    )


def _config(store: Store) -> dict[str, Any]:
    try:
        found = untrusted.parse_json(store.read(CONFIG))
        if isinstance(found["trainer"], str) and isinstance(found["config"], dict):
            return dict(found)
    except (ValueError, KeyError, TypeError):
        pass
    raise CloudCorrupt(f"{CONFIG} in {store.cloud} cannot be read as a run's settings; push the run again.")


def _lake(store: Store, under: str, listed: set[str]) -> LakeStatus | None:
    lake = store.under(under) if under else store
    if f"{under}{description.NAME}" not in listed:
        return None
    with TemporaryDirectory(prefix="lakepond-status-") as aside:
        (Path(aside) / description.NAME).write_bytes(lake.read(description.NAME))
        spec = description.read(Path(aside))
    found: dict[str, LakeStatus] = {}
    for chain in chain_names(lake):
        numbers = commit_numbers(listed, under + (f"{chain_folder(chain)}/" if chain else ""))
        place = chain_store(lake, chain)
        newest, older = _first(place, reversed(numbers)), _first(place, numbers[-1 - BACK :])
        if newest is not None:
            found[chain] = lake_status(spec, newest, older or newest, len(numbers))
    return replace(together(found), learners=learners(lake)) if found else None


def _first(place: Store, among: Iterable[int]) -> Commit | None:
    """The first commit of a chain among these numbers; the others are skips."""
    slots = (parse_slot(place.read(commit_name(number)), number) for number in among)
    return next((slot for slot in slots if isinstance(slot, Commit)), None)
