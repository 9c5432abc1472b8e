"""What the commands that train have in common: options, the folder of a run and where it is pushed."""

from __future__ import annotations

import dataclasses
import logging
import shlex
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from tyro.conf import arg

from lakepond.cli.options import Flag, Json, at_least, optional
from lakepond.cli.settings import given, with_options
from lakepond.errors import CloudUnreachable, ConfigError, RunMismatch

log = logging.getLogger("lakepond")
Ray = Annotated[str | None, optional("local|auto|HOST:PORT", "none")]
"""option --ray: where Ray runs"""
Workers = Annotated[int, arg(metavar="INT")]
GpuShare = Annotated[float, arg(metavar="FLOAT")]
Log = Annotated[tuple[Literal["tensorboard", "wandb"], ...], optional("tensorboard|wandb ...", "none")]
NOWHERE = "none"
"""value of --push-to: do not push"""


@dataclass(frozen=True)
class TrainCommand:
    """The options that every trainer has; `preset`, `out` and `settings` are declared again by each."""

    trainer: ClassVar[str]
    preset: str
    out: Path | None = None
    resume: Flag = False
    """there must be a run in --out: continue it with its settings, which need not be given again"""
    resume_from: Annotated[int | None, optional("CHECKPOINT", "the newest")] = None
    """continue from this checkpoint of --out; later checkpoints are renamed to *.dropped"""
    start_over: Flag = False
    """move the contents of --out to a folder old-<time> in it and start a new run; nothing is deleted"""
    log: Log = ()
    """also log to these; wandb stays offline without an API key"""
    json: Json = False
    settings: Any = None

    @property
    def resumes(self) -> bool:
        """Whether there must be a run in --out."""
        return self.resume or self.resume_from is not None

    def arguments(self) -> dict[str, Any]:
        """The arguments that the functions of all trainers take."""
        at_least(0, resume_from=self.resume_from)
        return {
            "resume": self.resume,
            "resume_from": self.resume_from,
            "start_over": self.start_over,
            "loggers": self.log,
        }

    def configured(self, cloud: str | None = None) -> Any:
        """The settings of the preset, or of the run to resume, with the given options in their place.

        cloud: where to push the run after every generation. A destination that only the config.json of the
        run contains, and neither this nor --push-to, is refused, because somebody else may have written it.
        """
        config = import_module(f"lakepond.trainers.{self.trainer}").PRESETS[self.preset]
        if self.resumes:
            if self.out is None:
                example = f"lakepond train {self.trainer} --resume --out runs/NAME"
                raise ConfigError(f"--resume needs --out: {example}.")
            config = _of_run(type(config), self.out, self.trainer, cloud or given(self.settings, "push_to"))
        config = with_options(config, self.settings)
        if cloud is not None:
            config = dataclasses.replace(config, push_to=cloud, push_every=1)
        return dataclasses.replace(config, push_to=None) if config.push_to == NOWHERE else config


def _of_run(kind: type[Any], folder: Path, trainer: str, push_to: str | None) -> Any:
    """The settings of the run in a folder, without the place it is pushed to; `push_to` confirms that."""
    from lakepond.runs import Run, settings
    from lakepond.runs.resume import Resume

    Resume(required=True).find(folder)
    there = Run.open(folder)
    if there.trainer != trainer:
        raise RunMismatch(
            f"{folder} is a run of the trainer {there.trainer!r}, not {trainer!r}; choose another folder."
        )
    named = there.config.get("push_to")
    if named is not None and push_to is None:
        place = shlex.quote("".join(letter for letter in str(named) if letter.isprintable()))
        raise ConfigError(
            f"the settings in {folder} push this run to {place}; confirm that with --push-to {place}, or "
            f"resume without pushing with --push-to {NOWHERE}."
        )
    config = settings.from_json(kind, there.config, trainer, folder, warn=False)  # training warns
    return dataclasses.replace(config, push_to=None)


def check_free(
    url: str | None, folder: Path, option: str, *, start_over: bool, required: bool = False
) -> None:
    """Refuse to push a new run to where another one is, before it is trained; a resumed run is not new.

    folder: of the run. option: the one that gave the URL. start_over: the run in `folder` is replaced.
    A server that does not answer is a warning, or an error if the bucket is `required`.
    """
    if url is None or ((folder / "config.json").exists() and not start_over):
        return
    from lakepond.cloud.place import Cloud
    from lakepond.runs.copies import has_lake_of_run, is_run_in_cloud

    try:
        occupied = is_run_in_cloud(Cloud.of(url))
        incomplete = not occupied and has_lake_of_run(Cloud.of(url))
    except CloudUnreachable as error:
        if required:
            raise
        log.warning("cannot check whether %s contains another run: %s", url, error)
        return
    if incomplete:
        raise ConfigError(
            f"{url} contains the lake of a run whose first push was interrupted, which cannot be "
            f"resumed from there; delete {url.rstrip('/')}/lake, or give another URL ({option})."
        )
    if occupied:
        first = "" if option == "--cloud" else f"`lakepond pull {url} FOLDER` and "  # which fetches it
        raise ConfigError(
            f"{url} contains another run; {first}resume it (--resume), or give another URL ({option})."
        )


def next_run(name: str) -> Path:
    """The first folder runs/NAME-1, runs/NAME-2, ... that does not exist."""
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


def after_interrupt(folder: Path, how: str) -> str:
    """The message after an interrupt; `how`: a run that has a checkpoint is resumed."""
    if not (folder / "checkpoints").exists():
        return f"Nothing was saved in {folder} yet; start the run again."
    return f"Everything up to the last checkpoint is saved{how}"
