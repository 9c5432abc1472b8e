"""The sizes that the trading project eigen2 calculated, in its own units, so that numbers can be compared.

It took a transition as 3.74 MiB and 1,000 MiB as a GB: 187 GB are 196.0 GB of 10^9 bytes. Its uploads:

    as it was    saved at every 5th generation, but the folder was walked and uploaded again at every one,
                 and the file twice at a generation in which it was saved
    as meant     the file once, at every 5th generation
"""

from __future__ import annotations

from lakepond.plan.workload import Workload


def size(workload: Workload, generation: int) -> float:
    """The plain replay after a generation, in GB of that table."""
    transition = round(workload.spec.step_nbytes / 2**20, 2)
    return transition * workload.held(workload.per_generation * generation) / 1_000


def uploads(sizes: list[float], every: int) -> tuple[float, float]:
    """What is uploaded as it was and as meant, for the sizes after each generation."""
    as_it_was = as_meant = 0.0
    saved = 0.0
    for generation, now in enumerate(sizes, 1):
        if generation % every == 0:
            saved = now
            as_meant += saved
            as_it_was += saved  # the temporary file, beside the one below
        as_it_was += saved
    return as_it_was, as_meant
