"""Run the tests of other libraries with lakepond's classes in the place of theirs.

The result is written to docs/results/peers.md. Nothing of theirs is kept here: the test files come from the
source distribution of the installed version, which pip downloads, or from `--source DIR`, a checkout of it.
Each peer has a plugin for pytest that replaces the classes, and a list of what is expected::

    tests/test_buffers.py::test_env[DummyEnv]                  a test that must pass
    ! tests/test_buffers.py::test_buffer_dtypes* -- reason     tests that cannot, and why

A run fails if one of the first kind does not pass, or if a test fails that is in neither.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tarfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
CACHE = ROOT / ".cache" / "peers"
PAGE = ROOT / "docs" / "results" / "peers.md"


@dataclass(frozen=True)
class Peer:
    """A library whose tests are run."""

    name: str
    """also of its plugin, `<name>_plugin.py`, and its list, `<name>.expected`"""
    package: str
    title: str
    runs: tuple[tuple[str, ...], ...]
    """arguments of pytest, relative to the source, one process each"""
    about: str
    sdist: bool = True
    """whether its source distribution has its tests; if not, it is run when it is named, with --source"""
    beside: bool = False
    """whether its tests are also run with its own classes, because some fail with those as well"""
    needs: tuple[str, ...] = ()
    """plugins for both runs"""


PEERS = [
    Peer(
        "sb3",
        "stable-baselines3",
        "Stable-Baselines3",
        (
            ("tests/test_buffers.py",),
            ("tests/test_n_step_replay.py",),
            ("tests/test_save_load.py", "-k", "replay"),
            ("tests/test_her.py",),
        ),
        "`ReplayBuffer`, `DictReplayBuffer` and `NStepReplayBuffer` are `LakepondReplayBuffer`, "
        "`HerReplayBuffer` is `LakepondHerReplayBuffer`, in the tests and inside the library.",
    ),
    Peer(
        "torchrl",
        "torchrl",
        "TorchRL, checkpoints",
        (("test/rb/test_ensemble.py", "-k", "TestCheckpointers"),),
        "`FlatStorageCheckpointer`, `NestedStorageCheckpointer` and `H5StorageCheckpointer` are "
        "`LakeCheckpointer`. Run as `make peers-torchrl SOURCE=CHECKOUT`.",
        sdist=False,
    ),
    Peer(
        "torchrl_storages",
        "torchrl",
        "TorchRL, storages",
        (
            ("test/rb/test_storages.py",),
            ("test/rb/test_rb_core.py", "-k", "TestBuffers"),
            ("test/rb/test_samplers.py",),
        ),
        "`LazyTensorStorage` is `ReplayStorage` in memory. `LazyMemmapStorage` is `ReplayStorage` with a "
        "lake, and what is read from it is read from the lake by `LakeStorage`. Other storages and "
        "their tests are as they were. Run as `make peers-torchrl SOURCE=CHECKOUT`.",
        sdist=False,
        beside=True,
        needs=("torchrl_extension",),
    ),
    Peer(
        "d3rlpy",
        "d3rlpy",
        "d3rlpy",
        (("tests/dataset/test_buffers.py",), ("tests/dataset/test_replay_buffer.py",)),
        "`InfiniteBuffer` and `FIFOBuffer` are `LakeBuffer`, `ReplayBuffer` is `LakeReplayBuffer`, whose "
        "episodes are first recorded in a lake. Run as `make peers-d3rlpy SOURCE=CHECKOUT`.",
        sdist=False,
        beside=True,
    ),
]


def fetch(peer: Peer) -> Path:
    """The source of the installed version, with its tests."""
    folder = CACHE / f"{peer.name}-{version(peer.package)}"
    if not folder.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:"]
        wanted = f"{peer.package}=={version(peer.package)}"
        subprocess.run([*download, "--dest", str(CACHE), wanted], check=True)
        stem = peer.package.replace("-", "[-_]")
        (archive,) = [
            p for p in CACHE.iterdir() if re.fullmatch(rf"{stem}-{version(peer.package)}\.tar\.gz", p.name)
        ]
        with tarfile.open(archive) as tar:
            tar.extractall(CACHE / "unpacked", filter="data")
        (CACHE / "unpacked" / archive.name.removesuffix(".tar.gz")).rename(folder)
    if not (folder / "tests").is_dir():
        raise SystemExit(f"the source distribution of {peer.package} has no tests; pass --source CHECKOUT.")
    return folder


Outcomes = dict[str, tuple[str, str]]
"""of each test, by its id: passed, failed or skipped, and the message"""


def run(peer: Peer, source: Path, *, ours: bool = True) -> Outcomes:
    """Run the tests of a peer, with lakepond's classes or with its own."""
    CACHE.mkdir(parents=True, exist_ok=True)
    outcomes: Outcomes = {}
    for i, arguments in enumerate(peer.runs):
        report = CACHE / f"{peer.name}-{i}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "pytest", *arguments, "-q", "-c", os.devnull]
        plugins = [*peer.needs, *([f"{peer.name}_plugin"] if ours else []), "no:cacheprovider"]
        command += ["--rootdir", str(source), *(word for name in plugins for word in ("-p", name))]
        command += ["-o", "junit_family=xunit1"]
        paths = os.pathsep.join([str(HERE), sysconfig.get_path("purelib"), str(source)])  # installed first
        env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        subprocess.run([*command, f"--junitxml={report}"], cwd=source, env=env, check=False)
        outcomes |= outcomes_in(report)
    return outcomes


