"""`lakepond plan`: what a run will take, before a machine is rented for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import DONE, NO, where, words
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.plan.measured import Written
    from lakepond.plan.workload import Workload

ASKED = ("per_generation", "generations", "capacity", "rows", "pool", "population", "upload_every")
"""what may be asked for beside a preset or a measurement"""
ONE = "(one of --preset, --obs, --env, --from)"
AS_ROWS = arg(metavar="first|last|whole", help_behavior_hint="(default: first, or as measured)")
AS_PRESET = arg(metavar="N", help_behavior_hint="(default: as the preset, or as measured)")


@dataclass(frozen=True)
class PlanRun:
    """Tell how much disk, memory and upload a run will need; exit code 1 if this machine has too little.

    Example: lakepond plan --preset eigen2

    Example: lakepond plan --obs 504,108,9:float32 --action 108,2 --per-generation 2000 --generations 25
    """

    preset: Annotated[
        Literal["eigen2", "gpu", "gravitar"] | None,
        arg(metavar="eigen2|gpu|gravitar", help_behavior_hint=ONE),
    ] = None
    """eigen2, gpu: the trading run, 16 agents, 25 generations; gravitar: Atari, a million steps"""
    obs: Annotated[str | None, arg(metavar="SHAPE:DTYPE", help_behavior_hint=ONE)] = None
    """one observation, like 504,108,9:float32"""
    action: Annotated[str | None, arg(metavar="SHAPE:DTYPE", help_behavior_hint="(default: :int64)")] = None
    """one action, like 108,2 (float32) or :int64 (one number)"""
    env: Annotated[str | None, arg(metavar="ID", help_behavior_hint=ONE)] = None
    """a Gymnasium environment, like ALE/Gravitar-v5: its spaces, and some random steps, are looked at"""
    play: int = 400
    """with --env: random steps to measure; 0: only look at the spaces"""
    measured: Annotated[Path | None, arg(name="from", metavar="RUN", help_behavior_hint=ONE)] = None
    """a run or a lake: go on from what it has measured"""

    per_generation: Annotated[int | None, AS_PRESET] = None
    """steps recorded in a generation, after which all is saved"""
    generations: Annotated[int | None, AS_PRESET] = None
    """how many"""
    capacity: Annotated[int | None, AS_PRESET] = None
    """steps held in memory; all of them unless told"""
    rows: Annotated[Literal["first", "last", "whole"] | None, AS_ROWS] = None
    """the axis along which next_obs is obs moved on by a row; whole: it is not"""
    pool: Annotated[int | None, AS_PRESET] = None
    """distinct rows there are at all, like the days of a market history"""
    population: Annotated[int | None, AS_PRESET] = None
    """agents"""
    agent_size: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="(default: 15MB)")] = None
    """the weights of one agent, like 15MB"""
    upload_every: Annotated[int | None, AS_PRESET] = None
    """generations between two uploads"""

    store: Literal["lakepond", "gzip", "plain"] = "lakepond"
    """how the replay is kept: whom the verdict is about"""
    path: Path = Path()
    """where the run will be; the verdict is about that disk"""
    disk: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="(default: what is free here)")] = None
    """a machine to be rented instead of this one: its disk, like 50GB"""
    ram: Annotated[str | None, arg(metavar="SIZE", help_behavior_hint="(default: what is free here)")] = None
    """its memory, like 64GB"""
    json: bool = False
    """print JSON instead of tables"""

    def run(self) -> int:
        """Reckon, tell, judge."""
        from lakepond.cli import plan_tables
        from lakepond.lake.guard import parse_bytes
        from lakepond.machine import free_disk, memory
        from lakepond.plan.measured import written
        from lakepond.plan.needs import judge, make_plan

        so_far = None if self.measured is None else written(where.lake_folder(self.measured))
        plan = make_plan(self._workload(so_far), None if so_far is None else so_far.size())
        disk = free_disk(self.measured or self.path) if self.disk is None else parse_bytes(self.disk)
        verdict = judge(
            plan.store(self.store),
            disk=disk,
            memory=memory().available if self.ram is None else parse_bytes(self.ram),
            new=self.disk is not None,
        )
        if self.json:
            words.print_json(plan_tables.as_json(plan, verdict, self.store, so_far, disk))
            return DONE if verdict.fits else NO
        out = words.console()
        for each in plan_tables.tables(plan, so_far, disk, story=self.preset == "eigen2"):
            out.print(each)
        machine = "This machine" if self.disk is None and self.ram is None else "That machine"
        if verdict.fits:
            out.print(f"[bold green]{machine} has enough for this run, kept as {self.store}.[/]")
        else:
            why = "; ".join(verdict.why)
            out.print(f"[bold red]{machine} is too small for this run, kept as {self.store}:[/] {why}.")
        return DONE if verdict.fits else NO

    def _workload(self, so_far: Written | None) -> Workload:
        from lakepond.lake.guard import parse_bytes
        from lakepond.plan.measured import play
        from lakepond.plan.presets import PRESETS
        from lakepond.plan.workload import Workload, parse_field, shares_for
        from lakepond.types import Spec

        given = [name for name in ("preset", "obs", "env", "measured") if getattr(self, name) is not None]
        if len(given) != 1:
            raise SpecError("plan takes one of --preset, --obs, --env and --from; its --help has examples.")
        if self.preset is not None:
            workload = PRESETS[self.preset]
        elif self.obs is not None:
            spec = Spec(parse_field(self.obs), parse_field(self.action or ":int64"))
            workload = Workload(spec, 10_000, 100, shares=shares_for(spec))
        elif self.env is not None:
            if self.play:
                words.talk(f"playing {self.play:,} random steps of {self.env} ...")
            seen = play(self.env, self.play)
            workload = Workload(
                seen.spec, 10_000, 100, rows=seen.rows, new_rows=seen.new_rows, shares=seen.shares
            )
        else:
            assert self.measured is not None
            assert so_far is not None
            workload = _of_run(self.measured, so_far)
        asked: dict[str, Any] = {
            name: getattr(self, name) for name in ASKED if getattr(self, name) is not None
        }
        if self.agent_size is not None:
            asked["agent_bytes"] = parse_bytes(self.agent_size)
        return replace(workload, **asked)


def _of_run(path: Path, so_far: Written) -> Workload:
    """What a run was told to do; a lake without a run is planned to become twice as large."""
    from lakepond.plan.workload import Workload, shares_for
    from lakepond.runs import Run

    config = Run.open(path).config if where.is_run(path) else {}
    done = max(1, round(so_far.steps / so_far.per_commit))
    population = config.get("population")
    return Workload(
        so_far.spec,
        per_generation=so_far.per_commit,
        generations=max(done, config.get("generations") or 2 * done),
        population=population if isinstance(population, int) else 1,
        shares=shares_for(so_far.spec),
    )
