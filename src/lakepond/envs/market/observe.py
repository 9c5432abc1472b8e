"""Turn features into rows without units, normalised by the training days.

    features(panel)  ──relative──▶  percent and indices  ──(x - mean) / std──▶  rows (days, instruments, 9)

`relative` looks at a day and the one before it, the statistics at the training days: row t never depends on a
day after max(t, the last training day), and never changes. That is why rows repeat from window to window, and
why the replay keeps each only once.

    0 open   100 log(open / close)              4 rsi          rsi - 50
    1 close  100 log(close / close before)      5 macd         100 macd / close
    2 high   100 log(high / close)              6 macd_signal  100 macd_signal / close
    3 low    100 log(low / close)               7, 8 and any further feature: as they are

What is not known (before listing, while an indicator warms up) becomes 0, the mean.

`summaries` is the fixed first layer of the networks: for each window, instrument and feature the mean over
several spans and the standard deviation, computed once per day instead of once per step.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

CLIP = 8.0
"""rows are clipped at this many standard deviations"""
KNOWN_DAYS = 60
"""an instrument with fewer training days than this is normalised by the statistics of all"""
SPANS = (1, 5, 21, 63, 252)
"""days over which a summary takes means; the whole context is the last one"""

Floats = npt.NDArray[np.float32]


def relative(features: Floats) -> npt.NDArray[np.float64]:
    """Features without units of price; NaN stays NaN."""
    table = features.astype(np.float64)
    opened, close, high, low = (table[..., i] for i in range(4))
    before = np.vstack([np.full_like(close[:1], np.nan), close[:-1]])
    columns = [np.log(price / close) * 100 for price in (opened, high, low)]
    columns.insert(1, np.log(close / before) * 100)
    if table.shape[-1] > 4:
        columns.append(table[..., 4] - 50)
    columns += [table[..., i] / close * 100 for i in (5, 6) if i < table.shape[-1]]
    columns += [table[..., i] for i in range(7, table.shape[-1])]
    return np.stack(columns, axis=-1)


def normalise(table: npt.NDArray[np.float64], train_stop: int) -> Floats:
    """Rows with mean 0 and variance 1 over days [0, train_stop), by instrument and feature; 0 for NaN."""
    known = np.isfinite(table)
    table = np.where(known, table, 0.0)
    train, there = table[:train_stop], known[:train_stop]
    count = there.sum(axis=0)
    mean = train.sum(axis=0) / np.maximum(count, 1)
    spread = np.sqrt((((train - mean) * there) ** 2).sum(axis=0) / np.maximum(count, 1))
    every = np.maximum(there.sum(axis=(0, 1)), 1)
    usual_mean = train.sum(axis=(0, 1)) / every
    usual_spread = np.sqrt((((train - usual_mean) * there) ** 2).sum(axis=(0, 1)) / every)
    own = (count >= KNOWN_DAYS) & (spread > 1e-6)
    mean = np.where(own, mean, usual_mean)
    spread = np.where(own, spread, np.maximum(usual_spread, 1e-6))
    rows = np.clip((table - mean) / spread, -CLIP, CLIP)
    return np.where(known, rows, 0.0).astype(np.float32)


def spans(context: int) -> tuple[int, ...]:
    """The spans of a summary, in days."""
    return (*(span for span in SPANS if span < context), context)


def summaries(rows: Floats, context: int) -> Floats:
    """(days, instruments, features x (spans + 1)): of the window that ends with each day.

    For each span the sum over its days, divided by the square root of their number, so that noise has the
    same size at every span; then the standard deviation over the context. The first context - 1 days have no
    window and are zero.
    """
    days, instruments, width = rows.shape
    parts = spans(context)
    out = np.zeros((days, instruments, width * (len(parts) + 1)), np.float32)
    for feature in range(width):  # one at a time: a running sum in float64 is large
        column = rows[..., feature].astype(np.float64)
        total = np.vstack([np.zeros_like(column[:1]), column.cumsum(axis=0)])
        squares = np.vstack([np.zeros_like(column[:1]), (column**2).cumsum(axis=0)])
        ends = np.arange(context, days + 1)
        for k, span in enumerate(parts):
            out[context - 1 :, :, k * width + feature] = (total[ends] - total[ends - span]) / np.sqrt(span)
        mean = (total[ends] - total[ends - context]) / context
        variance = (squares[ends] - squares[ends - context]) / context - mean**2
        out[context - 1 :, :, len(parts) * width + feature] = np.sqrt(np.maximum(variance, 0))
    return out