def outcomes_in(report: Path) -> Outcomes:
    """The outcomes in a report of pytest."""
    outcomes: Outcomes = {}
    for case in ET.parse(report).iter("testcase"):
        found = [child for child in case if child.tag in ("failure", "error", "skipped")]
        kind = "passed" if not found else "skipped" if found[0].tag == "skipped" else "failed"
        message = (found[0].get("message") or "") if found else ""
        outcomes[test_id(case)] = (kind, message.partition("\n")[0])
    return outcomes


def test_id(case: ET.Element) -> str:
    """`file::class::name`, or `file::name` if the test is a function."""
    file, name = case.get("file") or "", case.get("name") or ""
    module = file.removesuffix(".py").replace("/", ".")
    inside = (case.get("classname") or "").removeprefix(module).strip(".").replace(".", "::")
    return "::".join(part for part in (file, inside, name) if part)


def expectations(peer: Peer) -> tuple[list[str], dict[str, str]]:
    """The tests that must pass, and patterns of those that cannot, with reasons."""
    passes, exceptions = [], {}
    for line in (HERE / f"{peer.name}.expected").read_text().splitlines():
        if line.startswith("! "):
            pattern, reason = line[2:].split(" -- ", 1)
            exceptions[pattern] = reason
        elif line:
            passes.append(line)
    return passes, exceptions


def exception_for(test: str, exceptions: dict[str, str]) -> str | None:
    """The pattern that a test matches; only `*` is special."""
    for pattern in exceptions:
        if re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), test):
            return pattern
    return None


