"""Compiled code is cached on disk by numba, which checks only the file of the function itself."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import lakepond
from lakepond.rows import compiling, kernel


def test_a_change_in_any_compiled_file_is_part_of_the_name_of_cached_code():
    assert kernel.append.py_func.__qualname__ == f"append_{compiling.DIGEST}"
    names = {file.name for file in compiling.SOURCES}
    assert {"kernel.py", "slots.py", "tracks.py", "state.py", "hashing.py", "priority_tree.py"} <= names


def test_stale_machine_code_is_never_run(tmp_path):
    """Change a function in another file than the cached one: the result changes, without clearing a cache."""
    copy = tmp_path / "lakepond"
    shutil.copytree(Path(lakepond.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "rows" / "kernel.py").write_text(
        "from lakepond.rows.compiling import native\nfrom lakepond.rows.helper import value\n\n\n"
        "@native(cache=True)\ndef answer(x):\n    return value(x)\n"
    )
    code = "from lakepond.rows.kernel import answer; print(answer(1))"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    for number in (10, 20):
        (copy / "rows" / "helper.py").write_text(
            "from lakepond.rows.compiling import native\n\n\n@native\ndef value(x):\n"
            f"    return x + {number}\n"
        )
        found = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
        assert int(found) == 1 + number


def test_a_read_only_installation_caches_in_a_private_temporary_folder(tmp_path):
    """Neither the package nor the home directory can be written: it works, and says so once."""
    code = (
        "from pathlib import Path\nimport numba\n"
        "from lakepond.rows import compiling\nprint(numba.config.CACHE_DIR)\n"
    )
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    package = tmp_path / "site" / "lakepond"
    shutil.copytree(Path(lakepond.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "rows" / "__pycache__").write_text("not a folder either")
    environment = {
        **{name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"},
        "PYTHONPATH": str(tmp_path / "site"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "XDG_CACHE_HOME": str(blocked),
        "HOME": str(blocked),
        "TMPDIR": str(tmp_path),
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, text=True, capture_output=True, check=True
    )
    assert done.stdout.strip() == str(tmp_path / f"lakepond-numba-{os.getuid()}")
    assert done.stderr.count("compiled code is cached in") == 1
    assert (tmp_path / f"lakepond-numba-{os.getuid()}").stat().st_mode & 0o777 == 0o700
