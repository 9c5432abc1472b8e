"""The README for package indexes: links to files of the repository become absolute."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "lakepond/lakepond"


def absolute(text: str, version: str) -> str:
    """The text with links to files of the repository as links to the release of that version."""
    images = rf"\1(https://raw.githubusercontent.com/{REPOSITORY}/v{version}/\2)"
    links = rf"](https://github.com/{REPOSITORY}/blob/v{version}/\1)"
    text = re.sub(r"(!\[[^\]]*\])\((?!https?:)([^)]+)\)", images, text)
    return re.sub(r"\]\((?!https?:|#)([^)]+)\)", links, text)


class Readme(MetadataHookInterface):
    """Called by hatchling for every wheel and sdist."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field `readme`."""
        text = absolute((Path(self.root) / "README.md").read_text(), metadata["version"])
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
