"""Every command: its group in `lakepond --help` and its class, whose docstring starts with the summary."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple


class Entry(NamedTuple):
    """A command, or a group of subcommands."""

    group: str
    """heading in `lakepond --help`"""
    home: str
    """module:class below lakepond.cli; empty for a group of subcommands"""
    about: str = ""
    """summary of a group of subcommands"""

    @property
    def summary(self) -> str:
        """The first line of the class's docstring, read from the source: importing it takes longer."""
        if not self.home:
            return self.about
        module, _, kind = self.home.partition(":")
        source = Path(__file__).with_name(f"{module}.py").read_text()
        found = re.search(rf'^class {kind}\b.*\n    """(.+)', source, re.MULTILINE)
        assert found is not None, f"{self.home} has no docstring"
        return found[1]


GROUPS = ("before a run", "train", "inspect", "maintain", "move", "shell")
"""headings in `lakepond --help`"""
PLAN, TRAIN, LOOK, KEEP, MOVE, SHELL = GROUPS

COMMANDS = {
    "plan": Entry(PLAN, "plan:PlanRun"),
    "doctor": Entry(PLAN, "doctor:Doctor"),
    "status": Entry(LOOK, "status:Status"),
    "watch": Entry(LOOK, "status:Watch"),
    "ls": Entry(LOOK, "contents:Ls"),
    "show": Entry(LOOK, "contents:Show"),
    "view": Entry(LOOK, "pages:ViewLake"),
    "report": Entry(LOOK, "pages:Report"),
    "verify": Entry(KEEP, "maintain:Verify"),
    "repair": Entry(KEEP, "maintain:Repair"),
    "compact": Entry(KEEP, "maintain:Compact"),
    "push": Entry(MOVE, "copies:Push"),
    "pull": Entry(MOVE, "copies:Pull"),
    "gc": Entry(MOVE, "copies:Gc"),
    "import": Entry(MOVE, "exchange:Import"),
    "export": Entry(MOVE, "exchange:Export"),
    "train": Entry(TRAIN, "", "Train agents: erl on a market; single, mixture and live on games."),
    "evaluate": Entry(TRAIN, "evaluate:Evaluate"),
    "compare": Entry(TRAIN, "compare:Compare"),
    "play": Entry(TRAIN, "evaluate:Play"),
    "collect": Entry(TRAIN, "collect:Collect"),
    "completion": Entry(SHELL, "completion:Completion"),
    "data": Entry(PLAN, "", "Download, generate, show or check market prices."),
}
SUBCOMMANDS = {
    "train": {
        "erl": Entry(TRAIN, "train:TrainErl"),
        "single": Entry(TRAIN, "train_games:TrainSingle"),
        "mixture": Entry(TRAIN, "train_games:TrainMixture"),
        "live": Entry(TRAIN, "train_games:TrainLive"),
    },
    "data": {
        "fetch": Entry(PLAN, "data:DataFetch"),
        "synthetic": Entry(PLAN, "data:DataSynthetic"),
        "show": Entry(PLAN, "data:DataShow"),
        "check": Entry(PLAN, "data:DataCheck"),
    },
}
"""of the commands that only choose another; their help needs no parser, which would build all of these"""


def runnable() -> dict[str, Entry]:
    """Every command that does something, by its words: "ls", "train erl"."""
    found: dict[str, Entry] = {}
    for name, entry in COMMANDS.items():
        found |= {f"{name} {sub}": each for sub, each in SUBCOMMANDS.get(name, {}).items()} or {name: entry}
    return found
