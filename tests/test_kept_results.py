"""`make keep-results` and `make restore-results`: results of long runs go to docs/results and back."""

import subprocess
from pathlib import Path

MAKEFILE = Path(__file__).parents[1] / "Makefile"
KEPT = {
    "erl": [
        "market/settings.json",
        "market/pse/erl/0/evaluation/holdout/result.json",
        "market/power/no-gradient/7/evaluation/holdout/result.json",
    ],
    "mixture": [
        "tuning-0.0005/settings.json",
        "tuning-0.0005/Breakout/mixture/90/result.json",
        "mixture-5m/Freeway/single-lake/100/result.json",
        "mixture-atari/gravitar/single-epochs/120/result.json",
        "history-1000000/settings.json",
        "history-1000000/Seaquest/single-newest/110/result.json",
    ],
}
NOT_KEPT = [
    "market/results.json",
    "market/prices/pse.npz",
    "market/pse/erl/0/config.json",
    "market/pse/erl/0/evaluation/holdout/trades.csv",
    "history-1000000/Seaquest/single-newest/110/metrics.jsonl",
    "eigen2/evaluation/holdout/result.json",
    "erl-demo-1/evaluation/holdout/result.json",
]


def make(folder: Path, target: str) -> None:
    subprocess.run(["make", "-s", "-f", MAKEFILE, target], cwd=folder, check=True)


def files(folder: Path) -> dict[str, str]:
    return {str(f.relative_to(folder)): f.read_text() for f in folder.rglob("*") if f.is_file()}


def test_results_are_kept_and_restored_without_touching_those_that_are_there(tmp_path):
    here, there = tmp_path / "here", tmp_path / "there"
    for name in [*KEPT["erl"], *KEPT["mixture"], *NOT_KEPT]:
        file = here / "runs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"of {name}")
    make(here, "keep-results")
    for page, names in KEPT.items():
        assert files(here / "docs/results" / page / "runs") == {name: f"of {name}" for name in names}
    (here / "docs").rename(there.parent / "docs")
    there.mkdir()
    (there.parent / "docs").rename(there / "docs")
    own = there / "runs" / KEPT["mixture"][1]
    own.parent.mkdir(parents=True)
    own.write_text("made here")
    for _ in range(2):
        make(there, "restore-results")
        restored = {name: f"of {name}" for names in KEPT.values() for name in names}
        assert files(there / "runs") == restored | {KEPT["mixture"][1]: "made here"}
