"""The scripts of docs/howto/many-machines.md, started as the guide says: by hand, by a Job and by `srun`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lakepond as lp

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "many-machines.md").read_text()
SRUN = """#!/bin/bash
# srun --ntasks=N COMMAND...: every task on this machine
count=${1#--ntasks=}; shift
for ((task = 1; task < count; task++)); do SLURM_PROCID=$task "$@" & done
SLURM_PROCID=0 "$@"; wait
"""


@pytest.fixture
def shell(tmp_path):
    """Runs lines of the guide in a folder with its scripts; the bucket and the disks are folders in it."""
    for name, code in re.findall(r"```py\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL):
        code = code.replace("gs://bucket/run", f"file://{tmp_path}/bucket").replace("/data/", f"{tmp_path}/")
        (tmp_path / name).write_text(code)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    source = str(Path(lp.__file__).parents[1])
    folders = [f"{tmp_path}/bin", str(Path(sys.executable).parent), os.environ["PATH"]]
    env = os.environ | {"PATH": ":".join(folders), "PYTHONPATH": source}

    def run(line: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-c", line], cwd=tmp_path, env=env | more, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def collectors(tmp_path: Path) -> list[str]:
    with lp.Lake.open(f"file://{tmp_path}/bucket", cache=tmp_path / "cache") as lake:
        assert len(lake) == 1_000 * len(lake.heads)
        return [name.partition(".")[0] for name in lake.heads]


def test_plain_processes_and_one_more_from_a_job(shell, tmp_path):
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    (lines,) = [block for block in blocks if "python collector.py" in block]
    out = shell("\n".join(line.removeprefix("$ ") for line in lines.splitlines()) + "\nwait")
    assert re.search(r"collector-1\S*.* alive", out)
    assert collectors(tmp_path) == ["collector-0", "collector-1"]
    (command,) = re.findall(r'command: \[sh, -c, "(.*?)"\]', GUIDE)
    shell(command, JOB_COMPLETION_INDEX="2")
    assert collectors(tmp_path) == ["collector-0", "collector-1", "collector-2"]


def test_slurm(shell, tmp_path):
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", GUIDE, re.DOTALL)
    assert script.count("--ntasks=17") == 2
    shell(script.replace("--ntasks=17", "--ntasks=3"))
    assert collectors(tmp_path) == ["collector-1", "collector-2"]
