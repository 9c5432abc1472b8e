"""`lakepond import`: what others wrote, into a new lake."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from lakepond.cli import words
from lakepond.errors import SpecError

Form = Literal["pickle", "minari", "npz"]


@dataclass(frozen=True)
class Import:
    """Make a lake of an old pickle, a Minari dataset, or a folder of .npz files.

    The lake appears when all of it is imported and verified; an import that fails leaves nothing behind.

    Example: lakepond import checkpoints/replay_buffer.pkl runs/old/lake

    Example: lakepond import ~/.minari/datasets/D4RL/door/human-v2 runs/door/lake
    """

    source: Positional[Path]
    """the trading project's replay_buffer.pkl, plain or gzip; a Minari dataset; a folder of .npz episodes"""
    lake: Positional[Path]
    """a new folder for the lake"""
    form: Annotated[
        Form | None, arg(metavar="pickle|minari|npz", help_behavior_hint="(default: as it looks)")
    ] = None
    """what the source is"""
    json: bool = False
    """print JSON instead of a line"""

    def run(self) -> None:
        """Read in pieces, record, tell."""
        from lakepond.adapters.legacy_lake import import_legacy
        from lakepond.adapters.minari import import_minari
        from lakepond.adapters.npz import import_npz

        form = self.form or looks_like(self.source)
        bring = {"pickle": import_legacy, "minari": import_minari, "npz": import_npz}[form]
        with words.progress(f"import of {self.source.name}") as progress:
            found = bring(self.source, self.lake, progress=progress)
        if self.json:
            told = {**found._asdict(), "ratio": found.ratio}
            words.print_json({"source": self.source, "form": form, "lake": self.lake, **told})
            return
        plain, held = words.size(found.bytes_plain), words.size(found.bytes_on_disk)
        print(
            f"{self.lake}: {found.steps:,} steps in {found.episodes:,} episodes, {held}; "
            f"plainly {plain}, {words.ratio(found.ratio)}."
        )

    def interrupted(self) -> str:
        """How to continue after an interrupt."""
        return f"Nothing was written to {self.lake}; import again."


def looks_like(source: Path) -> Form:
    """What a path holds, by its looks; its content is checked when it is read."""
    source.stat()
    if source.is_file() and source.suffix != ".npz":
        return "pickle"
    if source.is_dir():
        if any(source.glob("*.npz")):
            return "npz"
        if (source / "metadata.json").exists() or (source / "data").is_dir():
            return "minari"
    raise SpecError(
        f"{source} is no pickle, Minari dataset or folder of .npz files; say what it is with --form."
    )
