"""Does it fit? The verdict of a run, the room that is left, and the interval around it."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from ullage.explain.reserved import Reserved
from ullage.ground.protocol.plain import As, Mark, figure
from ullage.log.model import DeviceTotals, ExitKind, ProgramExit

if TYPE_CHECKING:
    from ullage.facts.gpus.catalog import Gpu


class Verdict(enum.Enum):
    """The answer of a run."""

    FITS = "fits"
    OUT_OF_MEMORY = "out_of_memory"
    FAILED = "failed"


class ExitCode(enum.IntEnum):
    """The exit codes of ullage itself."""

    FINE = 0
    ANSWER_IS_NO = 1
    WRONG_USE = 2
    PROGRAM_FAILED = 3
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Headroom:
    """The bytes left of a device; negative: that much is missing.

    Attributes:
        headroom_bytes: with the largest context: what the verdict goes by.
        middle_bytes: with the context, and what libraries hold outside of the allocator, in the
            middle of their intervals.
        context_margin_bytes: how far these can move that up or down.
        workspace_more_bytes: how much more the assumed workspaces could take.
        workspace_less_bytes: how much less.
        completion_less_bytes: how much less the allocator holds if asynchronous work is done at
            once.
        tuning_less_bytes: how much less still if Inductor's cache spares it the timing of kernels.
        address_less_bytes: how much less it holds with the driver's addresses in the other order.
        total_margin_bytes: how far the device's memory, where no source gives it exactly, can be
            from its figure.
    """

    headroom_bytes: int
    middle_bytes: Annotated[int, Mark.NO_KEY]
    context_margin_bytes: Annotated[int, Mark.NO_KEY]
    workspace_more_bytes: Annotated[int, Mark.NO_KEY]
    workspace_less_bytes: Annotated[int, Mark.NO_KEY]
    completion_less_bytes: Annotated[int, Mark.NO_KEY]
    tuning_less_bytes: Annotated[int, Mark.NO_KEY]
    address_less_bytes: Annotated[int, Mark.NO_KEY]
    total_margin_bytes: Annotated[int, Mark.NO_KEY]

    @figure
    def low_bytes(self) -> Annotated[int, As("headroom_low_bytes")]:
        """With everything uncertain at its largest, and the device at its smallest."""
        return self.headroom_bytes - self.workspace_more_bytes - self.total_margin_bytes

    @figure
    def high_bytes(self) -> Annotated[int, As("headroom_high_bytes")]:
        """With everything uncertain at its smallest, and the device at its largest."""
        above_middle = (
            self.context_margin_bytes
            + self.workspace_less_bytes
            + self.completion_less_bytes
            + self.tuning_less_bytes
            + self.address_less_bytes
            + self.total_margin_bytes
        )
        return self.middle_bytes + above_middle


def find_headroom(gpu: Gpu, reserved: Reserved, totals: DeviceTotals) -> Headroom:
    """The bytes that a peak leaves of a GPU: total - (reserved + context + non-torch + other
    processes), at upper ends, but for the workspaces of closed libraries: these widen the interval,
    and do not decide the verdict.
    """
    left = gpu.total_bytes - reserved.answered_bytes - totals.beside_bytes
    high = gpu.context_high_bytes
    contexts = min(totals.num_others * (high - gpu.context_low_bytes), totals.others_bytes)
    low = gpu.context_low_bytes - totals.outside_spread_bytes - contexts
    margin = max(gpu.total_high_bytes - gpu.total_bytes, gpu.total_bytes - gpu.total_low_bytes, 0)
    optional = reserved.workspaces.optional_bytes
    if left >= high:
        optional = min(optional, max(left - high - margin, 0))
    return Headroom(
        headroom_bytes=left - high,
        middle_bytes=left - (low + high) // 2,
        context_margin_bytes=(high - low + 1) // 2,
        workspace_more_bytes=max(reserved.workspaces.more_bytes, optional),
        workspace_less_bytes=reserved.workspaces.less_bytes,
        completion_less_bytes=reserved.completion_less_bytes,
        tuning_less_bytes=reserved.tuning_less_bytes,
        address_less_bytes=reserved.addresses.width_bytes,
        total_margin_bytes=margin,
    )


def gpus_that_fit(
    gpus: Sequence[Gpu], peak_reserved_bytes: int, non_torch_bytes: int
) -> tuple[str, ...]:
    """The GPUs on which a peak fits with their largest context, by slug, smallest first."""
    fitting = [
        gpu
        for gpu in gpus
        if peak_reserved_bytes + non_torch_bytes + gpu.context_high_bytes <= gpu.total_bytes
    ]
    return tuple(gpu.slug for gpu in sorted(fitting, key=lambda gpu: (gpu.total_bytes, gpu.slug)))


def ended_out_of_memory(exit_: ProgramExit, *, had_ooms: bool = False) -> bool:
    """True if an out-of-memory that nobody caught ended the program.

    cuBLAS and others report theirs as a RuntimeError, with the reason in the text only. Where the
    device lacks room for the workspace of any of cuDNN's algorithms, torch catches that (had_ooms)
    and says that it found none.
    """
    if exit_.kind is not ExitKind.EXCEPTION:
        return False
    name = (exit_.exception or "").rpartition(".")[2]
    message = (exit_.message or "").lower()
    if had_ooms and "unable to find an engine" in message:
        return True
    # "DefaultCPUAllocator: can't allocate memory" is the host's, not the device's.
    return name == "OutOfMemoryError" or "out of memory" in message or "_alloc_failed" in message


def was_interrupted(exit_: ProgramExit) -> bool:
    """True if the user stopped the program with Ctrl-C."""
    name = (exit_.exception or "").rpartition(".")[2]
    return name == "KeyboardInterrupt" or (exit_.kind is ExitKind.SIGNAL and exit_.code in (2, 130))
