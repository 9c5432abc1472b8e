"""Wheel and sdist contain the package and nothing else, with a README whose links work on other pages."""

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = {
    path.relative_to(ROOT / "src").as_posix(): path.read_bytes()
    for path in (ROOT / "src" / "lakepond").rglob("*")
    if path.is_file() and "__pycache__" not in path.parts
}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)  # writes nothing into the source
    return folder


@pytest.fixture
def wheel(built):
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def test_the_wheel_has_every_file_of_the_package(wheel):
    info = {name.partition("/")[2]: content for name, content in wheel.items() if ".dist-info/" in name}
    assert {name: content for name, content in wheel.items() if ".dist-info/" not in name} == SOURCE
    assert set(info) == {"METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE"}
    assert b"lakepond = lakepond.cli:program" in info["entry_points.txt"]
    for needed in ("py.typed", "report/static/page.css", "report/view/static/index.html"):
        assert f"lakepond/{needed}" in SOURCE


def test_the_sdist_has_the_package_and_what_builds_it(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as file:
        names = {name.partition("/")[2] for name in file.getnames()}
    others = {"README.md", "CHANGELOG.md", "LICENSE", "CITATION.cff", "pyproject.toml", ".ci/readme.py"}
    assert names == {f"src/{name}" for name in SOURCE} | others | {"PKG-INFO", ".gitignore"}


def test_links_of_the_packaged_readme_are_absolute(wheel):
    (metadata,) = (content for name, content in wheel.items() if name.endswith("/METADATA"))
    message = message_from_bytes(metadata)
    assert message["Description-Content-Type"] == "text/markdown"
    packaged, ours = message.get_payload(), (ROOT / "README.md").read_text()
    links = re.findall(r"\]\(([^)]+)\)", packaged)
    assert len(links) == len(re.findall(r"\]\(([^)]+)\)", ours)) > 20
    assert [link for link in links if not re.match("https?://|#", link)] == []
    place = f"lakepond/lakepond/blob/v{message['Version']}"
    assert f"[Changelog](https://github.com/{place}/CHANGELOG.md)" in packaged
    assert (
        f"](https://raw.githubusercontent.com/{place.replace('/blob', '')}/docs/images/rows.svg)" in packaged
    )
