"""How the four trainers start and resume; what they share is tested in tests/runs/test_resume.py."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_games import SINGLE
from tiny_market import TINY

import lakepond as lp
from faults import training
from lakepond.cli import main, overview
from lakepond.cli.training import check_free
from lakepond.errors import CloudUnreachable, ConfigError, RunMismatch
from lakepond.runs import Run, settings
from lakepond.trainers import erl, live, mixture, single
from lakepond.trainers.play import play

ERL = replace(TINY, generations=2)
CONFIGS = {"erl": erl.Config, "single": single.SingleConfig}
CONFIGS |= {"mixture": mixture.MixtureConfig, "live": live.LiveConfig}


def record(folder: Path, steps: int = 199) -> None:
    """A lake that somebody recorded; each reward is the number of its step."""
    with lp.Replay.open(folder, lp.Spec(obs=lp.Field((2,), "float32")), 1_000) as replay:
        for step in range(steps):
            obs = np.full(2, step, np.float32)
            replay.record(obs=obs, action=0, reward=step, next_obs=obs, terminated=False, truncated=False)
        replay.commit()


def assert_recorded(folder: Path, steps: int = 199) -> None:
    with lp.Lake.open(folder) as lake:
        lake.verify()
        assert lake.steps(0, steps).reward.tolist() == list(range(steps))


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A market run of two generations."""
    folder = tmp_path_factory.mktemp("runs") / "trained"
    erl.train(ERL, folder)
    return folder


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def edit(run: Path, change) -> None:
    about = json.loads((run / "config.json").read_text())
    change(about["config"])
    (run / "config.json").write_text(json.dumps(about))


def resume(run: Path, *more: str) -> int:
    return main(["train", "erl", "--resume", "--out", str(run), "--evaluate", "nothing", *more])


@pytest.mark.parametrize("trainer", CONFIGS)
def test_no_trainer_touches_199_steps_that_somebody_recorded_in_its_folder(trainer, tmp_path, capsys):
    folder = tmp_path / "demo"
    record(folder / "lake")
    preset = [] if trainer == "erl" else ["--preset", "tiny"]
    before = sorted(path for path in folder.rglob("*") if path.name != "lock")
    assert main(["train", trainer, *preset, "--out", str(folder)]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "199 steps in 1 commits" in last
    assert "--start-over" in last
    assert sorted(path for path in folder.rglob("*") if path.name != "lock") == before
    assert_recorded(folder / "lake")


def test_the_examples_do_not_train_into_a_folder_that_the_readme_and_the_guides_record_to():
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "docs").glob("howto/*.md")]
    recorded = {name for page in pages for name in re.findall(r'Replay\.open\("([^"]+)"', page.read_text())}
    assert len(recorded) > 2
    trained = {f"{out}/lake" for page in pages for out in re.findall(r"--out (\S+)", page.read_text())}
    assert not recorded & (trained | {f"{out}/lake" for out in re.findall(r"--out (\S+)", overview())})


def test_a_single_agent_starts_over_beside_what_was_there_and_resumes(tmp_path, capsys):
    single.run(SINGLE, tmp_path)
    before = (tmp_path / "metrics.jsonl").read_bytes()
    single.run(replace(SINGLE, seed=1), tmp_path, start_over=True)
    (old,) = tmp_path.glob("old-*")
    assert (old / "metrics.jsonl").read_bytes() == before
    assert max(Run.open(old).checkpoints()) == max(Run.open(tmp_path).checkpoints()) == 4
    assert main(["train", "single", "--resume", "--out", str(tmp_path), "--json"]) == 0  # with its settings
    assert json.loads(capsys.readouterr().out)["step"] == SINGLE.env_steps
    assert main(["train", "mixture", "--resume", "--out", str(tmp_path)]) == 1
    assert "is a run of the trainer 'single', not 'mixture'" in capsys.readouterr().err


def test_seeds_are_an_option_of_the_command_and_each_has_its_line(tmp_path, capsys, monkeypatch):
    called = []

    def run(config, folder, *, seeds, **_):
        called.append((config.seed, folder, seeds))
        return {
            f"seed-{seed}": {"evaluation": seed + 0.5} for seed in range(config.seed, config.seed + seeds)
        }

    monkeypatch.setattr(single, "run", run)
    command = ["train", "single", "--seeds", "2", "--seed", "3", "--out", str(tmp_path)]
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed-4"] == {"evaluation": 4.5}
    assert main(command) == 0
    assert capsys.readouterr().out.split()[:4] == ["seed-3", "3.50", "seed-4", "4.50"]
    assert called == [(3, tmp_path, 2)] * 2
    assert main([*command, "--resume"]) == 2
    assert f"lakepond train single --resume --out {tmp_path}/seed-<number>." in capsys.readouterr().err


