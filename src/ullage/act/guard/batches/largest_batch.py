"""The largest batch of a training step, from the memory of a few small ones: see
`Guard.largest_batch`.

The peak of a step is the highest of many moments, and each grows in a straight line with the batch;
with a small batch another moment may be the highest than with a large one. So the memory is noted
at each operation of three small batches (step_peaks.py), which gives a line for each. The largest
batch below the allocator's limit is then run once. Where the moments do not lie on lines, larger
batches are run one after another, each at most twice as large as the one before, by parabolas.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ullage.act.guard.batches.kept_state import KeptState
from ullage.act.guard.failure import release, take_failure
from ullage.ground.errors import GuardError, SpecError
from ullage.ground.units import format_bytes

# The memory of a step at each of its operations.

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


SIZES: Final = (2, 4, 8)
# Moments lie on lines where the memory of the batch between differs by less than this share of the
# growth: blocks have granules.
_STRAIGHT: Final = 0.05
_TWICE: Final = 2
_TRIES: Final = 8


@dataclass(frozen=True, slots=True)
class LargestBatch:
    """The largest batch of a step.

    Attributes:
        size: the largest that was run.
        limit_bytes: the most that the allocator may take, less the margin.
        peaks: of every batch that was run, the peak of allocated memory in bytes.
        predicted_size: by the lines through the small batches.
        predicted_bytes: the peak that the lines give for `size`.
        confirmed_bytes: the peak of its run.
        is_line: whether the small batches lie on straight lines.
        failed_size: the smallest that ran out of memory; None: none has.
    """

    size: int
    limit_bytes: int
    peaks: Mapping[int, int]
    predicted_size: int
    predicted_bytes: int
    confirmed_bytes: int
    is_line: bool
    failed_size: int | None

    @property
    def text(self) -> str:
        """The predictions and the runs, in words."""
        small = ", ".join(
            f"{size}: {format_bytes(peak)}" for size, peak in sorted(self.peaks.items())[:3]
        )
        line = "on straight lines" if self.is_line else "not on straight lines"
        figures = map(format_bytes, (self.predicted_bytes, self.confirmed_bytes, self.limit_bytes))
        parts = [
            f"the largest batch is {self.size}: predicted {{}}, run {{}}, of {{}}".format(*figures),
            f"small batches ({small}) are {line}, which gave {self.predicted_size}",
        ]
        if self.failed_size is not None:
            parts.append(f"{self.failed_size} ran out of memory, and all was put back")
        return "; ".join(parts)


def find_largest_batch(
    fn: Callable[..., Any],
    make_batch: Callable[[int], Any],
    model: Any,
    keep: Callable[[], KeptState],
    *,
    at_most: int,
    multiple_of: int,
    sizes: Sequence[int],
    margin: float,
) -> LargestBatch:
    """Runs small batches and the predicted one; see `Guard.largest_batch`.

    Args:
        model: the `nn.Module`.
        keep: makes the copies that the state is restored from.
    """
    _check_options(at_most, multiple_of, sizes, margin)
    if not any(parameter.is_cuda for parameter in model.parameters()):
        raise SpecError("the model is on no GPU, so no allocator has peaks that could be read")
    state = keep()
    trial = _Trial(fn, make_batch)
    try:
        for size in sizes:
            if not trial.run(size):
                raise torch.OutOfMemoryError(
                    f"{trial.message}\nullage: guard: the small batch of {size} ran out of memory; "
                    "all is as before"
                )
        limit_bytes = int(_limit_bytes() * (1 - margin))
        return _climb(trial, limit_bytes, at_most, multiple_of, sizes)
    finally:
        state.restore()


class _Trial:
    """Runs steps, and notes their memory.

    Attributes:
        peaks: by size.
        failed_size: the smallest that ran out of memory.
        message: what that said.
    """

    def __init__(self, fn: Callable[..., Any], make_batch: Callable[[int], Any]) -> None:
        self._fn, self._make_batch = fn, make_batch
        self.peaks: dict[int, int] = {}
        self.courses: dict[int, Course] = {}
        self.failed_size: int | None = None
        self.message = ""

    def run(self, size: int, *, is_watched: bool = True) -> bool:
        """Runs a batch, the first one twice, as the optimizer's states may be made by its first
        step; returns whether there was memory for it.
        """
        for _ in range(1 if self.peaks else 2):
            release(torch)
            watch = WatchPeaks(is_watched=is_watched)
            try:
                with watch:
                    batch = self._make_batch(size)
                    self._fn(*batch) if isinstance(batch, tuple) else self._fn(batch)
            except torch.OutOfMemoryError as error:
                self.message = take_failure(error).message
                self.failed_size = min(size, self.failed_size or size)
                return False
        self.peaks[size] = int(watch.course.max())
        if is_watched:
            self.courses[size] = watch.course
        return True

    def predict(self, sizes: Sequence[int], size: int) -> float:
        """The peak of a size by the lines through the first and the last of some others."""
        small, large = sizes[0], sizes[-1]
        first, last = self._courses((small, large))
        return float((first + (last - first) * ((size - small) / (large - small))).max())

    def predict_bent(self, sizes: Sequence[int], size: int) -> float:
        """The peak of a size by parabolas through three others, and not below the lines through the
        last two.
        """
        line = self.predict(sizes[1:], size)
        small, middle, large = sizes
        first, second, last = self._courses(sizes)
        slope = (second - first) / (middle - small)
        bend = ((last - second) / (large - middle) - slope) / (large - small)
        curve = first + (size - small) * (slope + bend * (size - middle))
        return max(line, float(curve.max()))

    def grows(self, sizes: Sequence[int]) -> bool:
        """True if there is a moment whose memory grows with the batch."""
        first, last = self._courses((sizes[0], sizes[-1]))
        return bool((last > first).any())

    def _courses(self, sizes: Sequence[int]) -> list[Course]:
        """The memory of some sizes at the same moments; at their peaks alone, where they have other
        operations.
        """
        courses = [self.courses[size] for size in sizes]
        if len({len(course) for course in courses}) > 1:
            return [course.max(keepdims=True) for course in courses]
        return courses

    def are_lines(self, sizes: Sequence[int]) -> bool:
        """True if sizes between the first and the last have the memory that lines through these
        give.
        """
        courses = [self.courses[size] for size in sizes]
        if len({len(course) for course in courses}) > 1:
            return False
        first, last = courses[0], courses[-1]
        growth = (last - first).sum()
        for size, course in zip(sizes[1:-1], courses[1:-1], strict=True):
            share = (size - sizes[0]) / (sizes[-1] - sizes[0])
            if abs((first + (last - first) * share - course).sum()) > _STRAIGHT * abs(growth):
                return False
        return len(sizes) > _TWICE


def _climb(
    trial: _Trial, limit_bytes: int, at_most: int, multiple_of: int, sizes: Sequence[int]
) -> LargestBatch:
    """Runs the predicted batch; more than one where there are no lines, or it ran out of memory."""
    if not trial.grows(sizes):
        raise GuardError(
            f"the peak does not grow with the batch ({format_bytes(trial.peaks[sizes[0]])} with "
            f"{sizes[0]}, {format_bytes(trial.peaks[sizes[-1]])} with {sizes[-1]}); pass larger "
            "sizes="
        )
    is_line = trial.are_lines(sizes)
    predicted = _find(trial, sizes, limit_bytes, at_most, multiple_of, is_line=True)
    low, size = sizes[-1], predicted
    for _ in range(_TRIES):
        if not is_line:
            size = min(size, _TWICE * low)
        size = size // multiple_of * multiple_of
        if size <= low:
            break
        if trial.run(size, is_watched=not is_line):
            low = size
        if is_line and trial.failed_size is None:
            break
        most = at_most if trial.failed_size is None else (low + trial.failed_size) // _TWICE
        size = most
        if not is_line:
            last = sorted(trial.courses)[-3:]
            size = _find(trial, last, limit_bytes, most, multiple_of, is_line=len(last) < 3)
    return LargestBatch(
        size=low,
        limit_bytes=limit_bytes,
        peaks=trial.peaks,
        predicted_size=predicted,
        predicted_bytes=round(trial.predict(sizes, low)),
        confirmed_bytes=trial.peaks[low],
        is_line=is_line,
        failed_size=trial.failed_size,
    )


def _find(
    trial: _Trial,
    sizes: Sequence[int],
    limit_bytes: int,
    most: int,
    multiple_of: int,
    *,
    is_line: bool,
) -> int:
    """The largest size that the lines, or else the parabolas, through others have below a limit."""
    predict = trial.predict if is_line else trial.predict_bent

    def is_fitting(number: int) -> bool:
        return predict(sizes, number * multiple_of) <= limit_bytes

    return _largest_below(is_fitting, most // multiple_of) * multiple_of


def _largest_below(is_fitting: Callable[[int], bool], most: int) -> int:
    """The largest number up to `most` that fits, of which all smaller ones do; 0: none does."""
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_fitting(middle) else (low, middle)
    return low


def _limit_bytes() -> int:
    """The most that the allocator can reserve: its own, and what is free for it."""
    device = torch.cuda.current_device()
    release(torch)
    free_bytes, total_bytes = torch.cuda.mem_get_info(device)
    can_have = free_bytes + torch.cuda.memory_reserved(device)
    read_fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    fraction = 1.0 if read_fraction is None else read_fraction(device)
    return min(int(can_have), int(fraction * total_bytes))


def _check_options(at_most: int, multiple_of: int, sizes: Sequence[int], margin: float) -> None:
    """Raises SpecError for options that say nothing."""
    if len(sizes) < 2 or [*sizes] != sorted(set(sizes)) or sizes[0] < 1:
        raise SpecError(
            f"sizes={sizes!r} are not batches; expected two or more, from small to large"
        )
    if multiple_of < 1:
        raise SpecError(f"multiple_of={multiple_of} is not possible; give 1 or more")
    if at_most < sizes[-1]:
        raise SpecError(f"at_most={at_most} is below the small batches {[*sizes]}; pass sizes=")
    if not 0 <= margin < 1:
        raise SpecError(f"margin={margin} is not a share; expected 0 to 1")
