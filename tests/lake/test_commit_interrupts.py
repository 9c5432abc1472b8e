"""Ctrl-C at any moment of a commit: its steps are handed over, or the next commit takes them."""

from __future__ import annotations

import linecache
import sys
from types import FrameType
from typing import Any

import numpy as np
import pytest
from test_lake import agrees, record, spec_of

import lakepond as lp

WORLD = "dict and tuple"
FILES = ("flow/pond_and_lake.py", "flow/pond_to_lake.py", "lake/background.py", "lakepond/replay.py")


class Interrupt:
    """Raises KeyboardInterrupt before the n-th line of a hand-over that is run, like a signal."""

    def __init__(self, line: int) -> None:
        self.left, self.raised = line, False

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(FILES):
            return None
        if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
            return self  # a signal does not come between a block and its end, a trace does
        if event in ("line", "return") and not self.raised:  # also between a result and its caller
            self.left -= 1
            if self.left < 0:
                self.raised = True
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("wait", [True, False])
def test_no_step_is_lost_or_there_twice(tmp_path, wait):
    """Every line in turn, in one and the same lake, with steps recorded before, after and in between."""
    n, line, interrupt = 0, 0, Interrupt(0)
    interrupt.raised = True
    with lp.Replay.open(tmp_path / "lake", spec_of(WORLD), capacity=40, alpha=0.6) as replay:
        while interrupt.raised:
            record(replay, WORLD, n, n + 2)
            n += 2
            replay.update_priorities([n - 1], [float(n)])
            interrupt = Interrupt(line)
            sys.settrace(interrupt)
            try:
                replay.commit(wait=wait)
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(None)
            line += 1
            if line % 3 == 0:
                assert replay.commit().recorded == n
        weights = replay._pond.priorities.weights(np.arange(40))
    assert line > 50
    with lp.Replay.open(tmp_path / "lake", capacity=40, alpha=0.6) as again:
        assert (again._pond.priorities.weights(np.arange(40)) == weights).all()
    with lp.Lake.open(tmp_path / "lake") as lake:
        assert len(lake) == n
        lake.verify()
        batch = lake.steps(0, n)
        for i in range(n):
            agrees(batch, i, WORLD)
