"""Check the recorder: strace, which sees every system call, and `journal` must see the same changes."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from faults.outcome import Outcome, Skipped

CALLS = "write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,fallocate,truncate,ftruncate,fsync"
CALLS += (
    ",fdatasync,rename,renameat,renameat2,link,linkat,symlink,symlinkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
KINDS = {
    "renameat": "rename",
    "renameat2": "rename",
    "linkat": "link",
    "mkdirat": "mkdir",
    "ftruncate": "truncate",
}
KINDS |= {"pwrite64": "write", "fdatasync": "fsync"}

CHILD = """
    import json, sys
    from pathlib import Path
    from faults.journal import record
    from faults.operations import OPERATIONS
    root, operation = Path(sys.argv[1]), OPERATIONS[sys.argv[2]]
    operation.prepare(root)
    (root.parent / "start").mkdir()
    journal = record(root, operation.perform)
    (root.parent / "stop").mkdir()
    paths, seen = {}, []
    for change in journal.changes:
        path = paths.get(change.handle, change.path)
        if change.kind == "open":
            paths[change.handle] = change.path
        elif change.kind != "mark":
            seen.append([change.kind, path, change.to, len(change.data)])
    (root.parent / "seen.json").write_text(json.dumps(seen))
"""


def drill(operation: str, scratch: Path) -> Outcome:
    """Record one operation both ways and compare."""
    outcome = Outcome("recorder", operation)
    if shutil.which("strace") is None:
        raise Skipped("strace is not installed")
    root = scratch / "root"
    root.mkdir(parents=True)
    log = scratch / "strace.txt"
    line = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", str(log)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])}
    command = [*line, sys.executable, "-c", textwrap.dedent(CHILD), str(root), operation]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if "ptrace" in done.stderr or "PTRACE" in done.stderr:
        raise Skipped("this machine does not allow strace")
    with outcome.attempt("both recorders"):
        assert done.returncode == 0, done.stderr[-400:]
        here = [tuple(each) for each in json.loads((scratch / "seen.json").read_text())]
        there = changes(log.read_text(), root)
        outcome.notes["changes"] = len(there)
        for number, (one, other) in enumerate(zip(here, there, strict=False)):
            assert one == other, f"change {number}: {one} was recorded, strace saw {other}"
        assert len(here) == len(there), f"{len(here)} changes were recorded, strace saw {len(there)}"
    return outcome


def changes(log: str, root: Path) -> list[tuple[str, str, str, int]]:
    """The changes below a folder in a log of strace, from the mark `start` to the mark `stop`."""
    found: list[tuple[str, str, str, int]] = []
    unfinished_calls: dict[str, str] = {}
    recording = False
    for line in log.splitlines():
        pid, _, call = line.partition(" ")
        call = call.lstrip()
        if call.endswith("<unfinished ...>"):
            unfinished_calls[pid] = call.removesuffix("<unfinished ...>")
            continue
        if resumed := re.match(r"<\.\.\. \w+ resumed>(.*)", call):
            call = unfinished_calls.pop(pid) + resumed[1]
        match = re.match(r"(\w+)\((.*)\)\s+= (-?\d+)", call)
        if match is None or int(match[3]) < 0:
            continue
        name, arguments, result = match[1], match[2], int(match[3])
        if name.startswith("mkdir") and f'"{root.parent}/st' in arguments:
            recording = "/start" in arguments
        paths = [path for path in _paths(arguments) if path == str(root) or path.startswith(f"{root}/")]
        if recording and paths:
            short = [os.path.relpath(path, root) for path in paths]
            kind = KINDS.get(name, name)
            if name == "unlinkat":
                kind = "rmdir" if "AT_REMOVEDIR" in arguments else "unlink"
            to = short[1] if kind in ("rename", "link") else ""
            found.append((kind, short[0], to, result if kind == "write" else 0))
    return found


def _paths(arguments: str) -> list[str]:
    """The paths in the arguments of a call, in order; those relative to an open folder are joined to it."""
    found, folder = [], ""
    for descriptor, quoted in re.findall(r"(?:\d+|AT_FDCWD)<([^>]*)>|\"((?:[^\"\\]|\\.)*)\"", arguments):
        if descriptor:
            folder = descriptor
            found.append(descriptor)
        elif quoted:
            if found and found[-1] == folder and not quoted.startswith("/"):
                found.pop()
            found.append(os.path.join(folder, quoted))
    return found
