"""Everything lakepond raises on purpose.

Each error is one sentence with the numbers in it and the next step, and is also the builtin
that a stranger would catch::

    LakepondError
    ├── SpecError          (ValueError)    a declaration that cannot be: a shape, a dtype, a capacity
    ├── RecordError        (ValueError)    what was handed to `record` does not fit; nothing was recorded
    ├── SampleError        (ValueError)    what was asked of `sample` cannot be given
    │   └── TooFewSteps    (LookupError)   not enough recorded yet
    ├── UnknownStream      (LookupError)   no live step belongs to that stream
    ├── ReplayClosed       (RuntimeError)  used after `close()`
    ├── LakeError
    │   ├── LakeNotFound   (FileNotFoundError)  no lake there, or no such commit
    │   ├── LakeLocked     (BlockingIOError)    another process is writing it
    │   ├── LakeCorrupt    (ValueError)         a file is missing or not what was written
    │   ├── LakeFull       (OSError)            the disk has reached the floor; the last commit is whole
    │   └── LakeTooNew     (ValueError)         written by a later version of the format
    ├── RunError           (ValueError)    something about a run's folder
    │   ├── RunNotFound    (FileNotFoundError)  no run there, or no such checkpoint
    │   ├── RunLocked      (BlockingIOError)    another process is training it
    │   ├── RunMismatch                         begun by another trainer or with other settings
    │   └── RunCorrupt                          a checkpoint is missing a part or is not what was written
    └── MarketDataError    (ValueError)    a market panel that cannot be, or could not be had
"""


class LakepondError(Exception):
    """The root: `except LakepondError` catches all of the below and nothing else."""


class SpecError(LakepondError, ValueError):
    """A declaration that cannot be: a shape, a dtype, a capacity."""


class RecordError(LakepondError, ValueError):
    """What was handed to `record` does not fit the spec; nothing was recorded."""


class SampleError(LakepondError, ValueError):
    """What was asked of `sample` cannot be given."""


class TooFewSteps(SampleError, LookupError):
    """Not enough steps have been recorded for what was asked."""


class UnknownStream(LakepondError, LookupError):
    """No live step belongs to that stream."""


class ReplayClosed(LakepondError, RuntimeError):
    """The replay was used after `close()`."""


class LakeError(LakepondError):
    """Something about a lake."""


class LakeNotFound(LakeError, FileNotFoundError):
    """There is no lake there, or no such commit."""


class LakeLocked(LakeError, BlockingIOError):
    """Another process is writing the lake."""


class LakeCorrupt(LakeError, ValueError):
    """A file of the lake is missing, or not what was written."""


class LakeFull(LakeError, OSError):
    """The disk has reached the floor; the last commit is whole."""


class LakeTooNew(LakeError, ValueError):
    """The lake was written by a later version of the format."""


class RunError(LakepondError, ValueError):
    """Something about a run's folder."""


class RunNotFound(RunError, FileNotFoundError):
    """There is no run there, or no such checkpoint."""


class RunLocked(RunError, BlockingIOError):
    """Another process is training the run."""


class RunMismatch(RunError):
    """The run was begun by another trainer or with other settings."""


class RunCorrupt(RunError):
    """A checkpoint is missing a part, or is not what was written."""


class MarketDataError(LakepondError, ValueError):
    """A market panel that cannot be, or could not be had."""