def section(peer: Peer, outcomes: Outcomes, theirs: Outcomes, seconds: float) -> tuple[str, list[str]]:
    """The part of the page for one peer, and what is not as expected.

    `theirs`: the outcomes with the peer's own classes, if they were run.
    """
    passes, exceptions = expectations(peer)
    wrong = [
        f"{t}: expected to pass, {outcomes.get(t, ('not run', ''))}"
        for t in passes
        if outcomes.get(t, ("", ""))[0] != "passed"
    ]
    excused: dict[str, int] = dict.fromkeys(exceptions, 0)
    for test, (outcome, message) in outcomes.items():
        if outcome == "failed" and test not in passes:
            pattern = exception_for(test, exceptions)
            if pattern is None:
                wrong.append(f"{test}: {message}")
            else:
                excused[pattern] += 1
    lines = [f"## {peer.title} {version(peer.package)}", "", peer.about, ""]
    title = ["tests", "passed", "failed, as listed below", "skipped by the test itself"]
    title += ["with its own classes: passed", "failed"] if theirs else []
    lines += [f"| {' | '.join(title)} |", "|---" * len(title) + "|"]
    for arguments in peer.runs:
        counts = [count(outcomes, arguments[0], kind) for kind in ("passed", "failed", "skipped")]
        counts += [count(theirs, arguments[0], kind) for kind in ("passed", "failed")] if theirs else []
        lines.append(f"| `{' '.join(arguments)}` | {' | '.join(map(str, counts))} |")
    if exceptions:
        lines += ["", "| cannot pass | tests | reason |", "|---|---|---|"]
    for reason in dict.fromkeys(exceptions.values()):
        patterns = [pattern for pattern, its in exceptions.items() if its == reason]
        names = ", ".join(dict.fromkeys(f"`{pattern.rstrip('*').partition('[')[0]}`" for pattern in patterns))
        lines.append(f"| {names} | {sum(excused[pattern] for pattern in patterns)} | {reason} |")
    skips = sorted({message for outcome, message in outcomes.values() if outcome == "skipped"})
    lines += ["", f"Skips: {'; '.join(skips) or 'none'}. {seconds:.0f} s.", ""]
    return "\n".join(lines), wrong


def count(outcomes: Outcomes, file: str, kind: str) -> int:
    """How many tests of a file have that outcome."""
    return sum(test.startswith(f"{file}::") and outcome == kind for test, (outcome, _) in outcomes.items())


def main() -> None:
    """Run the peers that are named, or all, and write the page."""
    parser = argparse.ArgumentParser(prog="python -m peers", description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help=f"some of {', '.join(p.name for p in PEERS)}; all by default"
    )
    parser.add_argument(
        "--source", type=Path, help="a checkout of the library that is named, in place of pip's"
    )
    parser.add_argument("--update", action="store_true", help="write the tests that passed to the list")
    options = parser.parse_args()
    chosen = [p for p in PEERS if (p.name in options.names if options.names else p.sdist)]
    parts, wrong = {}, []
    for peer in chosen:
        start = time.monotonic()
        source = options.source.resolve() if options.source else fetch(peer)
        outcomes = run(peer, source)
        theirs = run(peer, source, ours=False) if peer.beside else {}
        if options.update:
            _, exceptions = expectations(peer)
            lines = [f"! {pattern} -- {reason}" for pattern, reason in exceptions.items()]
            lines += sorted(t for t, (outcome, _) in outcomes.items() if outcome == "passed")
            (HERE / f"{peer.name}.expected").write_text("\n".join(lines) + "\n")
        parts[peer.name], found = section(peer, outcomes, theirs, time.monotonic() - start)
        wrong += found
    write_page(parts)
    if wrong:
        raise SystemExit("\n".join([*wrong, f"{len(wrong)} tests are not as expected."]))


def write_page(parts: dict[str, str]) -> None:
    """The result page; sections of peers that were not run stay as they are."""
    old = PAGE.read_text() if PAGE.exists() else ""
    for peer in PEERS:
        if peer.name not in parts:
            found = re.search(rf"^## {re.escape(peer.title)} .*?(?=^## |\Z)", old, re.MULTILINE | re.DOTALL)
            if found:
                parts[peer.name] = found.group(0)
    head = [
        "# Other libraries' own tests, with lakepond's classes",
        "",
        f"`make peers`, {time.strftime('%Y-%m-%d')}, Python {platform.python_version()}, "
        f"{os.cpu_count()} cores. The test files come from the source distribution of the installed version, "
        "or, where that has none (TorchRL, d3rlpy), from a checkout: d3rlpy v2.8.1, TorchRL ae9719f. Nothing "
        "of them is kept here. What is expected to pass, and what cannot and why, is listed in "
        "`tests/peers`; the run fails on any difference.",
        "",
    ]
    body = [parts[peer.name].rstrip() + "\n" for peer in PEERS if peer.name in parts]
    PAGE.write_text("\n".join(head) + "\n" + "\n".join(body))


if __name__ == "__main__":
    main()
