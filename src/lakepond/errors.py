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
    │   ├── LakeReadOnly   (PermissionError)    this process may read it, and not write it
    │   ├── LakeConflict   (FileExistsError)    another writer has published that commit number
    │   ├── ForkedReplay   (RuntimeError)       written to in a forked child
    │   └── LakeTooNew     (ValueError)         written by a later version of the format
    ├── RunError           (ValueError)    something about a run's folder
    │   ├── RunNotFound    (FileNotFoundError)  no run there, or no such checkpoint
    │   ├── RunLocked      (BlockingIOError)    another process is training it
    │   ├── RunMismatch                         begun by another trainer or with other settings
    │   ├── RunCorrupt                          a checkpoint is missing a part or is not what was written
    │   └── RunNotSaved    (OSError)            training has ended, and the disk does not take its results
    ├── ConfigError        (ValueError)    settings of a trainer that cannot be
    ├── CloudError
    │   ├── CloudUnreachable    (ConnectionError)    no network, no server, or no answer in time
    │   ├── CloudRefused        (PermissionError)    credentials are missing or wrong
    │   ├── CloudNotFound       (FileNotFoundError)  no such bucket, file, lake or commit there
    │   ├── CloudConflict       (FileExistsError)    the place holds something else; nothing was overwritten
    │   ├── CloudCorrupt        (ValueError)         what is there is not what was written
    │   ├── CloudForked         (RuntimeError)       used in a forked child
    │   └── CloudClientMissing  (ImportError)        the client is not installed
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


class LakeReadOnly(LakeError, PermissionError):
    """The process may read the lake, and not write it."""


class LakeConflict(LakeError, FileExistsError):
    """Another writer has published a commit under the same number; nothing was overwritten."""


class ForkedReplay(LakeError, RuntimeError):
    """A replay that writes a lake was used to write in a child forked from the process that opened it."""


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


class RunNotSaved(RunError, OSError):
    """Training has ended, and its results could not be saved."""


class ConfigError(LakepondError, ValueError):
    """Settings of a trainer that cannot be."""


class CloudError(LakepondError):
    """Something about the cloud."""


class CloudUnreachable(CloudError, ConnectionError):
    """No network, no server, or no answer in time; it is tried again."""


class CloudRefused(CloudError, PermissionError):
    """The credentials are missing or wrong."""


class CloudNotFound(CloudError, FileNotFoundError):
    """There is no such bucket, or no such file, lake or commit in it."""


class CloudConflict(CloudError, FileExistsError):
    """The place holds something else under that name; nothing was overwritten."""


class CloudCorrupt(CloudError, ValueError):
    """What is in the cloud is not what was written."""


class CloudForked(CloudError, RuntimeError):
    """The client was used in this process before it was forked."""


class CloudClientMissing(CloudError, ImportError):
    """The client of that provider is not installed."""


class MarketDataError(LakepondError, ValueError):
    """A market panel that cannot be, or could not be had."""
