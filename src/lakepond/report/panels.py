"""Which metrics are drawn together, under which title, in which unit; any other gets a chart of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lakepond.report.chart import Unit

Group = Literal["learning", "storage", "time", "memory", "uploads", "inside"]


@dataclass(frozen=True)
class Curve:
    """A metric as one line of a panel."""

    metric: str
    name: str
    dash: bool = False
    spread: str = ""
    """a metric that is its standard deviation"""


@dataclass(frozen=True)
class Panel:
    """One chart for one run; for several runs, one chart a curve."""

    key: str
    title: str
    group: Group
    curves: tuple[Curve, ...]
    unit: Unit = ""
    log: bool = False
    members: str = ""
    """a list that has a value for each agent: drawn as thin lines"""
    note: str = ""


PANELS = (
    Panel(
        "fitness",
        "Fitness of the population",
        "learning",
        (
            Curve("fitness_best", "best agent"),
            Curve("fitness_mean", "mean of the population", spread="fitness_std"),
            Curve("validation_best", "champion on validation days", dash=True),
        ),
        note="The band is one standard deviation of the population's fitness.",
    ),
    Panel(
        "evaluation",
        "Evaluation",
        "learning",
        (
            Curve("evaluation", "mean of the agents"),
            Curve("evaluation_best", "best agent", dash=True),
        ),
        members="evaluation_agents",
        note="Separate environments, greedy but for a small epsilon.",
    ),
    Panel("score", "Score while training", "learning", (Curve("score", "score"),)),
    Panel(
        "bytes",
        "The replay: plainly, in memory, on disk",
        "storage",
        (
            Curve("bytes_plain", "plainly"),
            Curve("bytes_held", "in memory"),
            Curve("lake_bytes", "on disk"),
        ),
        unit="bytes",
        log=True,
        note="Plainly: every step with both observations. The scale is logarithmic.",
    ),
    Panel("rows", "Distinct rows", "storage", (Curve("distinct_rows", "rows"),)),
    Panel(
        "held",
        "Training held by saving",
        "time",
        (Curve("held_seconds", "held"),),
        unit="seconds",
        note="How long a commit kept the training thread waiting; writing goes on in the background.",
    ),
    Panel("seconds", "Time of a generation", "time", (Curve("seconds", "time"),), unit="seconds"),
    Panel(
        "phases",
        "Time by phase, in all so far",
        "time",
        (
            Curve("seconds_train", "training"),
            Curve("seconds_learn", "big agent learns"),
            Curve("seconds_evaluate", "evaluation"),
            Curve("seconds_fill", "filling from the lake"),
            Curve("seconds_pour", "pouring into the lake"),
        ),
        unit="seconds",
    ),
    Panel("rate", "Frames a second", "time", (Curve("frames_per_second", "frames"),)),
    Panel("memory", "Memory of the process", "memory", (Curve("rss_bytes", "resident"),), unit="bytes"),
    Panel(
        "device",
        "Memory of the device",
        "memory",
        (Curve("device_bytes", "in use"), Curve("device_limit_bytes", "limit", dash=True)),
        unit="bytes",
    ),
    Panel(
        "available",
        "Memory that the machine has left",
        "memory",
        (Curve("memory_available_bytes", "available"),),
        unit="bytes",
    ),
    Panel(
        "disk",
        "Disk that the machine has left",
        "storage",
        (Curve("disk_free_bytes", "free"), Curve("disk_floor_bytes", "floor", dash=True)),
        unit="bytes",
    ),
    Panel(
        "uploads",
        "Uploads",
        "uploads",
        (Curve("uploaded_bytes", "sent"), Curve("pending_bytes", "waiting", dash=True)),
        unit="bytes",
    ),
)

SKIPPED = frozenset(
    {
        "generation",
        "fitness_std",
        "seconds_left",
        "held_seconds_total",
        "train_seconds_total",
        "best_generation",
        "steps",
        "recorded",
        "disk_floor_at",
        "memory_floor_at",
    }
)
"""metrics that other charts or tables tell already"""

TITLES = {
    "actor_loss": "Loss of the actor",
    "critic_loss": "Loss of the critic",
    "q_mean": "Mean of the critic's values",
    "gradient_steps": "Gradient steps",
    "mutation_std": "Strength of mutation",
    "learner_rank": "Rank of the injected learner",
    "loss": "Loss",
    "value": "Mean of the values",
    "gradient": "Norm of the gradient",
    "epsilon": "Epsilon",
    "episodes": "Episodes finished",
    "samples": "Samples learned from",
    "big_samples": "Samples the big agent learned from",
    "big_loss": "Loss of the big agent",
    "big_value": "Mean of the big agent's values",
    "big_steps": "Gradient steps of the big agent",
    "big_pond_steps": "Steps in the big pond",
    "lake_steps": "Steps in the lake",
    "cloned": "Agents that began again",
}


def unit_of(metric: str) -> Unit:
    """Told from the end of its name."""
    if metric.endswith(("bytes", "_bytes_per_second")):
        return "bytes"
    if metric.endswith(("percent", "_return")):
        return "percent"
    return "seconds" if metric.endswith("seconds") else ""


def title_of(metric: str) -> str:
    """For people."""
    return TITLES.get(metric, metric.replace("_", " ").capitalize())
