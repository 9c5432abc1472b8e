"""How much disk, memory and upload a run will need, before a machine is rented.

    workload   what is recorded: a spec and a schedule; presets eigen2, gpu, gravitar
    needs      what that takes: uncompressed, gzip, lakepond
    measured   measurements: of random steps, or of a run

Sizes are bytes; a size that depends on the data is a range, from the best case to the worst.
"""

from lakepond.plan.needs import DiskPart, Growth, Plan, Verdict, make_plan
from lakepond.plan.workload import PRESETS, Shares, Workload

__all__ = ["DiskPart", "Growth", "Plan", "PRESETS", "Shares", "Verdict", "Workload", "make_plan"]
