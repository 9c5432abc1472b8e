"""The corpus of hostile inputs: files that were made to harm, and how each must be reported.

    for case in hostile.cases():
        hostile.check(case, folder)               # builds it in an empty folder and runs it

    what = hostile.mutate(folder, chance)         # changes one file at random, half of the time sealed again
    hostile.run(case.command(folder))             # whatever it says: no exception may leave it

Every case is one command (of the command line, or one of `run` below), which ends with the expected exit code
and one sentence on stderr. `heavy` cases try to take memory; they belong in a process with a memory limit:

    python -m faults.hostile FOLDER               # runs all heavy cases, built before in FOLDER/<number>
"""

from __future__ import annotations

import contextlib
import io
import random
import re
import resource
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from faults import hostile_files, hostile_lakes, hostile_runs
from lakepond.cli import exit_code, main
from lakepond.errors import LakepondError
from lakepond.lake.format.checksum import digest_of
from lakepond.lake.format.sealed import seal, unseal

MEMORY_BYTES = 200 << 20
"""that one heavy case may take beside what the process had before"""
LIMIT_BYTES = 8 << 30
"""of address space, so that a defect does not take down the machine"""
REFUSED = (1, 2, 3)
"""exit codes of a command that refused its input"""


Command = Callable[[Path], list[str]]


class Case(NamedTuple):
    """One hostile input."""

    name: str
    build: Callable[[Path], None]
    """writes the input to an empty folder; the same bytes each time"""
    command: Command
    """the words of the command that reads it"""
    codes: tuple[int, ...] = REFUSED
    """exit codes that are right"""
    heavy: bool = False


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str


HEAVY = re.compile(r"\d [GM]B|2\^\d\d|million|expand|long runs|12,000|chunks of|not stored")


def cases() -> list[Case]:
    """The whole corpus."""
    found: list[Case] = []

    def add(
        kind: str, builds: Any, words: Callable[[Path], list[str]], codes: tuple[int, ...] = REFUSED
    ) -> None:
        for name, build in builds.items():
            heavy = HEAVY.search(name) is not None
            found.append(Case(f"{kind}: {name}", build, words, codes, heavy))

    lakes = hostile_lakes.VERIFIED
    wide = {"an observation of 2^31 columns": hostile_lakes.WIDE}
    add("export a lake", wide, lambda f: ["export", f"{f}/lake", f"{f}/out.parquet"])
    add("verify a lake", lakes, lambda folder: ["verify", f"{folder}/lake"])
    add("open a lake", {n: lakes[n] for n in hostile_lakes.OPENED}, lambda folder: ["open", f"{folder}/lake"])
    new = "imported"
    add("import npz", hostile_files.NPZ, lambda folder: ["import", f"{folder}/data", f"{folder}/{new}"])
    add("import Minari", hostile_files.MINARI, lambda folder: ["import", f"{folder}/data", f"{folder}/{new}"])
    add(
        "import a pickle",
        hostile_files.PICKLES,
        lambda folder: ["import", f"{folder}/buffer.pkl", f"{folder}/{new}"],
    )
    for name, (file, build) in hostile_files.PRICES.items():
        add(
            "check prices",
            {name: build},
            lambda folder, file=file: ["data", "check", f"{folder}/{file}"],
            (1,),
        )
    for command in ("status", "report"):
        words = lambda folder, command=command: [command, f"{folder}/run"]  # noqa: E731
        add(f"{command} of a run", hostile_runs.UNREADABLE, words)
        add(f"{command} of a run", hostile_runs.TOLERATED, words, (0,))
    add("list a run", hostile_runs.TOLERATED, lambda folder: ["ls", str(folder)], (0,))
    add("load a checkpoint", hostile_runs.CHECKPOINTS, lambda folder: ["load", f"{folder}/run"])
    compared = {name: hostile_runs.comparison(text) for name, text in hostile_runs.COMPARISONS.items()}
    add("report a comparison", compared, lambda folder: ["draw", f"{folder}/comparison", f"{folder}/page.md"])
    return found


