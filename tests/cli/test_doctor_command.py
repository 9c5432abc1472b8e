"""`lakepond doctor`: lines, JSON and exit code; the checks themselves are tested in tests/doctor."""

import json

from lakepond.cli import main


def test_each_line_is_a_verdict_a_name_and_what_was_found(tmp_path, capsys):
    assert main(["doctor", "--path", str(tmp_path), "--cloud", f"file://{tmp_path}/bucket"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("pass  locks") for line in lines)
    assert any(line.startswith("pass  bucket") for line in lines)
    assert all(line.startswith(("pass  ", "warn  ", "      ")) for line in lines)


def test_what_fails_is_exit_code_1(capsys):
    assert main(["doctor", "--path", "/proc", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["ready"] is False
    assert any(check["verdict"] == "fail" and check["next_step"] for check in found["checks"])
