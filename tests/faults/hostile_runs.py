"""Folders of runs that lie: settings, metrics, results, uploads and checkpoints."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Build = Callable[[Path], None]
CONFIG = {"trainer": "erl", "config": {"generations": 4, "rules": {}}, "created": "2026-01-01T00:00:00Z"}
LINES = b"".join(
    json.dumps({"step": step, "time": 1.7e9 + step, "fitness_best": float(step)}).encode() + b"\n"
    for step in (1, 2, 3)
)
DEEP = "[" * 100_000
HUGE_NUMBER = "9" * 400


def run(**files: str | bytes) -> Build:
    """A run with these files; `__` in a name is a slash, a single `_` before the ending a dot."""

    def build(folder: Path) -> None:
        home = folder / "run"
        home.mkdir()
        found: dict[str, str | bytes] = {"config.json": json.dumps(CONFIG), "metrics.jsonl": LINES}
        for name, content in files.items():
            path = ".".join(name.replace("__", "/").rsplit("_", 1))
            found[path] = content
        for path, content in found.items():
            (home / path).parent.mkdir(parents=True, exist_ok=True)
            (home / path).write_bytes(content.encode() if isinstance(content, str) else content)

    return build


def config(**other: Any) -> str:
    """config.json with other values."""
    return json.dumps({**CONFIG, **other})


def sparse_log(folder: Path) -> None:
    """A log of 4 GB of NULs, which take no space on the disk."""
    run()(folder)
    with (folder / "run" / "metrics.jsonl").open("ab") as file:
        file.truncate(4 << 30)


UNREADABLE: dict[str, Build] = {
    "settings that are no JSON": run(config_json="{"),
    "settings that are a list": run(config_json="[1, 2]"),
    "settings nested 100,000 deep": run(config_json=DEEP),
    "settings that are NULs": run(config_json=b"\0" * 500),
    "settings of another form": run(config_json='{"trainer": 5, "config": []}'),
}
"""no command can read these runs"""

TOLERATED: dict[str, Build] = {
    "settings with wrong types": run(
        config_json=config(machine=[1], libraries="x", command=5, created={}, config={"generations": "many"})
    ),
    "settings with huge numbers": run(
        config_json=f'{{"trainer": "erl", "config": {{"generations": {HUGE_NUMBER}}}, '
        '"machine": {"memory_bytes": 1e999}}'
    ),
    "a trainer that is markup": run(config_json=config(trainer="[/bold]<script>x</script>\x1b[31m")),
    "a log of NULs": run(metrics_jsonl=LINES + b"\0" * 3000 + b"\n"),
    "a log of 4 GB of NULs": sparse_log,
    "a log nested 100,000 deep": run(metrics_jsonl=LINES + DEEP.encode() + b"\n"),
    "a log of lists": run(metrics_jsonl=LINES + b"[1, 2]\n7\nnull\n"),
    "a log with wrong types": run(
        metrics_jsonl=LINES
        + b'{"step": "one", "time": []}\n{"step": true, "time": 5}\n{"step": 1e999, "time": 1}\n'
    ),
    "a log with huge numbers": run(
        metrics_jsonl=LINES
        + f'{{"step": 4, "time": 1700000004, "a": {HUGE_NUMBER}, "b": -1e308}}\n'.encode()
        + f'{{"step": 4, "time": 1700000004, "c": [1e308, NaN, {HUGE_NUMBER}]}}\n'.encode()
        + b'{"step": 5, "time": 1700000005, "a": NaN, "b": 1e308, "rss_bytes": "x", "device_bytes": []}\n'
    ),
    "a log with names that are markup": run(
        metrics_jsonl=b'{"step": 1, "time": 1, "<script>x</script>": 1, "[/x]": 2}\n'
        b'{"step": 2, "time": 2, "<script>x</script>": 3, "[/x]": 3}\n'
    ),
    "an upload that is a list": run(upload_json="[1]"),
    "an upload with wrong types": run(upload_json='{"url": 5, "time": "x", "last_error": {}}'),
    "an upload in the year 10^9": run(upload_json='{"url": "s3://x", "time": 1e300}'),
    "a result that is a list": run(evaluation__test__result_json="[]"),
    "a result that is text": run(evaluation__test__result_json="x"),
    "a result with wrong types": run(
        evaluation__test__result_json='{"part": [], "champion": {"total_return": "x"}, "random": {"a": NaN}}'
    ),
    "a result without a return": run(
        evaluation__test__result_json='{"champion": {"trades": 5}, "buy_and_hold": {"trades": 5}}'
    ),
    "an equity that is no table": run(
        evaluation__test__result_json="{}", evaluation__test__equity_csv="x\n\0\n1,2,3\n"
    ),
    "an equity with days that are none": run(
        evaluation__test__result_json="{}", evaluation__test__equity_csv="date,champion\nsoon,1\nlater,2\n"
    ),
    "trades without numbers": run(
        evaluation__test__result_json="{}",
        evaluation__test__trades_csv="symbol,profit_percent\nA,much\nB,nan\n",
    ),
    "trades with a field of 1 MB": run(
        evaluation__test__result_json="{}", evaluation__test__trades_csv="symbol\n" + "A" * (1 << 20)
    ),
    "a market that is a list": run(market_json="[]"),
    "a lake.json that is a list": run(lake__lake_json="[]"),
    "a lake.json nested 100,000 deep": run(lake__lake_json=DEEP),
    "a checkpoint whose state is a list": run(checkpoints__00000001__state_json="[]"),
}
"""`status` and `report` name what is wrong with these and tell the rest"""

RESULT = {"arm": "single", "game": "g", "seed": 0, "score": 1, "frames": 1, "samples": 1}
RESULT |= {"curve": [[1, 2]], "resets": []}
COMPARISONS: dict[str, str] = {
    "a result that is a list": "[]",
    "a result that is no JSON": "{",
    "a result nested 100,000 deep": DEEP,
    "a result without an arm": "{}",
    "a result with a text for a score": json.dumps({**RESULT, "score": "x"}),
    "a result with a broken curve": json.dumps(
        {
            "arm": "single",
            "game": "g",
            "seed": 0,
            "score": 1,
            "frames": 1,
            "samples": 1,
            "curve": [[1]],
            "resets": [],
        }
    ),
}


def comparison(result: str) -> Build:
    """A comparison with one result."""

    def build(folder: Path) -> None:
        home = folder / "comparison" / "single" / "g" / "0"
        home.mkdir(parents=True)
        (home / "result.json").write_text(result)

    return build


# --- checkpoints -----------------------------------------------------------------------------------

LIKE = {"agent": {"kernel": np.zeros((3, 2), np.float32)}}


def tensors(header: Any, body: bytes = bytes(24), length: int | None = None) -> bytes:
    """A safetensors file with this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def entry(dtype: str = "F32", shape: tuple[int, ...] = (3, 2), offsets: tuple[int, int] = (0, 24)) -> Any:
    """What a header says of one array."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def checkpoint(data: bytes, state: Any = None) -> Build:
    """A run with one checkpoint, whose file of arrays is `data`, under a valid digest."""

    def build(folder: Path) -> None:
        noted = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        noted_state = {"number": 1, "state": {"generation": 1}, "files": {"agent.safetensors": noted}}
        text = json.dumps(noted_state if state is None else state) if not isinstance(state, str) else state
        run(checkpoints__00000001__state_json=text, checkpoints__00000001__agent_safetensors=data)(folder)

    return build


GOOD = tensors({"kernel": entry()})
CHECKPOINTS: dict[str, Build] = {
    "a header of 2^60 bytes": checkpoint(tensors({"kernel": entry()}, length=1 << 60)),
    "a header longer than the file": checkpoint(tensors({"kernel": entry()}, length=5000)),
    "a header that is no JSON": checkpoint(tensors(b"{{{{")),
    "a header nested 100,000 deep": checkpoint(tensors(DEEP.encode())),
    "an empty file": checkpoint(b""),
    "arrays that overlap": checkpoint(
        tensors({"kernel": entry(), "other": entry(offsets=(8, 32))}, bytes(32))
    ),
    "offsets outside of the file": checkpoint(tensors({"kernel": entry(offsets=(0, 1 << 40))})),
    "offsets that go backwards": checkpoint(tensors({"kernel": entry(offsets=(24, 0))})),
    "a shape of 2^60": checkpoint(tensors({"kernel": entry(shape=(1 << 60, 1 << 60))})),
    "an unknown dtype": checkpoint(tensors({"kernel": entry("Q77")})),
    "a key twice": checkpoint(
        tensors(
            b'{"kernel": '
            + json.dumps(entry()).encode()
            + b', "kernel": '
            + json.dumps(entry("I32")).encode()
            + b"}"
        )
    ),
    "another dtype": checkpoint(tensors({"kernel": entry("I32")})),
    "another shape": checkpoint(tensors({"kernel": entry(shape=(2, 3))})),
    "a state that is a list": checkpoint(GOOD, []),
    "a state nested 100,000 deep": checkpoint(GOOD, DEEP),
    "a state with files of another form": checkpoint(GOOD, {"state": {}, "files": {"agent.safetensors": 5}}),
    "a state with a text for a size": checkpoint(
        GOOD, {"state": {}, "files": {"agent.safetensors": {"bytes": "24", "sha256": 7}}}
    ),
    "a state that names no files": checkpoint(GOOD, {"state": {}, "files": {}}),
}
