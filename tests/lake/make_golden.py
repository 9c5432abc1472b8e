"""Writes the golden lake of the present format. Run once for each version: what it wrote must stay readable.

python tests/lake/make_golden.py
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from test_lake import record, spec_of

import lakepond as lp
from lakepond.lake.format.description import FORMAT

if __name__ == "__main__":
    path = Path(__file__).parent / "golden" / f"v{FORMAT}"
    with lp.Replay.open(path, spec_of("dict and tuple"), capacity=60, alpha=0.6) as replay:
        for number, stop in enumerate((20, 50, 120)):
            record(replay, "dict and tuple", replay.stats().recorded, stop)
            replay.commit(note={"generation": number})
