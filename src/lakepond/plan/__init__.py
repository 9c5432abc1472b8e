"""How much disk, memory and upload a run will need, before a machine is rented.

    workload   what is recorded: a spec and a schedule          presets   eigen2, gpu, gravitar
    needs      what that takes: plain, as gzip pickle, here     offers    disks that are rented
    measured   the same, measured: by playing, or from a run    story     the table that was made by hand

Sizes are bytes; where it depends on the data there are two, from the best case to the worst.
"""

from lakepond.plan.needs import Growth, Part, Plan, Verdict, make_plan
from lakepond.plan.presets import PRESETS
from lakepond.plan.workload import Shares, Workload

__all__ = ["Growth", "Part", "Plan", "PRESETS", "Shares", "Verdict", "Workload", "make_plan"]
