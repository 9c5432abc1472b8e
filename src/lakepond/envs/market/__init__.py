"""Daily prices of many instruments, and the nine features a trading agent looks at.

    synthetic(days, instruments)  ─┐
    fetch_pse(out)                 ├──▶ Panel ──features──▶ (days, instruments, 9) float32
    fetch_sp500(out)              ─┘

The synthetic panel is the default: it needs no network and is exact by seed. Real prices are
fetched by choice and never shipped.
"""

from lakepond.envs.market.features import FEATURES, features
from lakepond.envs.market.panel import Panel
from lakepond.envs.market.sources import fetch_pse, fetch_sp500
from lakepond.envs.market.synthetic import synthetic

__all__ = ["Panel", "synthetic", "features", "FEATURES", "fetch_pse", "fetch_sp500"]
