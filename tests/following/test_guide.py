"""The scripts of docs/howto/many-machines.md, started as the guide says: by hand, by a Job and by `srun`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import lakepond as lp

GUIDE = (Path(__file__).parents[2] / "docs" / "howto" / "many-machines.md").read_text()
SRUN = """#!/bin/bash
# srun --ntasks=N COMMAND...: every task on this machine
count=${1#--ntasks=}; shift
for ((task = 1; task < count; task++)); do SLURM_PROCID=$task "$@" & done
SLURM_PROCID=0 "$@"; wait
"""


def here(code: str, tmp_path: Path) -> str:
    """Code of the guide with a bucket and disks in a folder; its collectors end after 1,000 steps."""
    code = code.replace("gs://bucket/run", f"file://{tmp_path}/bucket").replace("/data", f"{tmp_path}")
    return code.replace("lakepond collect ", "lakepond collect --steps 1000 ")


@pytest.fixture
def shell(tmp_path):
    """Runs lines of the guide in a folder with its scripts; the bucket and the disks are folders in it."""
    for name, code in re.findall(r"```py\n# (\w+\.py)\n(.*?)```", GUIDE, re.DOTALL):
        (tmp_path / name).write_text(here(code, tmp_path))
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "srun").write_text(SRUN)
    (tmp_path / "bin" / "srun").chmod(0o755)
    source = str(Path(lp.__file__).parents[1])
    folders = [f"{tmp_path}/bin", str(Path(sys.executable).parent), os.environ["PATH"]]
    env = os.environ | {"PATH": ":".join(folders), "PYTHONPATH": source}

    def run(line: str, **more: str) -> str:
        done = subprocess.run(
            ["bash", "-c", here(line, tmp_path)],
            cwd=tmp_path,
            env=env | more,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def collectors(tmp_path: Path) -> list[str]:
    with lp.Lake.open(f"file://{tmp_path}/bucket", cache=tmp_path / "cache") as lake:
        assert len(lake) == 1_000 * len(lake.heads)
        return [name.partition(".")[0] for name in lake.heads]


def test_plain_processes(shell, tmp_path):
    blocks = re.findall(r"```console\n(.*?)```", GUIDE, re.DOTALL)
    (lines,) = [block for block in blocks if "python collector.py" in block]
    out = shell("\n".join(line.removeprefix("$ ") for line in lines.splitlines()) + "\nwait")
    assert re.search(r"collector-1\S*.* alive", out)
    assert collectors(tmp_path) == ["collector-0", "collector-1"]


def test_a_job_of_kubernetes(shell, tmp_path):
    (job,) = re.findall(r"```yaml\n(apiVersion: batch/v1\n.*?)```", GUIDE, re.DOTALL)
    (container,) = yaml.safe_load(job)["spec"]["template"]["spec"]["containers"]
    *start, command = container["command"]
    assert start == ["sh", "-c"]
    for index in ("0", "1"):
        shell(command, JOB_COMPLETION_INDEX=index)
    assert collectors(tmp_path) == ["collector-0", "collector-1"]


def test_slurm(shell, tmp_path):
    (script,) = re.findall(r"```bash\n(#!/bin/bash\n.*?)```", GUIDE, re.DOTALL)
    assert script.count("--ntasks=17") == 2
    shell(script.replace("--ntasks=17", "--ntasks=3"))
    assert collectors(tmp_path) == ["collector-1", "collector-2"]
