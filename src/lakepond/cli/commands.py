"""Every command: its group in `lakepond --help`, where it lives, and its summary."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command that is there: where it lives and what `lakepond --help` says of it."""

    group: str
    home: str
    """module:class below lakepond.cli"""
    summary: str
    """the first line of the class's docstring, word for word"""


PLAN, LOOK, KEEP, MOVE, TRAIN, SHELL = (
    "before a run",
    "look",
    "keep whole",
    "move",
    "train",
    "the shell",
)

COMMANDS: dict[str, Entry] = {
    "plan": Entry(
        PLAN,
        "plan:PlanRun",
        "Tell how much disk, memory and upload a run will need; exit code 1 if this machine has too little.",
    ),
    "doctor": Entry(
        PLAN,
        "doctor:Doctor",
        "Look whether this machine is ready for a run; exit code 1 if it is not.",
    ),
    "status": Entry(
        LOOK,
        "status:Status",
        "Tell how a run is doing: progress, rates, memory, disk, lake, uploads; running, finished or dead.",
    ),
    "watch": Entry(LOOK, "watch:Watch", "Show how a run is doing, live, until it ends or Ctrl-C."),
    "ls": Entry(LOOK, "ls:Ls", "List the lakes and runs below a folder, or the commits of one of them."),
    "show": Entry(
        LOOK, "show:Show", "Tell what a lake holds: steps, rows, files, and what a step looks like."
    ),
    "view": Entry(
        LOOK,
        "view:View",
        "Look into a lake in the browser: commits, episodes, frames, market windows, rows, checksums.",
    ),
    "report": Entry(
        LOOK,
        "report:Report",
        "Write one page about a run, or about several side by side: curves, trades, lake, time, memory.",
    ),
    "verify": Entry(
        KEEP,
        "verify:Verify",
        "Read and check every byte of a lake; exit code 3 if one is not what was written.",
    ),
    "repair": Entry(
        KEEP,
        "repair:Repair",
        "Move what is damaged aside, into quarantine/, so that the lake is its newest whole commit.",
    ),
    "compact": Entry(
        KEEP,
        "compact:Compact",
        "Merge the small files of a lake into larger ones, and delete old commits if asked to.",
    ),
    "push": Entry(
        MOVE,
        "push:Push",
        "Send a lake, or a whole run, to a bucket: each file once, only what is not there.",
    ),
    "pull": Entry(MOVE, "pull:Pull", "Bring a lake, or a whole run, from a bucket to this machine, checked."),
    "gc": Entry(
        MOVE,
        "gc:Gc",
        "Find what no commit in a bucket needs any more, and with --delete delete it.",
    ),
    "import": Entry(
        MOVE, "import_:Import", "Make a lake of an old pickle, a Minari dataset, or a folder of .npz files."
    ),
    "export": Entry(
        MOVE,
        "export:Export",
        "Write a lake's steps as Parquet, Arrow, .npz, Minari, or the trading project's pickle.",
    ),
    "train": Entry(TRAIN, "train:Train", "Train agents, with a replay that outlives the machine."),
    "evaluate": Entry(
        TRAIN,
        "evaluate:Evaluate",
        "Compare a market run's champion with buy-and-hold and random agents on days it was not trained on.",
    ),
    "compare": Entry(
        TRAIN,
        "compare:Compare",
        "Compare one agent with the mixture and its controls: many runs, resumable, with intervals.",
    ),
    "play": Entry(
        TRAIN, "play:Play", "Play a game with the policy of a run's checkpoint, and make a video of it."
    ),
    "completion": Entry(
        SHELL,
        "completion:Completion",
        "Print a script with which the shell completes commands, options and files.",
    ),
    "data": Entry(
        PLAN, "data:Data", "Market prices: fetch them, make them up, look at them, check your own."
    ),
}