def run(words: Sequence[str]) -> Said:
    """Run a command in this process; an exception that leaves it is a defect of lakepond.

    `open LAKE` resumes a prioritised replay, `load RUN` loads a checkpoint, `draw FOLDER PAGE` a comparison.
    """
    out, err = io.StringIO(), io.StringIO()
    other = {"open": _open, "load": _load, "draw": _draw}.get(words[0])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        if other is None:
            code = main(list(words))
        else:
            code = 0
            try:
                other(*map(Path, words[1:]))
            except LakepondError as error:
                code = exit_code(error)
                print(f"lakepond: {error}", file=sys.stderr)  # noqa: T201
    return Said(code, out.getvalue(), err.getvalue())


def _open(lake: Path) -> None:
    import lakepond as lp

    with lp.Replay.open(lake, capacity=100, alpha=0.6):
        pass


def _load(folder: Path) -> None:
    from lakepond.runs import Run

    Run.open(folder).load(1, like=hostile_runs.LIKE)


def _draw(folder: Path, page: Path) -> None:
    from lakepond.report import comparison

    comparison.write(folder, page)


def check(case: Case, folder: Path) -> None:
    """Build a case in an empty folder, run it, and check what it says; AssertionError if that is wrong."""
    case.build(folder)
    check_built(case, folder)


def check_built(case: Case, folder: Path) -> None:
    """The same for a case that was built in `folder`."""
    before = {path for path in folder.rglob("*")}
    words = case.command(folder)
    result = run(words)
    assert result.code in case.codes, (case.name, result)
    lines = (result.err or result.out).strip().splitlines()
    if result.code:
        assert lines, case.name
        # `data check` lists all problems; `open` logs the commits that it skips
        assert len(lines) == 1 or words[0] in ("data", "open"), (case.name, result.err)
        assert len(lines[0]) < 1500, (case.name, lines[0])
    assert "Traceback" not in result.err, (case.name, result.err)
    assert "\x1b" not in result.out + result.err, f"{case.name}: a terminal escape was printed"
    page = folder / "run" / "report.html"
    assert not page.exists() or "<script>x" not in page.read_text(), case.name
    assert not (folder / "opened").exists(), f"{case.name}: a pickle was executed"
    if words[0] == "import":
        new = {path for path in folder.rglob("*")} - before
        assert not new, f"{case.name} left {sorted(new)[:3]}"


def build_heavy(folder: Path) -> int:
    """Build all heavy cases for `check_heavy`; returns how many."""
    heavy = [case for case in cases() if case.heavy]
    for number, case in enumerate(heavy):
        (folder / str(number)).mkdir()
        case.build(folder / str(number))
    return len(heavy)


def check_heavy(folder: Path) -> list[str]:
    """Run all heavy cases in this process; returns those that failed or took more than `MEMORY_BYTES`."""
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    run(["load", str(folder)]), run(["data", "check", str(folder)])  # imports are not what is measured
    failures = []
    for number, case in enumerate(case for case in cases() if case.heavy):
        before = _peak()
        try:
            check_built(case, folder / str(number))
        except Exception as error:
            failures.append(f"{case.name}: {type(error).__name__}: {error}"[:600])
        if _peak() - before > MEMORY_BYTES:
            failures.append(f"{case.name}: took {(_peak() - before) >> 20} MB")
    return failures


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


# --- random changes ----------------------------------------------------------------------------------

NUMBERS = (
    0,
    -1,
    1,
    2**31 - 1,
    2**31,
    2**40,
    2**62,
    2**63,
    2**70,
    10**18,
    0.5,
    float("nan"),
    float("inf"),
    1e308,
)
OTHERS: tuple[Any, ...] = (None, True, "", "x", "../..", [], {}, [[]], "0" * 40)


