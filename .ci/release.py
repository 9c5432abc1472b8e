"""Prepare a release: `make release VERSION=0.2.0`.

1. `CHANGELOG.md`: the entries under "Unreleased" become the section of this version, with today's date.
2. `_version.py`, `CITATION.cff` and the badge of `README.md` get the version.
3. Wheel and source distribution are built into `dist/`.
4. Each is installed into a fresh venv, where a replay is recorded, committed, reopened and verified.

Nothing is committed, tagged or uploaded; the commands for that are printed. If step 3 or 4 fails, the four
files are restored.
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHANGELOG = ROOT / "CHANGELOG.md"
VERSION = ROOT / "src" / "lakepond" / "_version.py"
CITATION = ROOT / "CITATION.cff"
README = ROOT / "README.md"
TRY = """
import sys, numpy as np, lakepond as lp
spec = lp.Spec(obs=lp.Field((4,), np.float32), action=lp.Field((), np.int64))
with lp.Replay.open("lake", spec, capacity=100) as replay:
    for i in range(10):
        obs = np.full(4, i, np.float32)
        step = dict(action=i, reward=float(i), terminated=i == 9, truncated=False)
        replay.record(obs=obs, next_obs=obs + 1, **step)
    replay.commit()
with lp.Replay.open("lake") as replay:
    assert sorted(replay.sample(64).reward.astype(int).tolist())[-1] <= 9
    assert len(replay) == 10, len(replay)
assert lp.__version__ == sys.argv[1], lp.__version__
"""


def dated(changelog: str, version: str, date: str) -> str:
    """The changelog with its "Unreleased" part as the section of a version, or `SystemExit`."""
    if f"\n## {version} " in changelog:
        raise SystemExit(f"CHANGELOG.md already has a section {version}; choose the next version.")
    before, heading, rest = changelog.partition("\n## Unreleased\n")
    unreleased = rest.partition("\n## ")[0]
    if not heading or not unreleased.strip():
        raise SystemExit('CHANGELOG.md has nothing under "## Unreleased": there is nothing to release.')
    return f"{before}{heading}\n## {version} ({date})\n{rest}"


def numbered(files: dict[Path, str], version: str, date: str) -> dict[Path, str]:
    """The four files that name the version, with this one, or `SystemExit`."""
    texts = {**files, CHANGELOG: dated(files[CHANGELOG], version, date)}
    for path, pattern, new in (
        (VERSION, r'(?<=__version__ = ").*(?=")', version),
        (CITATION, r"(?m)(?<=^version: ).*$", version),
        (CITATION, r"(?m)(?<=^date-released: ).*$", date),
        (README, r"(?<=\[!\[).*?(?=\]\(https://img.shields.io/badge/version-)", version),
        (README, r"(?<=img.shields.io/badge/version-).*?(?=-[0-9a-f]{6}\))", version),
    ):
        texts[path], count = re.subn(pattern, new, texts[path])
        if count != 1:
            raise SystemExit(f"{path.name} names the version {count} times where once is expected: {pattern}")
    return texts


def build_and_try(version: str) -> None:
    """Build both distributions, install each by itself and use it."""
    out = ROOT / "dist"
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", str(out), "-c"], cwd=ROOT, check=True)
    wheel, sdist = (out / f"lakepond-{version}{kind}" for kind in ("-py3-none-any.whl", ".tar.gz"))
    for file in (wheel, sdist):
        with tempfile.TemporaryDirectory() as folder:
            venv.create(Path(folder) / "venv", with_pip=True)
            programs = Path(folder) / "venv" / "bin"
            pip = [str(programs / "pip"), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, "-c", str(ROOT / "constraints.txt"), str(file)], check=True)
            subprocess.run([str(programs / "python"), "-I", "-c", TRY, version], cwd=folder, check=True)
            subprocess.run([str(programs / "lakepond"), "verify", "lake"], cwd=folder, check=True)
        print(f"installed and tried: dist/{file.name}")


def main(version: str) -> None:
    """Prepare this version."""
    if not re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+)?", version):
        raise SystemExit("make release VERSION=0.2.0: the version has three numbers.")
    if subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, check=True, capture_output=True).stdout:
        raise SystemExit("There are changes that are not committed; commit them first.")
    before = {path: path.read_text() for path in (CHANGELOG, VERSION, CITATION, README)}
    after = numbered(before, version, datetime.date.today().isoformat())
    try:
        for path, text in after.items():
            path.write_text(text)
        build_and_try(version)
    except BaseException:
        for path, text in before.items():
            path.write_text(text)
        raise
    tag = f"v{version}"
    print(
        f"Next: git commit -am 'Release {version}'; git tag {tag}; git push origin HEAD {tag}; upload dist/"
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
