"""The long drill: a lake's writer is killed two hundred times and more, and files are damaged in every way.

python tests/soak.py [kills]

Each kill is followed by open, verify and a comparison of every step with the model. About fifteen minutes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KILLS = 200
TESTS = Path(__file__).parent


def main() -> int:
    """Run the drills of the test suite at length; 1 if one fails."""
    kills = int(sys.argv[1]) if len(sys.argv) > 1 else KILLS
    environment = {**os.environ, "LAKEPOND_KILLS": str(-(-kills // 2)), "LAKEPOND_HYPOTHESIS": "soak"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-o", "faulthandler_timeout=600"]
    drills = [
        "lake/test_lake.py",
        "lake/test_merge.py",
        "lake/test_fuzz.py",
        "lake/test_steps.py",
        "lake/test_shard.py",
    ]
    chosen = ["-k", "kill_9 or damaged or sealed or any_columns"]
    return subprocess.call([*command, *(str(TESTS / drill) for drill in drills), *chosen], env=environment)


if __name__ == "__main__":
    sys.exit(main())
