"""Which metrics share a chart, its title and unit; any other metric gets a chart of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from lakepond.report.chart import Reads, Unit

Group = Literal["learning", "storage", "time", "memory", "uploads", "inside"]


@dataclass(frozen=True)
class ChartSpec:
    """One chart for one run; for several runs, one chart per curve."""

    key: str
    title: str
    group: Group
    curves: Mapping[str, str]
    """metric and name of each line"""
    reads: Reads = "level"
    note: str = ""
    log: bool = False
    members: str = ""
    """a list with a value for each agent: drawn as thin lines"""

    @property
    def unit(self) -> Unit:
        """The unit of its metrics."""
        return unit_of(next(iter(self.curves)))


FITNESS = {
    "fitness_best": "best agent",
    "fitness_mean": "mean",
    "validation_best": "champion, validation days",
}
EVALUATION = {
    "evaluation": "the policy of the run",
    "evaluation_best": "best agent",
    "evaluation_greedy": "without random actions",
}
REPLAY = {"bytes_plain": "without deduplication", "bytes_held": "in memory", "lake_bytes": "on disk (lake)"}
PHASES = {
    "seconds_train": "training",
    "seconds_learn": "BigAgent",
    "seconds_evaluate": "evaluation",
    "seconds_fill": "fill from the lake",
    "seconds_pour": "pour into the lake",
}
VALIDATION = {"validation": "best agent", "validation_learner": "learner"}
RATE = {"env_steps_per_second": "steps", "frames_per_second": "steps, by an earlier name"}
DEVICE = {"device_bytes": "in use", "device_limit_bytes": "limit"}
AVAILABLE = {"memory_available_bytes": "available"}
DISK = {"disk_free_bytes": "free", "disk_floor_bytes": "reserve (min_free)"}
UPLOADS = {"uploaded_bytes": "sent", "pending_bytes": "waiting"}

SPREAD = "The band is one standard deviation of the population."
PLAYED = "Played in separate environments with a small epsilon."
BLOCKED = "How long a commit kept the training thread waiting; the data is written in the background."
COMPILED = "The first generation after a start includes compilation."

PANELS = (
    ChartSpec("fitness", "Fitness of the population", "learning", FITNESS, note=SPREAD),
    ChartSpec("evaluation", "Evaluation", "learning", EVALUATION, note=PLAYED, members="evaluation_agents"),
    ChartSpec("score", "Score while training", "learning", {"score": "score"}, members="score_agents"),
    ChartSpec("bytes", "Replay size", "learning", REPLAY, "ratio", "Logarithmic scale.", log=True),
    ChartSpec("validation", "Validation days", "learning", VALIDATION),
    ChartSpec("rows", "Distinct rows", "storage", {"distinct_rows": "rows"}),
    ChartSpec("held", "Time blocked on saving", "time", {"held_seconds": "blocked"}, "typical", BLOCKED),
    ChartSpec("seconds", "Time per generation", "time", {"seconds": "time"}, "typical", COMPILED),
    ChartSpec("phases", "Cumulative time by phase", "time", PHASES),
    ChartSpec("rate", "Environment steps per second", "time", RATE, "typical"),
    ChartSpec("memory", "Memory of the process", "memory", {"rss_bytes": "resident"}, "growth"),
    ChartSpec("device", "Memory of the device", "memory", DEVICE, "growth"),
    ChartSpec("available", "Available memory of the machine", "memory", AVAILABLE),
    ChartSpec("disk", "Free disk space", "storage", DISK),
    ChartSpec("uploads", "Uploads", "uploads", UPLOADS),
)

SPREADS = {"fitness_mean": "fitness_std"}
"""metrics whose standard deviation is another one"""

SKIPPED = {
    *("generation", "steps", "recorded", "seconds_left", "held_seconds_total", "train_seconds_total"),
    *("reset", "evaluation_before", "evaluation_after", "evaluation_greedy_after"),
    *("best_generation", "fitness_std", "disk_floor_at", "memory_floor_at"),
}
"""metrics that other charts or tables show"""

TITLES = {
    "q_mean": "Mean Q value",
    "mutation_std": "Mutation standard deviation",
    "learner_rank": "Rank of the injected learner",
    "value": "Mean value",
    "gradient": "Gradient norm",
    "samples": "Samples trained on",
    "big_samples": "BigAgent: samples trained on",
    "big_loss": "BigAgent: loss",
    "big_value": "BigAgent: mean value",
    "big_steps": "BigAgent: gradient steps",
    "big_pond_steps": "BigPond: steps",
}


def unit_of(metric: str) -> Unit:
    """The unit of a metric, from the end of its name."""
    if metric in REPLAY or metric.endswith(("bytes", "_bytes_per_second")):
        return "bytes"
    if metric.endswith(("percent", "_return")):
        return "percent"
    return "seconds" if metric in PHASES or metric.endswith("seconds") else ""


def title_of(metric: str) -> str:
    """A title for a metric that has no panel."""
    return TITLES.get(metric, metric.replace("_", " ").capitalize())