def test_the_first_checkpoint_can_be_evaluated(run, capsys):
    assert Run.open(run).checkpoints() == [0, 1, 2]
    json.loads((run / "checkpoints" / "00000000" / "state.json").read_text(), parse_constant=pytest.fail)
    assert main(["evaluate", str(run), "--checkpoint", "0", "--random-agents", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["generation"] == 0


# --- the command line of a market run --------------------------------------------------------------


@pytest.mark.parametrize("words", [["--resume"], ["--resume-from", "1"]])
def test_resuming_a_name_that_is_mistyped_is_an_error_that_names_the_run(run, tmp_path, words, capsys):
    assert main(["train", "erl", *words, "--out", str(tmp_path / "rum")]) == 1
    assert f"did you mean {run}?" in capsys.readouterr().err
    assert not (tmp_path / "rum").exists()


def test_a_place_to_push_to_that_came_with_the_run_must_be_confirmed(run, tmp_path, capsys):
    place = f"file://{tmp_path}/somebody"
    edit(run, lambda config: config.update(push_to=place))
    before = (run / "config.json").read_bytes()
    assert resume(run, "--generations", "3") == 2
    refused = capsys.readouterr().err
    assert f"push this run to {place}; confirm that with --push-to {place}" in refused
    assert (run / "config.json").read_bytes() == before
    assert resume(run, "--generations", "3", "--push-to", "none") == 0
    assert not (tmp_path / "somebody").exists()
    assert Run.open(run).config["push_to"] is None

    edit(run, lambda config: config.update(push_to=place))
    assert resume(run, "--generations", "4", "--push-to", place) == 0
    assert (tmp_path / "somebody" / "config.json").exists()


def test_a_new_run_is_not_pushed_to_where_another_one_is_but_a_resumed_one_is(run, tmp_path, capsys):
    place, new = f"file://{tmp_path}/bucket", tmp_path / "new"
    assert main(["push", str(run), place]) == 0

    def refused(words: list[str], url: str = place) -> bool:
        code = main(words)
        said = " ".join(capsys.readouterr().err.split())
        return code == 2 and f"{url} contains another run; `lakepond pull {url} FOLDER` and resume it" in said

    for trainer in CONFIGS:
        assert refused(training.words(trainer, new, "--push-to", place))
    assert refused(training.words("erl", run, "--start-over", "--push-to", place))
    assert main(["push", str(run), f"{place}-of-seeds/seed-1"]) == 0
    seeds = ["--seeds", "2", "--push-to", f"{place}-of-seeds"]
    assert refused(training.words("single", new, *seeds), f"{place}-of-seeds/seed-1")
    assert not new.exists()
    assert not list(run.glob("old-*"))

    shutil.copytree(tmp_path / "bucket", tmp_path / "interrupted")
    (tmp_path / "interrupted" / "config.json").unlink()  # pushed last
    assert main(training.words("erl", new, "--push-to", f"file://{tmp_path}/interrupted")) == 2
    interrupted = f"cannot be resumed from there; delete file://{tmp_path}/interrupted/lake, or give another"
    assert interrupted in " ".join(capsys.readouterr().err.split())
    assert not new.exists()

    assert resume(run, "--generations", "3", "--push-to", place) == 0
    another = tmp_path / "another-machine"
    assert main(["pull", place, str(another)]) == 0
    assert resume(another, "--generations", "4", "--push-to", place) == 0
    assert Run.open(another).checkpoints()[-1] == 4
    assert (tmp_path / "bucket" / "checkpoints" / "00000004" / "state.json").exists()


def test_a_bucket_that_does_not_answer_at_the_start_is_a_warning_unless_it_is_required(
    tmp_path, caplog, monkeypatch
):
    def no_answer(place: object) -> bool:
        raise CloudUnreachable("no answer")

    monkeypatch.setattr("lakepond.runs.copies.is_run_in_cloud", no_answer)
    check_free("gs://bucket/x", tmp_path, "--push-to", start_over=False)
    assert "cannot check whether gs://bucket/x contains another run: no answer" in caplog.text
    with pytest.raises(CloudUnreachable):
        check_free("gs://bucket/x", tmp_path, "--cloud", start_over=False, required=True)


def test_a_run_of_an_older_version_resumes_with_one_warning_of_what_is_unknown(run, capsys):
    def older(config) -> None:
        del config["noise"], config["critics"], config["rules"]["credit"]
        config["warp"] = config["rules"]["gravity"] = 9.8

    edit(run, older)
    assert resume(run, "--generations", "3") == 0
    err = capsys.readouterr().err
    assert err.count("ignores: rules.gravity, warp.") == 1
    assert [line["step"] for line in Run.open(run).history()] == [1, 2, 3]
    assert main(["evaluate", str(run), "--random-agents", "2", "--json"]) == 0


def test_a_setting_that_is_no_number_is_one_sentence(run, capsys):
    edit(run, lambda config: config["rules"].update(context="many"))
    assert resume(run) == 2
    assert "the setting rules.context is 'many', which is not int" in capsys.readouterr().err


def test_a_damaged_newest_commit_is_repaired_and_the_run_resumes_as_the_messages_say(run, capsys):
    newest = max((run / "lake" / "commits").glob("*.json"))
    newest.write_bytes(newest.read_bytes()[:-9])
    assert main(["repair", str(run)]) == 0
    assert resume(run, "--generations", "3") == 0
    err = capsys.readouterr().err
    assert "skipping checkpoint 2" in err
    assert "resuming from checkpoint 1" in err
    assert [line["step"] for line in Run.open(run).history()] == [1, 2, 3]


def test_with_all_checkpoints_cut_each_advice_works(run, capsys):
    for state in (run / "checkpoints").glob("*/state.json"):
        state.write_bytes(state.read_bytes()[:10])
    assert resume(run) == 3
    assert "--start-over" in capsys.readouterr().err
    out = ["train", "erl", "--out", str(run), "--evaluate", "nothing", "--generations", "1"]
    settings = {name: value for name, value in training.ERL.items() if name != "generations"}
    tiny = [str(word) for name, value in settings.items() for word in (f"--{name}", value)]
    assert main([*out, *tiny, "--start-over"]) == 0
    assert Run.open(run).checkpoints() == [0, 1]
    assert main([*out, "--resume", "--start-over"]) == 2
    assert "exclude each other" in capsys.readouterr().err


# --- games -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CONFIGS)
def test_every_setting_may_be_missing_from_an_older_run(name, tmp_path):
    usual = CONFIGS[name]()
    written = settings.as_json(usual)
    for setting in settings.flat(written):
        older = json.loads(json.dumps(written))
        part, _, rest = setting.partition(".")
        del (older[part] if rest else older)[rest or part]
        assert settings.from_json(CONFIGS[name], older, name, tmp_path) == usual


def test_settings_of_an_older_run_are_read_by_the_names_that_they_had(tmp_path, caplog):
    kinds = {"mixture": ("reset_every", mixture.PRESETS["tiny"]), "single": ("evaluate_every", SINGLE)}
    for name, (portion, config) in kinds.items():
        Run.create(tmp_path / name, name, config).close()
        about = json.loads((tmp_path / name / "config.json").read_text())
        now, parts = about["config"], {portion: "portion", "env_steps": "frames"}
        parts |= {"big_replay_ratio": "big_samples"} if name == "mixture" else {}
        for new, old in parts.items():
            now[old] = now.pop(new)
        now["pqn"]["trace"] = now["pqn"].pop("lam")
        (tmp_path / name / "config.json").write_text(json.dumps(about))
        there = Run.open(tmp_path / name).config
        assert settings.from_json(type(config), there, name, tmp_path) == config
        Run.create(tmp_path / name, name, config).close()  # it has the same settings
        with pytest.raises(RunMismatch, match=f"env_steps {config.env_steps} there, 99 here"):
            Run.create(tmp_path / name, name, replace(config, env_steps=99))
    assert "does not have" not in caplog.text


def test_keep_last_of_an_older_market_run_is_its_number_of_checkpoints(tmp_path):
    there = {**settings.as_json(erl.Config()), "keep_last": 7}
    del there["keep_checkpoints"]
    assert settings.from_json(erl.Config, there, "erl", tmp_path) == erl.Config(keep_checkpoints=7)
    lake = settings.from_json(single.SingleConfig, {"keep_last": 7}, "single", tmp_path)
    assert lake.keep_last == 7  # commits of the lake


def test_a_run_that_depends_on_a_setting_of_earlier_versions_is_refused(tmp_path):
    there = settings.as_json(mixture.MixtureConfig())
    same = settings.from_json(mixture.MixtureConfig, {**there, "clone_to": "all"}, "mixture", tmp_path)
    assert same == mixture.MixtureConfig()
    with pytest.raises(ConfigError, match="clone_to='worse', which this version does not have any more"):
        settings.from_json(mixture.MixtureConfig, {**there, "clone_to": "worse"}, "mixture", tmp_path)


def test_a_game_that_came_with_a_run_does_not_import_a_module_unasked(tmp_path, monkeypatch):
    (tmp_path / "anything.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    config = replace(SINGLE, suite="gymnasium", game="anything:Game-v0")
    Run.create(tmp_path / "run", "single", config).close()
    with pytest.raises(ConfigError, match=r"imports the Python module 'anything'.*--trust-module anything"):
        play(tmp_path / "run")
    assert not (tmp_path / "imported").exists()
    with pytest.raises(ConfigError, match=r"Game-v0"):
        play(tmp_path / "run", trust_module="anything")
    assert (tmp_path / "imported").exists()
