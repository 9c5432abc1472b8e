"""The frame: help, exit codes, errors, interrupts; the same for every command."""

import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import lakepond
from lakepond import cli, errors
from lakepond.cli import load, main
from lakepond.cli.commands import COMMANDS, SUBCOMMANDS, runnable

SOURCE = str(Path(lakepond.__file__).parents[1])


def run_in(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONPATH": SOURCE} | environment
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)


def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
    return run_in([sys.executable, "-c", code, *words])


def test_help_names_every_command_with_its_summary(capsys, monkeypatch):
    for columns in ("60", "140"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["--help"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        assert max(map(len, out.splitlines())) <= min(100, int(columns))
        for name, entry in COMMANDS.items():
            assert f"\n  {name} " in out
            assert entry.summary in " ".join(out.split())


def test_every_command_is_a_dataclass_whose_docstring_is_its_summary():
    for name, entry in runnable().items():
        kind = load(name)
        assert is_dataclass(kind)
        assert kind.__doc__.splitlines()[0] == entry.summary


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_command_with_subcommands_lists_them(name, capsys):
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert all(f"\n  {word} " in out for word in SUBCOMMANDS[name])
    assert f"Example: lakepond {name} " in out
    assert main([name]) == 2
    assert capsys.readouterr() == ("", out)
    assert main([name, "nothing"]) == 2
    assert "there is no subcommand 'nothing'; " in capsys.readouterr().err
    first = next(iter(SUBCOMMANDS[name]))
    assert main([name, first + "x"]) == 2
    assert f"did you mean `lakepond {name} {first}`?" in capsys.readouterr().err


@pytest.mark.parametrize("name", runnable())
def test_an_unknown_option_is_exit_code_2_and_nothing_on_stdout(name, capsys):
    assert main([*name.split(), "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err


def test_a_word_that_is_no_command_names_the_nearest(capsys):
    assert main(["verfy"]) == 2
    assert "did you mean `lakepond verify`?" in capsys.readouterr().err


def test_no_word_is_exit_code_2_and_help_on_stderr(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("usage: lakepond")


def test_a_command_loads_no_library_that_it_does_not_need(lake):
    parser = ["numpy", "tyro", "rich"]
    heavy = ["jax", "torch", "optax", "gymnasium", "ale_py", "obstore", "pandas", "matplotlib", "wandb"]
    commands = [
        *((words, parser + heavy) for words in ("--help", "train --help", "--version")),
        *((words, heavy) for words in ("train erl --help", "train mixture --help", "compare --help")),
        *((words, heavy) for words in ("completion bash", f"ls {lake}", f"show {lake}", f"verify {lake}")),
        (f"status {lake}", heavy),
    ]
    done = run(  # one process: what a command loads is still loaded after the next one
        "import sys\nfrom lakepond.cli import main\n"
        f"for words, others in {commands!r}:\n"
        "    assert main(words.split()) == 0, words\n"
        "    assert not (found := [m for m in others if m in sys.modules]), (words, found)"
    )
    assert done.returncode == 0, done.stderr


@dataclass(frozen=True)
class Fails:
    """Fail."""

    def run(self) -> None:
        raise type(self).error


@dataclass(frozen=True)
class Stops:
    """Stop."""

    def run(self) -> None:
        raise KeyboardInterrupt

    def interrupted(self) -> str:
        return "Continue with `lakepond train --resume`."


@pytest.fixture
def command(monkeypatch):
    """Put a command into the place of `verify`."""

    def put(kind: type) -> None:
        monkeypatch.setattr(cli, "load", lambda name: kind)

    return put


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.LakeNotFound("there is no lake; look elsewhere."), 1),
        (OSError(28, "No space left on device"), 1),
        (errors.SpecError("that is not valid; give another."), 2),
        (errors.LakeCorrupt("a file is wrong; run `lakepond repair`."), 3),
        (errors.LakeLocked("somebody writes it; wait."), 4),
    ],
)
def test_an_error_is_one_sentence_and_its_exit_code(error, code, command, capsys):
    Fails.error = error
    command(Fails)
    assert main(["verify"]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("lakepond: ")
    assert err.count("\n") == 1
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "environment"), [("--debug verify", ""), ("verify --debug", ""), ("verify", "1")]
)
def test_debug_keeps_the_traceback(words, environment, command, monkeypatch):
    monkeypatch.setenv("LAKEPOND_DEBUG", environment)
    Fails.error = errors.LakeNotFound("there is no lake.")
    command(Fails)
    with pytest.raises(errors.LakeNotFound):
        main(words.split())


@pytest.mark.parametrize(
    ("words", "now", "warning"),
    [
        ("train live --preset debug --json", "train live --preset tiny --json", "now called --preset tiny"),
        ("compare --preset=debug", "compare --preset=tiny", "now called --preset tiny"),
        ("train single --frames 8", "train single --env-steps 8", "--frames is now called --env-steps"),
        (
            "train mixture --portion=8",
            "train mixture --reset-every=8",
            "--portion is now called --reset-every",
        ),
        (
            "train live --portion 8",
            "train live --evaluate-every 8",
            "--portion is now called --evaluate-every",
        ),
        ("train single --trace 0.5", "train single --lam 0.5", "--trace is now called --lam"),
        (
            "compare --big_samples 2",
            "compare --big-replay-ratio 2",
            "--big-samples is now called --big-replay",
        ),
        ("compare --portions 2", "compare --reset-parts 2", "--portions is now called --reset-parts"),
        (
            "train erl --keep-last 5",
            "train erl --keep-checkpoints 5",
            "--keep-last is now called --keep-checkpoints",
        ),
        ("train single --keep-last 5", "train single --keep-last 5", ""),
        ("--debug compare", "compare", ""),
        ("train single --game debug", "train single --game debug", ""),
        ("train erl --debug", "train erl", ""),
        ("verify runs/a --debug", "verify runs/a", ""),
    ],
)
def test_the_old_names_of_the_tiny_preset_work_with_a_warning(words, now, warning, capsys, monkeypatch):
    parsed: list[str] = []

    def parse(name: str, options: list[str]) -> object:
        parsed.extend([*name.split(), *options])
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(cli, "parse", parse)
    assert main(words.split()) == 0
    assert parsed == now.split()
    err = capsys.readouterr().err
    assert warning in err
    assert bool(err) == bool(warning)


@pytest.mark.parametrize("words", ["compare --debug", "train live --debug --preset tiny"])
def test_debug_behind_a_command_that_took_it_for_a_preset_is_refused(words, capsys):
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "write --preset tiny for that, or put --debug before the command" in err


def test_a_library_that_is_not_installed_is_named_with_its_extra(command, capsys):
    Fails.error = ModuleNotFoundError("No module named 'jax'", name="jax")
    command(Fails)
    assert main(["verify"]) == 1
    assert (
        capsys.readouterr().err == "lakepond: `lakepond verify` needs jax: pip install 'lakepond[train]'.\n"
    )


def test_an_interrupt_says_how_to_go_on(command, capsys):
    command(Stops)
    assert main(["verify"]) == 130
    assert capsys.readouterr().err == "\nlakepond: stopped. Continue with `lakepond train --resume`.\n"


@dataclass(frozen=True)
class Waits:
    """Wait, and be stopped."""

    def run(self) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            sys.stdout.write("closed\n")

    def interrupted(self) -> str:
        return "Resume it."


def test_a_termination_stops_as_an_interrupt_does(command, capsys):
    command(Waits)
    assert main(["verify"]) == 143
    assert capsys.readouterr() == (
        "closed\n",
        "\nlakepond: stopped. Resume it.\n",
    )  # what was open was closed


def test_a_stream_that_is_closed_is_silent(lake, tmp_path, capsys):
    newest = lake / "commits" / "0000000002.json"
    newest.write_bytes(newest.read_bytes()[:-3])
    assert main(["export", str(lake), f"{tmp_path}/a.parquet"]) == 0
    assert "skipping unreadable commit" in capsys.readouterr().err
    command = f"{sys.executable} -m lakepond"
    done = run_in(["sh", "-c", f"{command} export {lake} {tmp_path}/b.parquet --json 2>&-"])
    assert (done.returncode, json.loads(done.stdout)["steps"]) == (0, 100)
    done = run_in(["sh", "-c", f"{command} show {lake} >&-"])
    assert (done.returncode, done.stdout) == (0, "")


def test_ctrl_c_in_the_middle_of_recording_leaves_a_whole_commit(command, tmp_path, capsys):
    @dataclass(frozen=True)
    class Records(Stops):
        """Record, and be stopped."""

        def run(self) -> None:
            spec = lakepond.Spec(lakepond.Field((4,), "int64"))
            with lakepond.Replay.open(tmp_path / "lake", spec, capacity=100) as replay:
                for t in range(1000):
                    step = {"obs": np.full(4, t), "reward": float(t), "next_obs": np.full(4, t + 1)}
                    replay.record(**step, action=0, terminated=False, truncated=False)
                    if t == 250:
                        os.kill(os.getpid(), signal.SIGINT)

    command(Records)
    assert main(["verify"]) == 130
    assert capsys.readouterr().err == "\nlakepond: stopped. Continue with `lakepond train --resume`.\n"
    with lakepond.Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        assert lake.commit.recorded == 251  # all that was recorded


def test_ctrl_c_while_the_names_of_options_are_imported_is_no_traceback(monkeypatch):
    class Interrupts:
        def find_spec(self, name, path=None, target=None):
            if name == "lakepond.runs.settings":
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(sys, "meta_path", [Interrupts(), *sys.meta_path])
    monkeypatch.delitem(sys.modules, "lakepond.runs.settings", raising=False)
    assert main(["train", "single", "--preset", "tiny"]) == 130


def test_a_reader_that_leaves_early_is_no_error(lake):
    command = f"{sys.executable} -m lakepond ls {lake} --limit 0 --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = run_in(["bash", "-c", command])
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1].endswith(("0", "141"))


