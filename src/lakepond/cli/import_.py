"""`lakepond import`: what others wrote, into a new lake."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from lakepond import formats
from lakepond.cli import words
from lakepond.cli.export import Form
from lakepond.cli.options import Json, optional
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.adapters.episodes import Imported


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

        form = self.form or looks_like(self.source)
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


def looks_like(source: Path) -> Form:
    """The form of a file by its first bytes, of a folder by its files; it is checked when it is read."""
    source.stat()
    if source.is_file():
        with source.open("rb") as file:
            start = file.read(6)
        forms: dict[bytes, Form] = {
            b"PAR1": "parquet",
            b"ARROW1": "arrow",
            b"\x1f\x8b": "pickle",
            b"\x80": "pickle",
        }
        for magic, form in forms.items():
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
