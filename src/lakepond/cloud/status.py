"""Progress of uploads to the cloud."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakepond import formats


@dataclass(frozen=True)
class UploadStatus:
    """Progress of uploads at one moment."""

    state: str
    """`idle`; `sending`; `waiting`: an upload failed and will be retried; `failed`: the user must act"""
    uploaded: int
    """files uploaded and verified since the replay was opened"""
    uploaded_bytes: int
    pending: int
    """files not uploaded yet"""
    pending_bytes: int
    failed: int
    """files whose upload was given up; the next push retries them"""
    lag_seconds: float
    """age of the oldest pending upload, in seconds; 0.0 if none is pending"""
    bytes_per_second: float
    last_error: str | None
    """the last error, without secrets; None after a later success"""
    pushed: int | None = None
    """number of the newest commit known to be complete in the cloud"""
    over_budget_bytes: int = 0
    """bytes on this disk above `local_budget` that cannot be deleted because they are not uploaded yet"""
    conditions: bool | None = None
    """whether the server supports conditional puts, which detect two runs that write to the same location;
    None: not known yet"""

    @property
    def done(self) -> bool:
        """Whether all requested uploads have completed."""
        return not self.pending and not self.failed and self.state == "idle"

    @property
    def eta_seconds(self) -> float | None:
        """Estimated seconds until all uploads complete; None if the rate is not known."""
        if not self.pending_bytes:
            return 0.0
        return self.pending_bytes / self.bytes_per_second if self.bytes_per_second else None

    def __str__(self) -> str:
        text = f"{self.state}: {self.uploaded} files, {formats.size(self.uploaded_bytes)} uploaded"
        if self.pending:
            text += f", {self.pending} files, {formats.size(self.pending_bytes)} left"
        if self.bytes_per_second:
            text += f", {formats.size(self.bytes_per_second)}/s"
        if self.pending and self.eta_seconds is not None:
            text += f", about {self.eta_seconds:,.0f} s left"
        if self.failed:
            text += f", {self.failed} files failed"
        return text + (f" ({self.last_error})" if self.last_error else "")


def together(statuses: Sequence[UploadStatus]) -> UploadStatus:
    """The progress of several uploads as one; of the state, the one that needs the most attention."""
    if len(statuses) == 1:
        return statuses[0]
    states = [status.state for status in statuses]
    return UploadStatus(
        state=next(state for state in ("failed", "waiting", "sending", "idle") if state in states),
        uploaded=sum(status.uploaded for status in statuses),
        uploaded_bytes=sum(status.uploaded_bytes for status in statuses),
        pending=sum(status.pending for status in statuses),
        pending_bytes=sum(status.pending_bytes for status in statuses),
        failed=sum(status.failed for status in statuses),
        lag_seconds=max(status.lag_seconds for status in statuses),
        bytes_per_second=sum(status.bytes_per_second for status in statuses),
        last_error=next((status.last_error for status in statuses if status.last_error), None),
        pushed=max((status.pushed for status in statuses if status.pushed is not None), default=None),
        over_budget_bytes=sum(status.over_budget_bytes for status in statuses),
        conditions=statuses[-1].conditions,
    )
