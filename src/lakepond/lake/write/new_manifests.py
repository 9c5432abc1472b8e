"""New manifests: in memory while their commit is made, then those that it lists are written."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from lakepond.errors import LakepondError
from lakepond.lake.format import manifests
from lakepond.lake.format.commits import Commit
from lakepond.lake.format.entries import Entries, Entry, Manifest
from lakepond.lake.segments import Segments
from lakepond.lake.write.new_files import NewFiles


class NewManifests:
    """Reads the manifests of one writer, and makes new ones. Memory: the files of the new ones."""

    def __init__(self, files: Segments, new: NewFiles, leaves: int) -> None:
        self._files, self._new, self._leaves = files, new, leaves
        self._pending: dict[str, bytes] = {}

    def read(self, leaf: int | None, manifest: Manifest) -> Entries:
        """What a manifest lists; fetched from the cloud if it is only there."""
        found = manifests.kept(manifest)
        if found is None and manifest.name in self._pending:
            found = manifests.decode(manifest, self._pending[manifest.name], leaf, self._leaves)
        return found or manifests.read(self._files, manifest, leaf, self._leaves)

    def read_here(self, leaf: int | None, manifest: Manifest) -> Entries | None:
        """What a manifest lists; None if it is damaged or not on this disk: a commit does not need it."""
        with suppress(LakepondError, OSError):
            here = manifest.name in self._pending or manifests.kept(manifest)
            if here or self._files.local(manifest.name):
                return self.read(leaf, manifest)
        return None

    def make(self, leaf: int | None, entries: Sequence[Entry], level: int) -> Manifest:
        """A new manifest, which `write` writes if the commit lists it after all."""
        manifest, data = manifests.encode(entries, level, leaf)
        self._pending[manifest.name] = data
        return manifest

    def write(self, commit: Commit) -> int:
        """Write the new manifests that a commit lists, directly or not; returns their bytes."""
        size = sum(self._write(leaf, entries) for leaf, entries in commit.lists())
        self._pending = {}
        return size

    def _write(self, leaf: int | None, entries: Entries) -> int:
        size = 0
        for entry in entries:
            if isinstance(entry, Manifest) and entry.name in self._pending:
                size += self._write(leaf, self.read(leaf, entry))
                data = self._pending.pop(entry.name)
                self._new.manifest(entry.name, data)
                size += len(data)
        return size