def mutate(folder: Path, chance: random.Random) -> str:
    """Change one file below `folder` at random and say what was changed.

    Half of the time files of a lake are given valid names and checksums again, so that not only the checksums
    are tested.
    """
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    if not files:
        return "nothing"
    file = chance.choice(files)
    with file.open("rb") as opened:
        data = opened.read(64 << 20)
    again = chance.random() < 0.5
    if file.suffix in (".json", ".jsonl") and again:
        return f"{file.relative_to(folder)}: {_mutate_json(file, data, chance)}"
    changed, what = _mutate_bytes(data, chance)
    file.write_bytes(changed)
    lake = file.parent.parent
    if file.suffix in (".rows", ".steps") and again and (lake / "commits").is_dir():
        _rename(lake, file, changed)
        what += ", under a valid digest"
    return f"{file.relative_to(folder) if file.exists() else file.name}: {what}"


def _mutate_bytes(data: bytes, chance: random.Random) -> tuple[bytes, str]:
    at = chance.randrange(len(data) + 1)
    kind = chance.choice(("flip", "cut", "insert", "zero", "copy", "number"))
    if kind == "cut":
        return data[:at], f"cut at byte {at}"
    if kind == "insert":
        return data[:at] + chance.randbytes(chance.randint(1, 16)) + data[at:], f"bytes inserted at {at}"
    if kind == "zero":
        size = min(chance.randint(1, 64), len(data) - at)
        return data[:at] + bytes(size) + data[at + size :], f"{size} zeros at {at}"
    if kind == "copy":
        source = chance.randrange(len(data) + 1)
        return data[:at] + data[source : source + 40] + data[at + 40 :], f"bytes of {source} copied to {at}"
    if kind == "number":
        number = chance.choice((0, 1, 2**31 - 1, 2**40, 2**62, 2**63 - 1)).to_bytes(8, "little")
        return data[:at] + number + data[at + 8 :], f"a number at {at}"
    if at == len(data):
        return data, "nothing"
    return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :], f"a bit of byte {at}"


def _mutate_json(file: Path, data: bytes, chance: random.Random) -> str:
    import json

    lines = data.splitlines(keepends=True) if file.suffix == ".jsonl" else [data]
    which = chance.randrange(len(lines)) if lines else 0
    try:
        sealed = file.suffix == ".json" and b'"checksum"' in data[-100:]
        value = unseal(data) if sealed else json.loads(lines[which])
    except (ValueError, IndexError, RecursionError):
        file.write_bytes(_mutate_bytes(data, chance)[0])
        return "bytes of broken JSON"
    path = chance.choice(list(_places(value)) or [()])
    if not path:
        return "nothing"
    new = chance.choice((*NUMBERS, *OTHERS))
    _set(value, path, new)
    if sealed:
        file.write_bytes(seal(value))
    else:
        lines[which] = json.dumps(value).encode() + (b"\n" if file.suffix == ".jsonl" else b"")
        file.write_bytes(b"".join(lines))
    return f"{'.'.join(map(str, path))} is {new!r}{', sealed again' if sealed else ''}"


def _places(tree: Any, path: tuple[Any, ...] = ()) -> Any:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, sub in items:
        yield (*path, key)
        yield from _places(sub, (*path, key))


def _set(tree: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = value


def _rename(lake: Path, file: Path, data: bytes) -> None:
    """Give a changed file its valid name and size, and name it so in every commit."""
    old, new = file.stem, digest_of(data)
    file.rename(file.with_name(f"{new}{file.suffix}"))

    def renamed(tree: Any) -> Any:
        if isinstance(tree, dict):
            changed = {key: renamed(sub) for key, sub in tree.items()}
            return {**changed, "bytes": len(data)} if tree.get("digest") == old else changed
        if isinstance(tree, list):
            return [renamed(sub) for sub in tree]
        return tree.replace(old, new) if isinstance(tree, str) else tree

    for commit in (lake / "commits").glob("*.json"):
        with contextlib.suppress(ValueError):
            commit.write_bytes(seal(renamed(unseal(commit.read_bytes()))))


if __name__ == "__main__":
    found = check_heavy(Path(sys.argv[1]))
    print("\n".join(found))  # noqa: T201
    sys.exit(bool(found))
