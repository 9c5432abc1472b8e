"""`lakepond import` and `lakepond export`: lakes from and for other programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import where, words
from lakepond.cli.options import Json, Newest, optional
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.adapters.episodes import Imported
    from lakepond.lake.read.lake import Lake

Form = Literal["parquet", "arrow", "npz", "minari", "lerobot", "pickle"]
BY_EXTENSION: dict[str, Form] = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".pkl": "pickle",
    ".gz": "pickle",
    "": "npz",
}
BY_MAGIC: dict[bytes, Form] = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\x1f\x8b": "pickle",
    b"\x80": "pickle",
}
"""by the first bytes of a file"""


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
    commit: Newest = None
    """which commit"""
    next_obs: Literal["yes", "no"] = "yes"
    """parquet and arrow: whether each row also has the observation that followed"""
    compress: Literal["yes", "no"] = "yes"
    """pickle: whether to compress it with gzip"""
    json: Json = False

    def run(self) -> None:
        from lakepond.lake.read.lake import Lake

        form = self.form or BY_EXTENSION.get(self.target.suffix)
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


@dataclass(frozen=True)
class Import:
    """Make a lake of a Minari dataset, .npz files, a pickled buffer, or what `lakepond export` wrote.

    The lake appears when all of it is imported and verified; an import that fails leaves nothing behind.

    Example: lakepond import checkpoints/replay_buffer.pkl runs/old/lake

    Example: lakepond import ~/.minari/datasets/D4RL/door/human-v2 runs/door/lake
    """

    source: Annotated[Positional[Path], arg(metavar="SOURCE")]
    """a Minari dataset; a folder of .npz episodes; what `lakepond export` wrote; or a pickled deque of dicts
    (state, action, reward, next_state, done), uncompressed or gzip"""
    lake: Annotated[Positional[Path], arg(metavar="LAKE")]
    """a new folder for the lake"""
    form: Annotated[Form | None, optional("parquet|arrow|npz|minari|lerobot|pickle", "detected")] = None
    """what the source is"""
    json: Json = False

    def run(self) -> None:
        from lakepond.adapters.arrow import import_arrow
        from lakepond.adapters.legacy import import_legacy
        from lakepond.adapters.lerobot import import_lerobot
        from lakepond.adapters.minari import import_minari
        from lakepond.adapters.npz import import_npz

        form = self.form or _looks_like(self.source)
        importers: dict[Form, Callable[..., Imported]] = {
            "parquet": import_arrow,
            "arrow": import_arrow,
            "npz": import_npz,
            "minari": import_minari,
            "lerobot": import_lerobot,
            "pickle": import_legacy,
        }
        with words.progress(f"import of {self.source.name}") as progress:
            found = importers[form](self.source, self.lake, progress=progress)
        totals = {**found._asdict(), "ratio": found.ratio}
        steps, episodes = formats.counted(found.steps, "step"), formats.counted(found.episodes, "episode")
        held = f"{formats.size(found.bytes_on_disk)}; {formats.size(found.bytes_plain)} uncompressed"
        words.print_result(
            {"source": self.source, "form": form, "lake": self.lake, **totals},
            f"{self.lake}: {steps} in {episodes}, {held}, {formats.ratio(found.ratio)}.",
            as_json=self.json,
        )

    def interrupted(self) -> str:
        return f"Nothing was written to {self.lake}; import again."


def _looks_like(source: Path) -> Form:
    """The form of a file by its first bytes, of a folder by its files; it is checked when it is read."""
    source.stat()
    if source.is_file():
        with source.open("rb") as file:
            start = file.read(6)
        for magic, form in BY_MAGIC.items():
            if start.startswith(magic):
                return form
    elif (source / "meta/info.json").exists():
        return "lerobot"
    elif any(source.glob("*.npz")):
        return "npz"
    elif (source / "metadata.json").exists() or (source / "data/metadata.json").exists():
        return "minari"
    elif (source / "lake.json").exists():
        raise SpecError(f"{source} is a lake already: open it, or copy the folder.")
    elif next(source.rglob("*.parquet"), None) is not None:
        raise SpecError(
            f"{source} has Parquet files but no meta/info.json; import takes one Parquet file, or the folder "
            "of a LeRobot dataset, that `lakepond export` wrote."
        )
    raise SpecError(
        f"{source} is not a Parquet or Arrow file, a pickle, a Minari or LeRobot dataset, or a folder of "
        ".npz files; if it is one of these, name it with --form."
    )
