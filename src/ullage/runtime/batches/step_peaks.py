"""The memory of a step at each of its operations."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Bytes, one number for each operation: the peak since the one before.
Course: TypeAlias = npt.NDArray[np.float64]


class WatchPeaks(TorchDispatchMode):  # type: ignore[misc]  # torch has no types here
    """Notes the peak of allocated memory at each operation of the present GPU, for which PyTorch's
    peak is reset.

    Args:
        is_watched: whether to do so; else one peak is noted for all.
    """

    def __init__(self, *, is_watched: bool = True) -> None:
        super().__init__()
        self._is_watched = is_watched
        self._peaks: list[int] = []

    @property
    def course(self) -> Course:
        """The peaks, once the step has ended."""
        return np.array(self._peaks, dtype=np.float64)

    def __enter__(self) -> Any:
        torch.cuda.reset_peak_memory_stats()
        return super().__enter__() if self._is_watched else self

    def __exit__(self, *error: Any) -> None:
        self._note()
        if self._is_watched:
            super().__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self._note()
        return result

    def _note(self) -> None:
        self._peaks.append(torch.cuda.max_memory_allocated())
        torch.cuda.reset_peak_memory_stats()
