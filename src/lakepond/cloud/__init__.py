"""The cloud: a copy elsewhere, on any object store, whose every byte was checked.

    place ──▶ credentials ──▶ bucket (local, memory, remote) ──▶ store ──▶ uploader

A bucket does one try of one thing. A store checks what was written. An uploader tries again, in the
background, for as long as the process lives. The arrows between lake and cloud are in `flow/`.
"""

from lakepond.cloud.place import Cloud
from lakepond.cloud.signals import on_sigterm
from lakepond.cloud.status import UploadStatus

__all__ = ["Cloud", "UploadStatus", "on_sigterm"]
