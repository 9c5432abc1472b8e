"""PyTorch: batches as tensors on a device, with one copy at most.

On the CPU a tensor shares the memory that its batch was copied into by `sample`: no second copy. For a CUDA
device `sample` copies into pinned host arrays, which are used again, and the transfer is asynchronous.

Arrays are used again only when they are free: on the CPU when no tensor, view or NumPy array refers to them
any more, on CUDA when the transfer from them has completed. A tensor that the caller holds never changes.
"""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, Self

import torch

from lakepond.errors import SampleError
from lakepond.forks import ThreadPool
from lakepond.types import Array, Batch, Tree, leaves, rebuild

MOST_SPARE = 4
"""host batches that are kept to be used again"""


class BatchSource(Protocol):
    """A `Replay`, a `Lake`, or any object with such a `sample`."""

    sample: Callable[..., Batch]


def to_torch(batch: Batch, device: Any = "cpu", *, non_blocking: bool = False) -> Batch:
    """The same batch with tensors on `device` in place of NumPy arrays.

    On the CPU the tensors share the memory of the arrays: do not pass that batch as `out` to `sample` again.
    `TorchSampler` reuses memory safely.
    """
    device = torch.device(device)
    return _mapped(batch, lambda path, array: _tensor(path, array).to(device, non_blocking=non_blocking))


class TorchSampler:
    """Samples batches of one size as tensors on a device: `for batch in TorchSampler(replay, 256): ...`.

    One thread at a time may call it; another may record into the replay.
    """

    def __init__(
        self,
        source: BatchSource,
        batch_size: int,
        *,
        device: Any = "cpu",
        prefetch: bool = False,
        **options: Any,
    ) -> None:
        """`options`: passed to `source.sample`, such as `n_step`, `gamma`, `beta`, `rng`.

        `prefetch`: choose and copy the next batch on a thread while the caller uses this one. It is drawn
        before the steps and priorities that the caller adds meanwhile.
        """
        if "out" in options:
            raise SampleError("TorchSampler reuses memory by itself; leave out= away.")
        self.source, self.batch_size = source, batch_size
        self.device = torch.device(device)
        self._options = options
        self._spare = _Spare(pinned=self.device.type == "cuda", staged=self.device.type != "cpu")
        self._takes_out = "out" in inspect.signature(source.sample).parameters
        self._pool = ThreadPool(1, "lakepond-prefetch") if prefetch else None
        self._next: Future[Batch] | None = None

    def sample(self, **options: Any) -> Batch:
        """The next batch; `options` replace those given before, from the next batch drawn on."""
        if options:
            self._options = {**self._options, **options}
            if options.keys() != {"beta"}:  # shapes may differ
                self._spare.clear()
                self._next = None
        ready, self._next = self._next, None
        host = self._draw() if ready is None else ready.result()
        if self._pool is not None:
            self._next = self._pool.submit(self._draw)
        return self._spare.deliver(host, self.device)

    def _draw(self) -> Batch:
        """A batch in host memory without other references."""
        free = self._spare.take() if self._takes_out else None
        more = {} if free is None else {"out": free}
        return self.source.sample(self.batch_size, **self._options, **more)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            yield self.sample()

    def close(self) -> None:
        """End the thread of `prefetch`."""
        if self._pool is not None:
            self._pool.shutdown()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy samples the copied source with the same options, from memory and a thread of its own."""
        settings = {"device": str(self.device), "prefetch": self._pool is not None, **self._options}
        return _sampler, (self.source, self.batch_size, settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _sampler(source: BatchSource, batch_size: int, settings: dict[str, Any]) -> TorchSampler:
    return TorchSampler(source, batch_size, **settings)


class _Spare:
    """Host batches that were delivered, to be overwritten once they are free."""

    def __init__(self, *, pinned: bool, staged: bool) -> None:
        """`staged`: tensors are copies on another device, so host memory is free after the transfer."""
        self._pinned, self._staged = pinned, staged
        self._lock = threading.Lock()
        self._batches: list[tuple[Batch, list[Array], list[int], Any]] = []

    def clear(self) -> None:
        with self._lock:
            self._batches = []

    def take(self) -> Batch | None:
        """A batch whose arrays have no other reference and no pending transfer; None if there is none."""
        with self._lock:
            for i, (batch, arrays, counts, transfer) in enumerate(self._batches):
                if _reference_counts(arrays) == counts and (transfer is None or transfer.query()):
                    del self._batches[i]
                    return batch
        return None

    def deliver(self, host: Batch, device: Any) -> Batch:
        """The tensors of a host batch, which is kept to be used again."""
        if self._pinned and not all(_tensor(path, array).is_pinned() for path, array in _arrays(host)):
            host = _mapped(host, _pin)
        arrays = [array for _, array in _arrays(host)]
        counts = _reference_counts(arrays)  # without tensors
        batch = _mapped(host, lambda path, array: self._send(path, array, device))
        transfer = None
        if self._pinned:
            transfer = torch.cuda.Event()
            transfer.record(torch.cuda.current_stream(device))
        with self._lock:
            self._batches = [*self._batches[-MOST_SPARE + 1 :], (host, arrays, counts, transfer)]
        return batch

    def _send(self, path: str, array: Array, device: Any) -> Any:
        tensor = _tensor(path, array)
        return tensor.to(device, non_blocking=self._pinned, copy=True) if self._staged else tensor


def _arrays(batch: Batch) -> list[tuple[str, Array]]:
    """The arrays of a batch with their paths, without observations left out."""
    fields = zip(Batch._fields, batch, strict=True)
    return [(path, leaf) for name, tree in fields for path, leaf in leaves(tree, name) if leaf is not None]


def _reference_counts(arrays: list[Array]) -> list[int]:
    """How many references each array has; a tensor, or a view of either, is one more."""
    return [sys.getrefcount(arrays[i]) for i in range(len(arrays))]


def _mapped(batch: Batch, change: Callable[[str, Array], Any]) -> Batch:
    """A batch with `change(path, array)` in place of each array; observations left out stay None."""

    def field(name: str, tree: Tree) -> Tree:
        changed = [None if leaf is None else change(path, leaf) for path, leaf in leaves(tree, name)]
        return rebuild(tree, iter(changed).__next__)

    return Batch(*map(field, Batch._fields, batch))


def _tensor(path: str, array: Array) -> Any:
    """A tensor that shares the memory of an array."""
    try:
        return torch.from_numpy(array)
    except TypeError:
        raise SampleError(
            f"{path} is {array.dtype}, which PyTorch has no tensors for; record it as another dtype."
        ) from None


def _pin(path: str, array: Array) -> Array:
    """A pinned copy of an array."""
    pinned: Array = _tensor(path, array).pin_memory().numpy()
    return pinned
