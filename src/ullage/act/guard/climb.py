"""When a guard goes back up: after steps that needed less memory than the one that failed."""

from __future__ import annotations

from typing import Any

# Steps that need this share of what the recovered step needed on the same rung are smaller ones.
_SMALLER = 0.9
_MOST_PATIENCE = 64
_ENDLESS = 1 << 62


class Climb:
    """Counts steps without an error on a leaner rung.

    Where CUDA is used, the peak of each step on a leaner rung is measured, for which PyTorch's peak
    is reset; on rung 0 it is not. The guard goes up after `calm_steps` steps whose peaks are below
    90 % of the recovered step's; without CUDA after `calm_steps`. If the next error comes within as
    many steps after it went up, it waits twice as long the next time.

    Args:
        calm_steps: their number.

    Attributes:
        num_calm: steps that were counted when it went up last.
    """

    def __init__(self, calm_steps: int) -> None:
        self.num_calm = 0
        self._calm_steps = calm_steps
        self._patience = 1
        self._count = 0
        self._since_climb: int | None = None
        self._rung = 0
        self._recovered_bytes = 0
        self._peak_bytes = 0

    def begin(self, rung: int) -> None:
        """Before a step."""
        self._rung = rung
        if rung:
            self._reset()

    def end(self) -> bool:
        """After a step without an error: whether to go up."""
        if self._since_climb is not None:
            self._since_climb += 1
        if not self._rung:
            return False
        self._count += 1
        self._peak_bytes = max(self._peak_bytes, self._peak())
        if self._count < self._calm_steps * self._patience:
            return False
        is_smaller = self._peak_bytes <= _SMALLER * self._recovered_bytes
        self.num_calm = self._count
        self._count = self._peak_bytes = 0
        if is_smaller:
            self._since_climb = 0
        return is_smaller

    def begin_recovery(self) -> None:
        """Before a step is run again."""
        if self._since_climb is not None:
            is_early = self._since_climb < self._calm_steps * self._patience
            self._patience = min(self._patience * 2, _MOST_PATIENCE) if is_early else 1
            self._since_climb = None
        self._reset()

    def end_recovery(self, *, is_own: bool = True) -> None:
        """After a step was run again.

        Args:
            is_own: whether this rank had run out of memory; else whatever it needs is less.
        """
        self._count = self._peak_bytes = 0
        self._recovered_bytes = self._peak() if is_own else _ENDLESS

    def _reset(self) -> None:
        cuda = _cuda()
        if cuda is not None:
            cuda.reset_peak_memory_stats()

    def _peak(self) -> int:
        cuda = _cuda()
        return 0 if cuda is None else int(cuda.max_memory_allocated())


def _cuda() -> Any:
    """torch.cuda where it is used, else None."""
    import torch

    return torch.cuda if torch.cuda.is_initialized() else None
