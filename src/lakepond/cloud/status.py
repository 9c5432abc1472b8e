"""What is on its way to the cloud, and what is not there yet."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class UploadStatus:
    """How far the uploads are, at one moment."""

    state: str
    """idle; sending; waiting: something failed and will be tried again; failed: it needs somebody"""
    uploaded: int
    """files that arrived and were checked, since this was opened"""
    uploaded_bytes: int
    pending: int
    """files that are known not to be there yet"""
    pending_bytes: int
    failed: int
    """files that were given up; the next push tries them again"""
    lag_seconds: float
    """how long the oldest of what is pending has been waiting; 0.0 if nothing is"""
    bytes_per_second: float
    last_error: str | None
    """the last thing that went wrong, without secrets; None once all is well again"""
    pushed: int | None = None
    """the newest commit of the lake that is whole in the cloud, as far as it is known"""
    over_budget_bytes: int = 0
    """what the lake has on this disk above its local budget, because it is not in the cloud yet"""
    conditions: bool | None = None
    """whether the server notices two runs that write to one place; None: not known yet"""

    @property
    def done(self) -> bool:
        """Whether everything that was asked for is in the cloud."""
        return not self.pending and not self.failed and self.state == "idle"

    @property
    def eta_seconds(self) -> float | None:
        """How long the rest will take at this rate; None if that is not known."""
        if not self.pending_bytes:
            return 0.0
        return self.pending_bytes / self.bytes_per_second if self.bytes_per_second else None

    def __str__(self) -> str:
        told = f"{self.state}: {self.uploaded} files, {in_words(self.uploaded_bytes)} sent"
        if self.pending:
            told += f", {self.pending} files, {in_words(self.pending_bytes)} to go"
        if self.bytes_per_second:
            told += f", {in_words(self.bytes_per_second)}/s"
        if self.pending and self.eta_seconds is not None:
            told += f", about {self.eta_seconds:,.0f} s left"
        if self.failed:
            told += f", {self.failed} files failed"
        return told + (f" ({self.last_error})" if self.last_error else "")


def in_words(size: float) -> str:
    """A number of bytes as people say it."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:,.0f} B" if unit == "B" else f"{size:,.1f} {unit}"
        size /= 1000
    return f"{size:,.1f} TB"
