"""A plugin for pytest that compiles TorchRL's segment trees if the installed ones do not load.

TorchRL's wheels are built for one version of PyTorch, and without the trees it has no prioritised samplers.
The sources are those of the checkout, the working directory; the result is kept in `.cache/peers`.
"""

import sys
from importlib import import_module
from pathlib import Path

from torch.utils import cpp_extension

KEPT = Path(__file__).parents[2] / ".cache" / "peers" / "torchrl_extension"


def compiled():
    """The extension module, built from the checkout."""
    folder = Path.cwd() / "torchrl" / "csrc"
    KEPT.mkdir(parents=True, exist_ok=True)
    return cpp_extension.load(
        "_torchrl",
        [str(folder / "pybind.cpp"), str(folder / "utils.cpp")],
        extra_cflags=["-std=c++20"],
        build_directory=str(KEPT),
        with_cuda=False,
    )


try:
    import_module("torchrl._torchrl")
except ImportError:
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchrl"]:
        del sys.modules[name]  # it was imported without the trees
    sys.modules["torchrl._torchrl"] = compiled()
