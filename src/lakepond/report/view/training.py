"""The learning curves of the run around a lake, while it trains: only new lines of its log are read."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from lakepond.errors import LakepondError
from lakepond.report.captions import caption
from lakepond.report.chart import Chart, as_json
from lakepond.report.facts import key_figures
from lakepond.report.figures import figures
from lakepond.report.gathered import RunFolder, find_resets, take
from lakepond.report.page import SECTIONS
from lakepond.runs import Run
from lakepond.runs.metrics import LINE_BYTES, parse_line
from lakepond.runs.run import METRICS
from lakepond.untrusted import one_line


class Training:
    """One run; any thread may ask."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._lock = folder, threading.Lock()
        self._found: RunFolder | None = None
        self._at, self._last = 0, b""  # where the next line starts, and the line before it

    def exists(self) -> bool:
        """Whether the folder is a run."""
        try:
            Run.open(self._folder)
        except (LakepondError, OSError):
            return False
        return True

    def curves(self, version: str) -> dict[str, Any]:
        """The charts of the report, by group; without them if nothing was logged since `version`."""
        with self._lock:
            run = Run.open(self._folder)
            if self._found is None or not self._follows():
                self._found = RunFolder(run.folder.resolve().name, run.folder, run.about)
                self._at, self._last = 0, b""
            found = self._found
            found.running = run.locked()
            self._read(found)
            now = f"{self._at}-{found.running}"
            state = {"name": found.name, "trainer": found.trainer, "running": found.running, "version": now}
            if version == now:
                return state
            found.resets = find_resets(found)
            drawn = figures([found])
            groups = [
                {"key": group, "title": title, "charts": list(map(_describe, drawn[group]))}
                for group, title in SECTIONS
                if group in drawn
            ]
            facts = key_figures(found)
            more = {"logged": found.last_time, "facts": facts, "problems": found.problems, "groups": groups}
            return state | more

    def _follows(self) -> bool:
        """Whether the log still has the last line that was read: a resumed run may have cut it."""
        try:
            with (self._folder / METRICS).open("rb") as file:
                file.seek(self._at - len(self._last))
                return file.read(len(self._last)) == self._last
        except FileNotFoundError:
            return self._at == 0

    def _read(self, found: RunFolder) -> None:
        """Take the new lines of the log; the last one is left while it is being written."""
        if found.problems or not (self._folder / METRICS).exists():
            return
        with (self._folder / METRICS).open("rb") as file:
            file.seek(self._at)
            while (line := file.readline(LINE_BYTES)).endswith(b"\n"):
                try:
                    take(found, parse_line(line))
                except ValueError as error:
                    found.problems.append(f"a line of {METRICS} is not valid: {one_line(error)}.")
                    return
                self._at, self._last = self._at + len(line), line


def _describe(chart: Chart) -> dict[str, Any]:
    return {**as_json(chart), "caption": caption(chart)}
