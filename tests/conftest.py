import os

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True, derandomize=True
)
settings.register_profile(
    "soak", parent=settings.get_profile("default"), max_examples=2000, derandomize=False
)
settings.load_profile(os.environ.get("LAKEPOND_HYPOTHESIS", "default"))


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20_261_115)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under CI nothing may be skipped: a skip that would hide a missing install fails instead."""
    if os.environ.get("LAKEPOND_NO_SKIPS"):
        for item in items:
            for mark in item.iter_markers("skipif"):
                raise pytest.UsageError(f"{item.nodeid} may be skipped ({mark.kwargs.get('reason')})")
