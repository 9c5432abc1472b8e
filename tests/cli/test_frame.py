"""The frame: help, exit codes, errors, interrupts; the same for every command."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, is_dataclass
from pathlib import Path

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


@pytest.mark.parametrize("name", runnable())
def test_every_command_is_a_dataclass_whose_docstring_is_its_summary(name):
    kind = load(name)
    assert is_dataclass(kind)
    assert kind.__doc__.splitlines()[0] == runnable()[name].summary


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
def test_every_help_has_an_example_and_exits_0(name, capsys):
    assert main([*name.split(), "--help"]) == 0
    out, err = capsys.readouterr()
    assert f"Example: lakepond {name}" in out or "Example: source <(lakepond" in out
    assert err == ""
    assert "(default: )" not in out
    assert "{None}" not in out


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


def test_help_and_storage_commands_load_no_trainer_library(lake):
    heavy = ["jax", "torch", "optax", "gymnasium", "ale_py", "obstore", "pandas", "matplotlib", "wandb"]
    commands = (
        ["--help"],
        ["train", "--help"],
        ["train", "erl", "--help"],
        ["train", "mixture", "--help"],
        ["compare", "--help"],
        ["completion", "bash"],
        ["ls", str(lake)],
        ["show", str(lake)],
        ["verify", str(lake)],
        ["status", str(lake)],
    )
    done = run(  # one process: what a command loads is still loaded after the next one
        "import sys\nfrom lakepond.cli import main\n"
        f"for words in {commands!r}:\n"
        f"    assert main(words) == 0, words\n"
        f"    assert not (found := [m for m in {heavy!r} if m in sys.modules]), (words, found)"
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["--version"]])
def test_help_loads_neither_numpy_nor_the_parser(words):
    done = run(
        f"import sys; from lakepond.cli import main; main({words!r});"
        "sys.exit(str([m for m in ('numpy', 'tyro', 'rich') if m in sys.modules] or 0))"
    )
    assert done.stderr == "0\n"


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
def test_the_old_names_of_the_tiny_preset_work_with_a_warning(words, now, warning, capsys):
    assert cli._old_names(words.split()) == now.split()
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


def test_a_termination_stops_as_an_interrupt_does():
    code = """
import dataclasses, os, signal, sys
from lakepond import cli

@dataclasses.dataclass(frozen=True)
class Waits:
    '''Wait.'''
    def run(self):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()
        finally:
            print("closed", flush=True)
    def interrupted(self):
        return "Resume it."

cli.load = lambda name: Waits
sys.exit(cli.main(["verify"]))
"""
    done = run(code)
    assert done.returncode == 143
    assert done.stdout == "closed\n"  # what was open was closed
    assert done.stderr == "\nlakepond: stopped. Resume it.\n"


def test_a_stream_that_is_closed_is_silent(tmp_path):
    lake, command = tmp_path / "lake", f"{sys.executable} -m lakepond"
    with lakepond.Replay.open(lake, lakepond.Spec(obs=lakepond.Field((2,), "float64"))) as replay:
        for number in range(2):
            step = {"obs": [float(number), 0.0], "next_obs": [0.0, 0.0], "action": 0, "reward": 0.0}
            replay.record(**step, terminated=True, truncated=False)
            replay.commit()
    newest = lake / "commits" / "0000000001.json"
    newest.write_bytes(newest.read_bytes()[:-3])

    def shown(line: str) -> subprocess.CompletedProcess[str]:
        done = run_in(["sh", "-c", f"{command} {line}"])
        assert (done.returncode, done.stderr) == (0, "") or "skipping unreadable commit" in done.stderr
        return done

    assert "skipping unreadable commit" in shown(f"export {lake} {tmp_path}/a.parquet --json").stderr
    assert json.loads(shown(f"export {lake} {tmp_path}/b.parquet --json 2>&-").stdout)["steps"] == 1
    assert shown(f"show {lake} >&-").stdout == ""


RECORDS = """
import dataclasses, os, signal, sys
import numpy as np
import lakepond as lp
from lakepond import cli

@dataclasses.dataclass(frozen=True)
class Records:
    'Record.'
    def run(self):
        with lp.Replay.open(sys.argv[1], lp.Spec(lp.Field((4,), "int64")), capacity=100) as replay:
            for t in range(1000):
                step = dict(obs=np.full(4, t), action=0, reward=float(t), next_obs=np.full(4, t + 1))
                replay.record(**step, terminated=False, truncated=False)
                if t == 250:
                    os.kill(os.getpid(), signal.SIGINT)
    def interrupted(self):
        return "Continue with --resume."

cli.load = lambda name: Records
sys.exit(cli.main(["verify"]))
"""


def test_ctrl_c_in_the_middle_of_recording_leaves_a_whole_commit(tmp_path):
    done = run(RECORDS, str(tmp_path / "lake"))
    assert done.returncode == 130, done.stderr
    assert done.stderr == "\nlakepond: stopped. Continue with --resume.\n"
    with lakepond.Lake.open(tmp_path / "lake") as lake:
        lake.verify()
        assert lake.commit.recorded == 251  # all that was recorded


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
    for words, expected in tries:
        asked = (
            f"source {script}; COMP_WORDS=(lakepond {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); "
            '"$(complete -p lakepond | sed "s/.*-F \\([^ ]*\\).*/\\1/")"; echo "${COMPREPLY[*]}"'
        )
        answer = run_in(["bash", "-c", asked])
        assert answer.stdout.split() == [expected], answer.stderr


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
