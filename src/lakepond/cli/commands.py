"""Every command: its group in `lakepond --help`, its class, and its summary."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: its group and summary in `lakepond --help`, and its class."""

    group: str
    home: str
    """module:class below lakepond.cli"""
    summary: str
    """the first line of the class's docstring, word for word"""


PLAN, LOOK, KEEP, MOVE, TRAIN, SHELL = (
    "before a run",
    "inspect",
    "maintain",
    "move",
    "train",
    "shell",
)

COMMANDS: dict[str, Entry] = {
    "plan": Entry(
        PLAN,
        "plan:PlanRun",
        "Estimate the disk, memory and upload that a run needs; exit code 1 if this machine has too little.",
    ),
    "doctor": Entry(
        PLAN,
        "doctor:Doctor",
        "Check this machine before a run: software, disk, memory, bucket; exit code 1 if it is not ready.",
    ),
    "status": Entry(
        LOOK,
        "status:Status",
        "Show the state of a run: running, finished or stopped; progress, rate, memory, disk, lake, uploads.",
    ),
    "watch": Entry(
        LOOK, "watch:Watch", "Show the state of a run, updated until it ends or you press Ctrl-C."
    ),
    "ls": Entry(LOOK, "ls:Ls", "List the lakes and runs below a folder, or the commits of one of them."),
    "show": Entry(
        LOOK, "show:Show", "Show the contents of a lake: steps, rows, files, and the fields of a step."
    ),
    "view": Entry(
        LOOK,
        "view:View",
        "Show a lake in the browser: learning curves, commits, episodes, frames, trades, rows, checksums.",
    ),
    "report": Entry(
        LOOK,
        "report:Report",
        "Write an HTML page about a run, or several side by side: curves, trades, lake, time, memory.",
    ),
    "verify": Entry(
        KEEP,
        "verify:Verify",
        "Read every byte of a lake and check it against its checksum; exit code 3 if a file is damaged.",
    ),
    "repair": Entry(
        KEEP,
        "repair:Repair",
        "Restore the newest intact commit of a damaged lake; damaged files are moved to quarantine/.",
    ),
    "compact": Entry(
        KEEP,
        "compact:Compact",
        "Merge the small files of a lake into larger ones, and delete old commits if asked to.",
    ),
    "push": Entry(
        MOVE,
        "push:Push",
        "Upload a lake or a run to a bucket; files that already exist there are skipped.",
    ),
    "pull": Entry(MOVE, "pull:Pull", "Download a lake or a run from a bucket and check every file."),
    "gc": Entry(
        MOVE,
        "gc:Gc",
        "Find files in a bucket that no commit uses, and delete them with --delete.",
    ),
    "import": Entry(
        MOVE,
        "import_:Import",
        "Make a lake of a Minari dataset, .npz files, a pickled buffer, or what `lakepond export` wrote.",
    ),
    "export": Entry(
        MOVE,
        "export:Export",
        "Write a lake's steps as Parquet, Arrow, .npz, Minari, LeRobot, or a pickled deque of dicts.",
    ),
    "train": Entry(TRAIN, "", "Train agents: erl on a market; single, mixture and live on games."),
    "evaluate": Entry(
        TRAIN,
        "evaluate:Evaluate",
        "Compare a market run's champion with buy-and-hold and random agents on days it was not trained on.",
    ),
    "compare": Entry(
        TRAIN,
        "compare:Compare",
        "Compare one agent with the mixture and its controls: many runs, with confidence intervals.",
    ),
    "play": Entry(
        TRAIN, "play:Play", "Play a game with the policy of a checkpoint, and write a video of it."
    ),
    "collect": Entry(
        TRAIN,
        "collect:Collect",
        "Step environments with a policy and record their steps in a lake that many processes write.",
    ),
    "completion": Entry(
        SHELL,
        "completion:Completion",
        "Print a script that makes the shell complete commands, options and files.",
    ),
    "data": Entry(PLAN, "", "Download, generate, show or check market prices."),
}
SUBCOMMANDS: dict[str, dict[str, Entry]] = {
    "train": {
        "erl": Entry(
            TRAIN,
            "train:Erl",
            "Evolve and train a population of agents on a market; a run can be resumed at any time.",
        ),
        "single": Entry(
            TRAIN,
            "train_games:Single",
            "Train one agent on a game with PQN; started again with the same --out it resumes exactly.",
        ),
        "mixture": Entry(
            TRAIN,
            "train_games:Mixture",
            "Train four agents that are periodically replaced by one that learned from all of them.",
        ),
        "live": Entry(
            TRAIN,
            "train_games:Live",
            "Train four agents and a fifth that learns from their steps and its own while they train.",
        ),
    },
    "data": {
        "fetch": Entry(
            PLAN,
            "data:Fetch",
            "Download real prices from a public Python wheel, clean them and save them as a panel.",
        ),
        "synthetic": Entry(
            PLAN, "data:Synthetic", "Generate realistic prices from a seed and save them as a panel."
        ),
        "show": Entry(PLAN, "data:Show", "Show the contents of a saved panel."),
        "check": Entry(
            PLAN,
            "data:Check",
            "Check a file of prices: list errors by line and column, and whether it is long enough.",
        ),
    },
}
"""of the commands that only choose another; their help needs no parser, which would build all of these"""


def runnable() -> dict[str, Entry]:
    """Every command that does something, by its words: "ls", "train erl"."""
    found: dict[str, Entry] = {}
    for name, entry in COMMANDS.items():
        found |= {f"{name} {sub}": each for sub, each in SUBCOMMANDS.get(name, {}).items()} or {name: entry}
    return found
