"""The exceptions of lakepond.

Every message is one sentence with the relevant numbers and a next step. Every class is a `LakepondError` and
also derives from the builtin exception that fits best.
"""


class LakepondError(Exception):
    """Base class of all errors that lakepond raises."""


class SpecError(LakepondError, ValueError):
    """An invalid declaration: a shape, a dtype, a capacity."""


class RecordError(LakepondError, ValueError):
    """The values passed to `record` do not match the spec; nothing was recorded."""


class SampleError(LakepondError, ValueError):
    """`sample` was called with invalid arguments."""


class TooFewSteps(SampleError, LookupError):
    """Fewer steps have been recorded than were requested."""


class SampleTimeout(TooFewSteps, TimeoutError):
    """`sample` of a followed lake timed out waiting for steps, or for the limit of samples per insert."""


class UnknownStream(LakepondError, LookupError):
    """No live step belongs to that stream."""


class ReplayClosed(LakepondError, RuntimeError):
    """The replay was used after `close()`."""


class LakeError(LakepondError):
    """Base class of errors about a lake; also raised by calls that need a lake or cloud that there is not."""


class LakeNotFound(LakeError, FileNotFoundError):
    """The path does not contain a lake, or the lake does not have that commit."""


class NoLakeToOpen(LakeNotFound, SpecError):
    """`Replay.open` found no lake and was given no spec to create one."""


class LakeNotAFolder(LakeError, NotADirectoryError):
    """The path of a lake, or a parent of it, is a file."""


class LakeLocked(LakeError, BlockingIOError):
    """Another process is writing the lake."""


class LakeCorrupt(LakeError, ValueError):
    """A file of the lake is missing or damaged."""


class LakeFull(LakeError, OSError):
    """The disk is full, a quota is exceeded, or less than `min_free` is free; the last commit is intact.

    `errno` is ENOSPC or EDQUOT.
    """


class LakeReadOnly(LakeError, PermissionError):
    """The process may only read the lake."""


class LakeConflict(LakeError, FileExistsError):
    """Another writer has published a commit under the same number; nothing was overwritten."""


class ForkedReplay(LakeError, RuntimeError):
    """A forked child tried to write to a lake that its parent process opened."""


class LakeTooNew(LakeError, ValueError):
    """The lake was written by a later version of the format."""


class RunError(LakepondError, ValueError):
    """Base class of errors about a run folder."""


class RunNotFound(RunError, FileNotFoundError):
    """The path does not contain a run, or the run does not have that checkpoint."""


class RunLocked(RunError, BlockingIOError):
    """Another process is training the run."""


class RunMismatch(RunError):
    """The run was started by another trainer or with other settings."""


class RunCorrupt(RunError):
    """A file of a checkpoint is missing or damaged."""


class RunNotSaved(RunError, OSError):
    """Training has ended, but its results could not be saved."""


class ConfigError(LakepondError, ValueError):
    """Invalid settings of a trainer."""


class CloudError(LakepondError):
    """Base class of errors about cloud storage."""


class CloudUnreachable(CloudError, ConnectionError):
    """The server could not be reached or did not answer in time; background uploads are retried."""


class CloudRefused(CloudError, PermissionError):
    """The credentials are missing or wrong."""


class CloudNotFound(CloudError, FileNotFoundError):
    """The bucket does not exist, or does not contain that file, lake or commit."""


class CloudConflict(CloudError, FileExistsError):
    """The bucket contains something else under that name; nothing was overwritten."""


class CloudCorrupt(CloudError, ValueError):
    """A file in the cloud is damaged."""


class CloudForked(CloudError, RuntimeError):
    """The cloud client was created before this process was forked and cannot be used in it."""


class CloudClientMissing(CloudError, ImportError):
    """The client library for that provider is not installed."""


class ClusterError(LakepondError, RuntimeError):
    """There is no Ray cluster, or its versions or resources do not fit."""


class RayMissing(ClusterError, ImportError):
    """Ray is not installed: `pip install 'lakepond[ray]'`."""


class MarketDataError(LakepondError, ValueError):
    """An invalid market panel, or one that could not be downloaded."""
