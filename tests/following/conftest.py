"""Fixtures of the tests of followers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

import lakepond as lp
from lakepond.flow.following.follower import Follower


@pytest.fixture
def paused(monkeypatch) -> Callable[..., lp.FollowedReplay]:
    """Followers that look for commits only when `poll` is called."""
    monkeypatch.setattr(Follower, "_run", lambda self: self._stop.wait())
    return partial(lp.Replay.follow, poll_every="1ms")
