"""`lake.json`: what a lake is, written once: the format's version, how files are named, and the spec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakeCorrupt, LakeNotFound, LakeTooNew
from lakepond.lake.format.checksum import DIGEST
from lakepond.lake.format.sealed import seal, unseal
from lakepond.types import Field, Spec, Tree

FORMAT = 1
NAME = "lake.json"


def describe(spec: Spec) -> bytes:
    """The file for a new lake."""
    return seal(
        {
            "format": FORMAT,
            "digest": DIGEST,
            "spec": spec_to_json(spec),
        }
    )


def spec_to_json(spec: Spec) -> dict[str, Any]:
    """The spec as `lake.json` has it; an unknown `space` of a field or `env_spec` is left out."""
    return {
        "obs": _tree(spec.obs),
        "action": _tree(spec.action),
        "reward": _field(spec.reward),
        "extras": {name: _field(extra) for name, extra in spec.extras.items()},
        **({} if spec.env_spec is None else {"env_spec": spec.env_spec}),
    }


def spec_from_json(spec: Any) -> Spec:
    """The spec that `spec_to_json` wrote; any of several exceptions if it is damaged."""
    return Spec(
        obs=_from_tree(spec["obs"]),
        action=_from_tree(spec["action"]),
        reward=_from_tree(spec["reward"]),
        extras={name: _from_tree(extra) for name, extra in spec["extras"].items()},
        env_spec=None if spec.get("env_spec") is None else str(spec["env_spec"]),
    )


def read(path: Path) -> Spec:
    """The spec of the lake at a path."""
    file = path / NAME
    try:
        data = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise LakeNotFound(f"there is no lake at {path} (no {NAME}); Replay.open creates one.") from None
    try:
        version = json.loads(data)["format"]  # before all else: a later format may be sealed otherwise
        if isinstance(version, int) and version > FORMAT:
            raise LakeTooNew(
                f"{path} was written in format {version}, this version reads up to {FORMAT}; update lakepond."
            )
        told = unseal(data)
        if (told["format"], told["digest"]) != (FORMAT, DIGEST):
            raise ValueError(f"there is no format {told['format']!r} with the digest {told['digest']!r}")
        return spec_from_json(told["spec"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        if isinstance(error, LakeTooNew):
            raise
        raise LakeCorrupt(f"{file} is damaged: {error}; restore it from a copy.") from error


def _field(field: Field) -> dict[str, Any]:
    layout = {"shape": list(field.shape), "dtype": np.dtype(field.dtype).str, "rows": field.rows}
    return layout if field.space is None else {**layout, "space": dict(field.space)}


def _tree(tree: Tree) -> Any:
    if isinstance(tree, Field):
        return _field(tree)
    if isinstance(tree, dict):
        return {"dict": [[key, _tree(sub)] for key, sub in tree.items()]}
    return {"tuple": [_tree(sub) for sub in tree]}


def _from_tree(told: Any) -> Tree:
    if "dict" in told:
        return {key: _from_tree(sub) for key, sub in told["dict"]}
    if "tuple" in told:
        return tuple(_from_tree(sub) for sub in told["tuple"])
    return Field(tuple(told["shape"]), told["dtype"], told["rows"], told.get("space"))
