"""`lake.json`: what a lake is, written once: the format's version, how files are named, and the spec."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lakepond.errors import LakeNotFound
from lakepond.lake.files import write_bytes
from lakepond.lake.format.checksum import DIGEST
from lakepond.lake.format.sealed import check_levels, parse, reader, seal, unseal
from lakepond.lake.format.version import FORMAT, check_version, version
from lakepond.types import Field, Spec, Tree

NAME = "lake.json"


def describe(spec: Spec) -> bytes:
    """The file for a new lake."""
    content = spec_to_json(spec)
    check_levels(content, "the spec")
    return seal({**version(), "digest": DIGEST, "spec": content})


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
    return parse_spec(data, file)


@reader("{file} is damaged: {error}; restore it from a copy.")
def parse_spec(data: bytes, file: Path | str) -> Spec:
    """The spec in these bytes of a `lake.json`."""
    check_version(parse(data), str(file))  # first: a later one may be sealed differently
    content = unseal(data)
    check_version(content, str(file))
    if content["digest"] != DIGEST:
        raise ValueError(f"its files are named by {content['digest']!r}")
    return spec_from_json(content["spec"])


def same_lake(one: bytes, other: bytes) -> bool:
    """Whether two `lake.json` are of one lake, perhaps in different versions; ValueError if damaged."""
    first, second = ({**unseal(data), **version()} for data in (one, other))
    return first == second


def format_of(data: bytes) -> int:
    """The version of a `lake.json`; ValueError if it is damaged, `LakeTooNew` if it is a later one."""
    return check_version(unseal(data), NAME)


def upgrade(path: Path) -> None:
    """Set the version in `lake.json` to that of the commits that are written from now on."""
    data = (path / NAME).read_bytes()
    content = unseal(data)
    if check_version(content, str(path / NAME)) < FORMAT:
        known = {key: value for key, value in content.items() if key not in version()}
        write_bytes(path, NAME, seal({**version(), **known}))


def _field(field: Field) -> dict[str, Any]:
    layout = {"shape": list(field.shape), "dtype": np.dtype(field.dtype).str, "rows": field.rows}
    return layout if field.space is None else {**layout, "space": dict(field.space)}


def _tree(tree: Tree) -> Any:
    if isinstance(tree, Field):
        return _field(tree)
    if isinstance(tree, dict):
        return {"dict": [[key, _tree(sub)] for key, sub in tree.items()]}
    return {"tuple": [_tree(sub) for sub in tree]}


def _from_tree(tree: Any) -> Tree:
    if "dict" in tree:
        return {key: _from_tree(sub) for key, sub in tree["dict"]}
    if "tuple" in tree:
        return tuple(_from_tree(sub) for sub in tree["tuple"])
    return Field(tuple(tree["shape"]), tree["dtype"], tree["rows"], tree.get("space"))
