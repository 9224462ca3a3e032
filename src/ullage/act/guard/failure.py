"""An out-of-memory error: what it said, where it came from, and how what it holds is let go."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, ModuleType

_TRIED = re.compile(r"Tried to allocate ([\d.]+ \w+)")
_FREE = re.compile(r"of which ([\d.]+ \w+) is free")
_MAX_TEXT = 120
# Of the driver, and of cuBLAS, cuDNN, cuSOLVER and cuFFT.
_OTHER_WORDS = ("CUDA error: out of memory", "_ALLOC_FAILED")
_NO_ENGINE = "unable to find an engine"


@dataclass(frozen=True, slots=True)
class Failure:
    """An out-of-memory error, of which no frame is referenced any more.

    Attributes:
        text: what the error said, in short.
        message: what it said.
        codes: the code objects of the functions that it went through, outermost first.
        error: itself, without a traceback.
    """

    text: str
    message: str
    codes: tuple[CodeType, ...]
    error: BaseException


def take_failure(error: BaseException) -> Failure:
    """Describes an error, and clears the local variables of the frames that it went through: they
    hold activations, and with a loss the whole graph. Call `release` when the error itself is gone.
    """
    codes = tuple(frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__))
    message = str(error)
    for linked in [*_chain(error)]:
        traceback.clear_frames(linked.__traceback__)
        linked.__traceback__ = None
    return Failure(shorten(message), message, codes, error)


def take_out_of_memory(torch: ModuleType, error: BaseException) -> Failure:
    """`take_failure` of an error that says that a GPU is out of memory; raises others again."""
    if not is_out_of_memory(torch, error):
        raise error
    return take_failure(error)


def is_out_of_memory(torch: ModuleType, error: BaseException) -> bool:
    """True if an error says that a GPU is out of memory, in whatever words: libraries raise a
    RuntimeError of their own, and where the workspace of no convolution fits, cuDNN's says that
    there is none.
    """
    if isinstance(error, torch.OutOfMemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    message = str(error)
    if _NO_ENGINE in message:
        return torch.cuda.is_initialized() and any(
            torch.cuda.memory_stats(index).get("num_ooms", 0)
            for index in range(torch.cuda.device_count())
        )
    return any(words in message for words in _OTHER_WORDS)


def release(torch: ModuleType) -> None:
    """Gives back what a failed try still has: cycles, autocast's copies, the allocator's cache."""
    torch.clear_autocast_cache()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def say(text: str) -> None:
    """Prints one line for the user."""
    print(f"ullage: guard: {text}", file=sys.stderr, flush=True)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those that it came from or was raised beside."""
    visited: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        linked = waiting.pop()
        if linked is not None and id(linked) not in visited:
            visited.add(id(linked))
            yield linked
            waiting += [linked.__cause__, linked.__context__]


def shorten(message: str) -> str:
    """The size that was asked for and what was free; else the begin of the first line."""
    size = _TRIED.search(message)
    if size is None:
        return (message.splitlines() or ["no message"])[0][:_MAX_TEXT]
    free = _FREE.search(message)
    return f"{size[1]} asked for" + (f", {free[1]} free" if free else "")
