"""The wheel contains all files of the source: scripts, styles and the marker of a typed package, too."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_wheel_has_every_file_of_the_package(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)  # writes nothing into the source
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        inside = {name for name in file.namelist() if name.startswith("lakepond/")}
        (scripts,) = [name for name in file.namelist() if name.endswith("entry_points.txt")]
        assert "lakepond = lakepond.cli:program" in file.read(scripts).decode()
    source = ROOT / "src"
    there = {
        path.relative_to(source).as_posix() for path in (source / "lakepond").rglob("*") if path.is_file()
    }
    assert inside == {name for name in there if "__pycache__" not in name}
    for needed in ("py.typed", "report/static/page.css", "report/view/static/index.html"):
        assert f"lakepond/{needed}" in inside
