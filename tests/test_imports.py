"""The core imports fast, alone, and in one direction; names are distinct."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import lakepond as lp


def run(code: str) -> str:
    return subprocess.check_output([sys.executable, "-c", code], text=True)


def test_the_core_needs_no_framework_and_no_cloud_client():
    heavy = [
        "jax",
        "torch",
        "tensorflow",
        "gymnasium",
        "ale_py",
        "pandas",
        "pyarrow",
        "obstore",
        "ray",
        "tyro",
        "rich",
    ]
    code = f"import sys, lakepond as lp; lp.Replay; print([m for m in {heavy!r} if m in sys.modules])"
    assert run(code).strip() == "[]"


def test_importing_the_package_imports_nothing_else():
    assert run("import sys, lakepond; print('numpy' in sys.modules)").strip() == "False"


def test_every_public_name_is_there():
    for name in lp.__all__:
        assert getattr(lp, name) is not None
    assert set(dir(lp)) == set(lp.__all__)


def test_errors_are_what_strangers_catch():
    assert issubclass(lp.TooFewSteps, lp.LakepondError)
    assert issubclass(lp.TooFewSteps, LookupError)
    assert issubclass(lp.TooFewSteps, ValueError)
    assert issubclass(lp.UnknownStream, LookupError)
    assert issubclass(lp.ReplayClosed, RuntimeError)


def test_no_two_classes_have_one_name():
    source = Path(lp.__file__).parent
    names = Counter(
        name for file in source.rglob("*.py") for name in re.findall(r"^class (\w+)", file.read_text(), re.M)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_games_of_gymnax_start_without_plotting_libraries_which_still_work():
    code = """
import sys
from lakepond.envs.minatar import MinAtar
MinAtar("Breakout").obs
heavy = ("seaborn", "pandas", "scipy.stats", "matplotlib.pyplot")
print([name for name in heavy if name in sys.modules])
from gymnax.environments.misc import pong
print(len(pong.sns.color_palette("cubehelix", 3)), pong.plt.subplots.__name__)
import seaborn, matplotlib.pyplot
print(seaborn.__name__, matplotlib.pyplot.__name__)
"""
    assert run(code).splitlines() == ["[]", "3 subplots", "seaborn matplotlib.pyplot"]