def test_completion_completes_commands_options_and_choices_in_bash(tmp_path, capsys):
    assert main(["completion", "bash"]) == 0
    script = tmp_path / "lakepond.bash"
    script.write_text(capsys.readouterr().out)
    tries = [
        ("ver", "verify"),
        ("plan --gen", "--generations"),
        ("plan --store gz", "gzip"),
        ("data fe", "fetch"),
        ("data fetch po", "power"),
        ("train er", "erl"),
        ("train erl --gen", "--generations"),
        ("--debug train erl --preset eig", "eigen2"),
        ("train mixture --big-start be", "best"),
        ("completion zs", "zsh"),
        ("ls --js", "--json"),
    ]
    complete = (
        'COMP_CWORD=$((${#COMP_WORDS[@]}-1)); "$(complete -p lakepond | sed "s/.*-F \\([^ ]*\\).*/\\1/")"; '
        'echo "${COMPREPLY[*]}"'
    )
    asked = [f"COMP_WORDS=(lakepond {words}); {complete}" for words, _ in tries]
    done = run_in(["bash", "-c", "\n".join([f"source {script}", *asked])])
    assert done.stdout.splitlines() == [expected for _, expected in tries], done.stderr


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_for_other_shells_names_every_command(shell, capsys):
    assert main(["completion", shell]) == 0
    out = capsys.readouterr().out
    assert all(f" {name}" in out or f'"{name}"' in out for name in runnable() if " " not in name)


def test_json_is_one_line_without_nan(capsys):
    from lakepond.cli import words

    words.print_json({"a": float("nan"), "b": [float("inf"), Path("x")], "c": (1, 2)})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"a": None, "b": [None, "x"], "c": [1, 2]}


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_completion_in_fish(tmp_path, capsys):
    assert main(["completion", "fish"]) == 0
    script = tmp_path / "lakepond.fish"
    script.write_text(capsys.readouterr().out)
    for words, expected in [("ver", "verify"), ("plan --gen", "--generations"), ("train er", "erl")]:
        asked = f"source {script}; complete -C 'lakepond {words}'"
        done = run_in(["fish", "-c", asked])
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == [expected]


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_the_script_for_zsh_defines_the_completion(tmp_path, capsys):
    assert main(["completion", "zsh"]) == 0
    (tmp_path / "_lakepond").write_text(capsys.readouterr().out)
    asked = f"source {tmp_path}/_lakepond; print -r -- $_comps[lakepond]"
    done = run_in(["zsh", "-f", "-c", asked], HOME=str(tmp_path))
    assert "_lakepond" in done.stdout, done.stderr
