"""Daily prices of many instruments, the nine features of them, and a market to trade on.

    synthetic(days, instruments)  ─┐
    fetch_pse(out)                 ├──▶ Panel ──features──▶ (days, instruments, 9) float32
    fetch_sp500(out)               │      │
    fetch_power(out)               │      │
    read_market(file)             ─┘      └──▶ History.of(panel, rules) ──▶ MarketEnv, functional (JAX)

The synthetic panel is the default: it needs no network and is exact by seed. Real prices are
fetched by choice and never shipped. What needs Gymnasium or JAX is imported when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lakepond.envs.market.features import FEATURES, features
from lakepond.envs.market.files import inspect, read_market
from lakepond.envs.market.history import History, Splits
from lakepond.envs.market.panel import Panel
from lakepond.envs.market.sources import fetch_power, fetch_pse, fetch_sp500
from lakepond.envs.market.synthetic import synthetic
from lakepond.envs.market_rules import Rules

if TYPE_CHECKING:
    from lakepond.envs.market.environment import MarketEnv

__all__ = [
    "Panel",
    "synthetic",
    "features",
    "FEATURES",
    "fetch_pse",
    "fetch_sp500",
    "fetch_power",
    "read_market",
    "inspect",
    "History",
    "Splits",
    "Rules",
    "MarketEnv",
]


def __getattr__(name: str) -> Any:
    if name == "MarketEnv":
        return import_module("lakepond.envs.market.environment").MarketEnv
    raise AttributeError(f"module 'lakepond.envs.market' has no attribute {name!r}")
