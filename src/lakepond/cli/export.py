"""`lakepond export`: a lake, for others to read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json, optional
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.lake.read.lake import Lake

Form = Literal["parquet", "arrow", "npz", "minari", "lerobot", "pickle"]
FORMS: dict[str, Form] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".pkl": "pickle",
    ".gz": "pickle",
    "": "npz",
}
"""by the target's file extension"""


@dataclass(frozen=True)
class Export:
    """Write a lake's steps as Parquet, Arrow, .npz, Minari, LeRobot, or a pickled deque of dicts.

    Example: lakepond export runs/demo steps.parquet

    Example: lakepond export runs/demo old/replay_buffer.pkl --commit 17
    """

    path: Annotated[Positional[Path], arg(metavar="LAKE")]
    """a lake, or a run"""
    target: Annotated[Positional[Path], arg(metavar="TARGET")]
    """a new file, or a new folder for npz, minari and lerobot"""
    form: Annotated[
        Form | None, optional("parquet|arrow|npz|minari|lerobot|pickle", "by the target's extension")
    ] = None
    """what to write"""
    commit: Annotated[int | None, optional("N", "the newest")] = None
    """which commit"""
    next_obs: Literal["yes", "no"] = "yes"
    """parquet and arrow: whether each row also has the observation that followed"""
    compress: Literal["yes", "no"] = "yes"
    """pickle: whether to compress it with gzip"""
    json: Json = False

    def run(self) -> None:
        from lakepond.lake.read.lake import Lake

        form = self.form or FORMS.get(self.target.suffix)
        if form is None:
            raise SpecError(f"{self.target} has an unknown file extension; give the format with --form.")
        with (
            Lake.open(where.lake_folder(self.path), self.commit) as lake,
            words.progress("export") as progress,
        ):
            self._write(lake, form, progress)
            steps, number = len(lake), lake.commit.number
        held = sum(file.stat().st_size for file in [self.target, *self.target.rglob("*")] if file.is_file())
        result = {"target": self.target, "form": form, "commit": number, "steps": steps, "bytes": held}
        text = f"{self.target}: {steps:,} steps of commit {number} as {form}, {formats.size(held)}."
        words.print_result(result, text, as_json=self.json)

    def _write(self, lake: Lake, form: Form, progress: Callable[[int, int], None]) -> None:
        from lakepond.adapters.arrow import export_arrow
        from lakepond.adapters.legacy import export_legacy

        both, gzip = self.next_obs == "yes", self.compress == "yes"
        writers: dict[Form, Callable[[Path], object]] = {
            "parquet": partial(lake.to_parquet, next_obs=both),
            "arrow": partial(export_arrow, lake, next_obs=both),
            "npz": partial(lake.to_npz, progress=progress),
            "minari": partial(lake.to_minari, progress=progress),
            "lerobot": partial(lake.to_lerobot, progress=progress),
            "pickle": partial(export_legacy, lake, compress=gzip, progress=progress),
        }
        writers[form](self.target)

    def interrupted(self) -> str:
        return f"{self.target} is incomplete: delete it and export again."
