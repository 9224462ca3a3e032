"""Copies batches to the GPU beside the computation: what `ullage.prefetch` is.

    for batch in ullage.prefetch(loader):   # tensors on the GPU
        step(batch)

Each batch is pinned and copied on a stream of its own; the stream that computes waits for it there,
the program does not. A loader whose batches come from worker processes is read ahead by a thread.
One that works in this process is read when the program asks, and by no thread: read earlier, it
would draw its random numbers before those of the step, and the program's results would change.
"""

from __future__ import annotations

import copy
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ullage.players.inside.steps import batch_waits

if TYPE_CHECKING:
    import torch

Batch = TypeVar("Batch")
_Replace = Callable[["torch.Tensor"], "torch.Tensor"]
_AHEAD = 2


class Prefetch(Generic[Batch]):
    """The batches of a loader, in its order, with their tensors on the GPU.

    Tensors in dicts, lists and tuples are copied; all else is passed on unchanged. It can be
    iterated again, and has the loader's length. An exception of the loader is raised where its
    batch would have come. Without CUDA the loader's own batches come.

    Args:
        loader: such as a DataLoader.
        device: the GPU; None: the current one.
        ahead: how many batches are read before they are asked for, each of which takes its memory
            on the GPU; None: 2 where `loader.num_workers` is not 0, else 0. With 1 or more the
            loader runs in a thread while it is iterated.

    Raises:
        SpecError: `ahead` is below 0.
    """

    def __init__(
        self, loader: Iterable[Batch], *, device: int | str | None = None, ahead: int | None = None
    ) -> None:
        if ahead is None:
            ahead = _AHEAD if getattr(loader, "num_workers", 0) else 0
        if ahead < 0:
            from ullage.ground.errors import SpecError

            raise SpecError(f"ahead={ahead} is not a number of batches; expected 0 or more")
        self.loader = loader
        self.ahead = ahead
        self._device = device

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Batch]:
        import torch

        batches = iter(self.loader)  # here, as it may draw random numbers
        if not torch.cuda.is_available():
            return batches
        mover = _Mover(torch, torch.device("cuda", torch.cuda.current_device())
                       if self._device is None else torch.device(self._device))  # fmt: skip
        return _read_ahead(batches, mover, self.ahead) if self.ahead else map(mover.move, batches)


class _Mover:
    """Copies batches to a GPU on a stream of its own."""

    def __init__(self, torch: ModuleType, device: torch.device) -> None:
        self._torch: Any = torch
        self._device = device
        self._stream = self._torch.cuda.Stream(device)

    def move(self, batch: Batch) -> Batch:
        """The batch on the GPU, for the stream that computes now."""
        return self.hand_over(*self.copy(batch))

    def copy(self, batch: Batch) -> tuple[Batch, torch.cuda.Event]:
        """Begins to copy; the event is when it has ended."""
        with self._torch.cuda.stream(self._stream):
            on_gpu = _replace_tensors(self._torch.Tensor, batch, self._copy_tensor)
            return on_gpu, self._stream.record_event()

    def _copy_tensor(self, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            return tensor
        is_dense = tensor.layout is self._torch.strided
        source = tensor.pin_memory() if is_dense and not tensor.is_pinned() else tensor
        return source.to(self._device, non_blocking=True)

    def hand_over(self, batch: Batch, is_copied: torch.cuda.Event) -> Batch:
        """Lets the current stream wait for the copy, and the allocator know of that stream."""
        current = self._torch.cuda.current_stream(self._device)
        current.wait_event(is_copied)

        def note_stream(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.is_cuda and tensor.layout is self._torch.strided:
                tensor.record_stream(current)
            return tensor

        return _replace_tensors(self._torch.Tensor, batch, note_stream)


def _replace_tensors(tensor_type: type, value: Batch, replace: _Replace) -> Batch:
    """The same nest of dicts, lists and tuples with other tensors."""
    return cast("Batch", _replaced(tensor_type, value, replace))


def _replaced(tensor_type: type, value: object, replace: _Replace) -> object:
    if isinstance(value, tensor_type):
        return replace(value)
    if isinstance(value, Mapping):
        items = {name: _replaced(tensor_type, item, replace) for name, item in value.items()}
        if type(value) is dict:
            return items
        mapping: Any = copy.copy(value)  # such as transformers' BatchEncoding
        for name, item in items.items():
            mapping[name] = item
        return mapping
    # A PackedSequence, which is a tuple, knows itself what of it belongs on the GPU.
    if isinstance(value, (list, tuple)) and not hasattr(value, "to"):
        entries = [_replaced(tensor_type, item, replace) for item in value]
        kind: Any = type(value)
        return kind(*entries) if hasattr(value, "_fields") else kind(entries)
    return value


class _Reader(threading.Thread):
    """Reads a loader ahead: (batch, event) or the exception that ended it, in order."""

    def __init__(self, batches: Iterator[Any], mover: _Mover, ahead: int) -> None:
        super().__init__(name="ullage-prefetch", daemon=True)
        self._batches = batches
        self._mover = mover
        self._free = threading.Semaphore(ahead)
        self._ready = threading.Semaphore(0)
        self._results: deque[tuple[Any, Any] | BaseException] = deque()
        self._is_stopped = False

    def run(self) -> None:
        """Until the loader ends, or `stop`."""
        try:
            while True:
                self._free.acquire()
                if self._is_stopped:
                    return
                self._results.append(self._mover.copy(next(self._batches)))
                self._ready.release()
        except BaseException as error:  # StopIteration too: the consumer ends by it
            self._results.append(error)
            self._ready.release()

    def take(self) -> tuple[Any, Any] | BaseException:
        """The next result, when it is there; another batch may be read then."""
        batch_waits.wait_in(self._ready.acquire)
        self._free.release()
        return self._results.popleft()

    def stop(self) -> None:
        """Ends the thread: after the batch that it reads now."""
        self._is_stopped = True
        self._free.release()
        self.join()
        self._results.clear()


def _read_ahead(
    batches: Iterator[Batch], mover: _Mover, ahead: int
) -> Generator[Batch, None, None]:
    reader = _Reader(batches, mover, ahead)
    reader.start()
    try:
        while True:
            result = reader.take()
            if isinstance(result, StopIteration):
                return
            if isinstance(result, BaseException):
                raise result
            yield mover.hand_over(*result)
    finally:
        reader.stop()


def prefetch(
    loader: Iterable[Batch], *, device: int | str | None = None, ahead: int | None = None
) -> Prefetch[Batch]:
    """A loader whose batches come to the GPU beside the computation.

    The arguments and errors are those of `Prefetch`.
    """
    return Prefetch(loader, device=device, ahead=ahead)
