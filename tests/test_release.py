"""The recipe of a release: its changelog section and what it refuses. Building is `test_wheel.py`."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import lakepond

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


def test_every_file_that_names_the_version_gets_it(release):
    """The same files and lines as `test_docs.test_versions_agree`."""
    names = (release.CHANGELOG, release.VERSION, release.CITATION, release.README)
    before = {path: path.read_text() for path in names}
    before[release.CHANGELOG] = "# Changelog\n\n## Unreleased\n\n- new\n"
    after = release.numbered(before, "7.8.9", "2027-02-03")
    assert '__version__ = "7.8.9"\n' in after[release.VERSION]
    assert "\nversion: 7.8.9\ndate-released: 2027-02-03\n" in after[release.CITATION]
    assert "[![7.8.9](https://img.shields.io/badge/version-7.8.9-" in after[release.README]
    for path in names[1:]:  # and nothing else changes
        lines = zip(before[path].splitlines(), after[path].splitlines(), strict=True)
        assert all("7.8.9" in new or "2027-02-03" in new for old, new in lines if old != new)
    with pytest.raises(SystemExit, match=r"CITATION\.cff names the version 0 times"):
        release.numbered({**before, release.CITATION: "title: lakepond\n"}, "7.8.9", "2027-02-03")


def test_what_is_tried_with_an_installed_package_works(release, tmp_path):
    trial = [sys.executable, "-c", release.TRY, lakepond.__version__]
    subprocess.run(trial, cwd=tmp_path, check=True)
    assert (tmp_path / "lake" / "lake.json").exists()


@pytest.mark.parametrize("version", ["", "0.2", "v0.2.0", "next"])
def test_a_version_has_three_numbers(version):
    done = subprocess.run([sys.executable, str(RECIPE), version], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (
        1,
        "make release VERSION=0.2.0: the version has three numbers.\n",
    )
