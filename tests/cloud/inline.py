"""An uploader without threads, for models that repeat a run from its seed."""

from __future__ import annotations

from lakepond.cloud.uploader import Upload
from lakepond.errors import CloudConflict, CloudError


class Inline:
    """Sends on the calling thread; a file that fails is tried again some times."""

    def __init__(self, tries: int) -> None:
        self._tries = tries
        self.errors = 0

    def submit(self, *uploads: Upload) -> None:
        for upload in uploads:
            for _ in range(self._tries):
                try:
                    upload.send()
                    upload.done()
                    break
                except CloudConflict as error:
                    upload.failed(error)
                    break
                except CloudError as error:
                    self.errors, last = self.errors + 1, error
            else:
                upload.failed(last)
