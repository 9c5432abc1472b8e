"""docs/cli.md is what `--help` prints, and docs/json.md names the keys that `--json` prints."""

import importlib.util
import re
from pathlib import Path

import pytest

import lakepond as lp
from lakepond.cli.commands import runnable
from lakepond.doctor import software

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"


def test_the_page_and_the_completion_scripts_are_those_of_the_commands(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(HERE))
    spec = importlib.util.spec_from_file_location("make_reference", HERE / "make_reference.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    for path, text in script.files().items():
        assert path.read_text() == text, "run python tests/cli/make_reference.py"
    assert capsys.readouterr() == ("", "")  # `--help` of each command wrote nothing to stderr


def test_every_help_has_examples_on_lines_of_their_own():
    page = (DOCS / "cli.md").read_text()  # equal to `--help` by the test above
    helps = dict(re.findall(r"^##+ lakepond ([\w ]+)$\n\n```text\n(.*?)```", page, re.MULTILINE | re.DOTALL))
    assert helps.keys() > set(runnable())
    for name, text in helps.items():
        assert f"\nExample: lakepond {name}" in text or "\nExample: source <(lakepond" in text
        assert max(line.count("Example:") for line in text.splitlines()) == 1
        assert "(default: )" not in text
        assert "{None}" not in text


def documented() -> dict[str, set[str]]:
    """The keys that the page names for each command; a.b is key b of the object or objects in a."""
    found: dict[str, set[str]] = {}
    for part in re.split(r"^## ", (DOCS / "json.md").read_text(), flags=re.MULTILINE)[1:]:
        title, _, rows = part.partition("\n")
        for command in re.findall(r"`lakepond (\w+)", title):
            found[command] = set(re.findall(r"^\| `([\w.]+)` \|", rows, re.MULTILINE))
    return found


def keys(answer: dict, known: set[str], prefix: str = "") -> set[str]:
    """The keys of an object, and of those within it that the page goes into."""
    found = set()
    for name, value in answer.items():
        path = f"{prefix}{name}"
        found.add(path)
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and any(key.startswith(f"{path}.") for key in known):
            found |= keys(inner, known, f"{path}.")
    return found


@pytest.mark.parametrize(
    "words",
    [
        "plan --preset eigen2 --disk 1TB --ram 1TB",
        "plan --from {run} --disk 1TB --ram 1TB",
        "doctor --path {folder}",
        "ls {folder}",
        "ls {run}",
        "show {run}",
        "status {run}",
        "verify {run}",
        "repair {run}",
        "compact {run}",
        "push {run} file://{folder}/bucket/run",
        "pull file://{folder}/pushed {folder}/back",
        "gc file://{folder}/pushed",
        "export {run} {folder}/steps.parquet",
        "import {folder}/episodes {folder}/new",
        "data synthetic --days 30 --instruments 2 --out {folder}/panel.npz",
        "report {run}",
    ],
)
def test_the_keys_are_those_of_the_page(words, make_run, tmp_path, json_of, monkeypatch):
    monkeypatch.setattr(software, "accelerator", software.python)  # the check that starts a process with JAX
    run = make_run(done=4)
    if "pushed" in words:
        lp.push(run / "lake", f"file://{tmp_path}/pushed")
    if "episodes" in words:
        with lp.Lake.open(run / "lake") as lake:
            lake.to_npz(tmp_path / "episodes")
    printed = json_of(*words.format(run=run, folder=tmp_path).split())
    known = documented()[words.split()[0]]
    if words.startswith("plan --preset"):
        known = {key for key in known if not key.startswith("measured.")}
    if words.startswith("ls"):
        listed = ("lake", "commits") if "{run}" in words else ("path", "found")
        known = {key for key in known if key.startswith(listed)}
    assert keys(printed, known) == known
