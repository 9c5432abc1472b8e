"""The soak repeats a case if the code that it used has changed, and only then."""

import json
import subprocess
import sys

from faults import soak


def result(**more):
    code = {"parts": ["lake", "types.py"], "code": soak.code_digest(["lake", "types.py"])}
    return {
        "drill": "crash points",
        "case": "commit",
        "failures": [],
        "seed": 0,
        "scale": 1.0,
        **code,
        **more,
    }


def test_results_of_other_code_and_failures_are_not_kept(tmp_path):
    file, key = tmp_path / "faults.jsonl", {"seed": 0, "scale": 1.0}
    kept = result()
    others = [
        result(case="merge", code="0" * 12),
        result(case="push", failures=["lost"]),
        result(case="pull", seed=1),
        result(case="save", parts=[""]),  # all of the package, not these two parts
    ]
    file.write_text("".join(json.dumps(each) + "\n" for each in (kept, *others)) + '{"drill": "cut')
    assert soak.read_results(file, key) == {"crash points: commit": kept}


def test_a_digest_depends_on_the_parts_and_the_drills_alone():
    assert soak.code_digest(["lake"]) == soak.code_digest(["lake"])
    assert (
        len({soak.code_digest(parts) for parts in (["lake"], ["types.py"], ["lake", "types.py"], [""])}) == 4
    )


def test_a_case_that_starts_another_python_depends_on_all_code():
    code = (
        "import subprocess, sys; from faults.soak import Used; used = Used(); "
        "subprocess.run(['true']); import lakepond.lake.read.lake; print(used.parts()); "
        "subprocess.run([sys.executable, '-c', '']); print(used.parts())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    alone, with_another = map(eval, done.stdout.splitlines())
    assert {"lake", "rows", "types.py", "errors.py"} <= set(alone)
    assert with_another == [""]
