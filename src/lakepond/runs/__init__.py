"""A run is a folder.

    runs/demo/
      config.json            trainer, settings, machine and versions, and the same of each session
      metrics.jsonl          the log, one line of JSON each; cut back to the checkpoint on resume
      checkpoints/00000012/  agents as safetensors; state.json, written last; 00000000: before training
      market.json            of a run on a market: its symbols, dates and closing prices
      lake/                  all experience; a checkpoint names the commit it belongs to
      lock                   held by the process that trains
      old-20260131T120000Z/  what `--start-over` moved away; not pushed

Written by one process, read by any: `status`, `report` and `evaluate` open the same folder, running or dead.
"""

from lakepond.runs.checkpoints import Checkpoint
from lakepond.runs.run import Run

__all__ = ["Run", "Checkpoint"]
