"""`lakepond plan`: what a run will need, before a machine is rented for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import arg

from lakepond.cli import DONE, NO, where, words
from lakepond.cli.options import Json, at_least, optional
from lakepond.errors import SpecError

if TYPE_CHECKING:
    from lakepond.plan.measured import LakeSize
    from lakepond.plan.needs import Measured
    from lakepond.plan.workload import Workload

OPTIONS = ("per_generation", "generations", "capacity", "rows", "pool", "population", "upload_every")
"""options that replace a value of the preset or of the measurement"""
ONE = "(give one of --preset, --obs, --env, --from)"
AS_ROWS = optional("first|last|whole", "first, or measured")
AS_PRESET = optional("N", "of the preset, or measured")


@dataclass(frozen=True)
class PlanRun:
    """Estimate the disk, memory and upload that a run needs; exit code 1 if this machine has too little.

    Example: lakepond plan --preset eigen2

    Example: lakepond plan --obs 504,108,9:float32 --action 108,2 --per-generation 2000 --generations 25
    """

    preset: Annotated[
        Literal["eigen2", "gpu", "gravitar"] | None,
        arg(metavar="eigen2|gpu|gravitar", help_behavior_hint=ONE),
    ] = None
    """eigen2, gpu: 16 trading agents, windows of 504 days x 108 instruments; gravitar: 1M steps of Atari"""
    obs: Annotated[str | None, arg(metavar="SHAPE:DTYPE", help_behavior_hint=ONE)] = None
    """shape and dtype of one observation, like 504,108,9:float32"""
    action: Annotated[str | None, optional("SHAPE:DTYPE", ":int64")] = None
    """shape and dtype of one action, like 108,2 (float32) or :int64 (a scalar)"""
    env: Annotated[str | None, arg(metavar="ID", help_behavior_hint=ONE)] = None
    """a Gymnasium environment, like ALE/Gravitar-v5; random steps of it are measured"""
    play: int = 400
    """with --env: number of random steps to measure; 0 only reads the spaces"""
    measured: Annotated[Path | None, arg(name="from", metavar="RUN", help_behavior_hint=ONE)] = None
    """a run or a lake: plan from its measured sizes and its settings"""

    per_generation: Annotated[int | None, AS_PRESET] = None
    """steps recorded in a generation, after which everything is saved"""
    generations: Annotated[int | None, AS_PRESET] = None
    """number of generations"""
    capacity: Annotated[int | None, AS_PRESET] = None
    """steps the replay holds in memory; all of them if not given"""
    rows: Annotated[Literal["first", "last", "whole"] | None, AS_ROWS] = None
    """axis along which next_obs is obs shifted by one row; whole: it is not shifted"""
    pool: Annotated[int | None, AS_PRESET] = None
    """number of distinct rows that exist, like the days of a market history"""
    population: Annotated[int | None, AS_PRESET] = None
    """number of agents"""
    agent_size: Annotated[str | None, optional("SIZE", "15MB, or measured")] = None
    """size of the weights of one agent, like 15MB"""
    upload_every: Annotated[int | None, AS_PRESET] = None
    """generations between two uploads"""

    store: Literal["lakepond", "gzip", "plain"] = "lakepond"
    """how the replay is stored; the verdict is about this one"""
    path: Path = Path()
    """folder of the run; the verdict is about its disk"""
    disk: Annotated[str | None, optional("SIZE", "free on this machine")] = None
    """disk of a machine to rent, like 50GB; the verdict is then about that machine"""
    ram: Annotated[str | None, optional("SIZE", "free on this machine")] = None
    """memory of a machine to rent, like 64GB"""
    json: Json = False

    def run(self) -> int:
        at_least(0, play=self.play)
        from lakepond.cli import plan_tables
        from lakepond.lake.write.disk_guard import parse_bytes
        from lakepond.machine import free_disk, memory
        from lakepond.plan.measured import written
        from lakepond.plan.needs import judge, make_plan

        lake = None if self.measured is None else written(where.lake_folder(self.measured))
        workload, measured = self._workload(lake)
        plan = make_plan(workload, measured)
        disk = free_disk(self.measured or self.path) if self.disk is None else parse_bytes(self.disk)
        verdict = judge(
            plan.store(self.store),
            disk=disk,
            memory=memory().available if self.ram is None else parse_bytes(self.ram),
            new=self.disk is not None,
            used=0 if measured is None else measured.used,
        )
        if self.json:
            words.print_json(plan_tables.as_json(plan, verdict, self.store, lake, disk))
            return DONE if verdict.fits else NO
        out = words.console()
        for each in plan_tables.tables(plan, lake, disk, story=self.preset == "eigen2"):
            out.print(each)
        machine = "This machine" if self.disk is None and self.ram is None else "That machine"
        size, style = ("large enough", "bold green") if verdict.fits else ("too small", "bold red")
        why = "." if verdict.fits else f": {'; '.join(verdict.why)}."
        out.print(words.styled((f"{machine} is {size} for this run, stored as {self.store}", style), why))
        return DONE if verdict.fits else NO

    def _workload(self, lake: LakeSize | None) -> tuple[Workload, Measured | None]:
        """The workload, with the options in place of its values, and what was measured of it."""
        from lakepond.lake.write.disk_guard import parse_bytes
        from lakepond.plan.measured import of_lake, of_run, play
        from lakepond.plan.workload import PRESETS, Workload, parse_field, shares_for
        from lakepond.types import Spec

        if sum(given is not None for given in (self.preset, self.obs, self.env, self.measured)) != 1:
            raise SpecError(
                "give one of --preset, --obs, --env and --from; `lakepond plan --help` has examples."
            )
        measured = None
        if self.preset is not None:
            workload = PRESETS[self.preset]
        elif self.obs is not None:
            spec = Spec(parse_field(self.obs), parse_field(self.action or ":int64"))
            workload = Workload(spec, 10_000, 100, shares=shares_for(spec))
        elif self.env is not None:
            if self.play:
                words.talk(f"Playing {self.play:,} random steps of {self.env} ...")
            workload = replace(play(self.env, self.play), per_generation=10_000, generations=100)
        else:
            assert lake is not None
            assert self.measured is not None
            is_run = where.is_run(self.measured)
            workload, measured = of_run(self.measured, lake) if is_run else of_lake(lake)
            if is_run and (self.population is not None or self.agent_size is not None):
                measured = replace(measured, parts=None, checkpoint=None)
        changed: dict[str, Any] = {
            name: value for name in OPTIONS if (value := getattr(self, name)) is not None
        }
        if self.agent_size is not None:
            changed["agent_bytes"] = parse_bytes(self.agent_size)
        return replace(workload, **changed), measured
