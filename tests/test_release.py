"""The recipe of a release: its changelog section and what it refuses. Building is `test_wheel.py`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

RECIPE = Path(__file__).parent.parent / ".ci" / "release.py"


@pytest.fixture
def release():
    spec = importlib.util.spec_from_file_location("release", RECIPE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_unreleased_becomes_the_section_of_the_version(release):
    before = "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0 (2026-01-01)\n\n- old\n"
    after = release.dated(before, "0.2.0", "2026-02-03")
    assert after == (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 (2026-02-03)\n\n- new\n\n## 0.1.0 (2026-01-01)\n\n- old\n"
    )
    with pytest.raises(SystemExit, match="nothing to release"):
        release.dated(after, "0.3.0", "2026-03-03")
    with pytest.raises(SystemExit, match=r"already has a section 0\.1\.0"):
        release.dated(before, "0.1.0", "2026-02-03")


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "next"])
def test_a_version_has_three_numbers(version):
    done = subprocess.run([sys.executable, str(RECIPE), version], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "make release VERSION=0.2.0: the version has three numbers.\n",
    )
