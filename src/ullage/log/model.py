"""The `Record` of a watched process, and its parts.

The allocator's events are columns (one numpy array per field), because a long run has millions of
them. A *position* is the number of events that came before; an interval of positions is half-open,
so a block that event 3 brought and event 7 took is live at the positions 4, 5, 6 and 7.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import numpy as np
import numpy.typing as npt

from ullage.ground.protocol.plain import As, figure
from ullage.ground.protocol.plain import Mark as FieldMark
from ullage.log.assumptions import Assumption
from ullage.log.batch_waits import BatchWaits
from ullage.log.bounds import OtherPeaks, Otherwise
from ullage.log.category import Category as Category
from ullage.log.field_checks import Index, Indices, Lines, Position, Positions
from ullage.log.measured import Measured
from ullage.log.work_log import WorkLog
from ullage.log.workspaces import Scratch as Scratch
from ullage.log.workspaces import Workspaces as Workspaces

Int64Array: TypeAlias = npt.NDArray[np.int64]
UInt32Array: TypeAlias = npt.NDArray[np.uint32]
Int32Array: TypeAlias = npt.NDArray[np.int32]
UInt8Array: TypeAlias = npt.NDArray[np.uint8]


class EventKind(enum.IntEnum):
    """The kind of an allocator event."""

    BLOCK = 0
    OUT_OF_MEMORY = 1
    DONE_WITHOUT = 8
    """An out-of-memory, after which a library took an algorithm that needs less."""


class MarkKind(enum.Enum):
    """A moment that the program passed."""

    FORWARD_BEGIN = "forward_begin"
    FORWARD_END = "forward_end"
    BACKWARD_BEGIN = "backward_begin"
    BACKWARD_END = "backward_end"
    OPTIMIZER_BEGIN = "optimizer_begin"
    OPTIMIZER_END = "optimizer_end"
    STEP = "step"


class ExitKind(enum.Enum):
    """The kind of a program's end."""

    RETURNED = "returned"
    EXCEPTION = "exception"
    SYSTEM_EXIT = "system_exit"
    SIGNAL = "signal"
    STEPS_REACHED = "steps_reached"


class StepKind(enum.Enum):
    """The kind of a program's steps: training steps, or forwards without gradients."""

    TRAINING = "training"
    INFERENCE = "inference"


@dataclass(frozen=True, slots=True)
class Events:
    """The allocator's events in program order, as columns of equal length.

    Attributes:
        address: where the block lies; meaningless for an out-of-memory event.
        size_bytes: > 0 a block of that size was given out, < 0 it was taken back; for an
            out-of-memory event the bytes requested.
        reserved_bytes: what the allocator holds of that device after the event.
        device: index of the device.
        kind: an `EventKind`.
        scope: for a block given out, the module in which it was, as an index into the record's
            `modules`; -1: in none.
        has_graph: whether autograd noted what the thread ran; in backward, that it recomputed.
        was_kept: whether a block that was taken back had been kept: `operands` of a collective.
        precision: of the numbers in a block given out, as an index into PRECISIONS; None: nothing
            is known of any.
    """

    address: Int64Array
    size_bytes: Int64Array
    reserved_bytes: Int64Array
    device: UInt8Array
    kind: UInt8Array
    scope: Int32Array
    has_graph: npt.NDArray[np.bool_]
    was_kept: npt.NDArray[np.bool_] | None = None
    precision: UInt8Array | None = None

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment that the program passed.

    Attributes:
        position: of the moment.
        kind: of the moment.
        grad: of a forward's begin: whether gradients were recorded.
        index: of a step: its number.
        is_training_mode: of a forward's begin: the root module's `training`; None: not recorded.
        module: of a forward's begin: the root module, as an index into the record's `modules`.
        inputs: of a forward's end: the shapes of the tensors that the root module was called with.
        num_tokens: of a forward's end: how many tokens these are; None: not known.
        has_failed: of a forward's end: whether it raised an exception.
        has_autocast: of a forward's end: whether a module in it ran under torch.autocast.
    """

    position: int
    kind: MarkKind
    grad: bool | None = None
    index: int | None = None
    is_training_mode: bool | None = None
    module: int | None = None
    inputs: tuple[tuple[int, ...], ...] | None = None
    num_tokens: int | None = None
    has_failed: bool = False
    has_autocast: bool = False


@dataclass(frozen=True, slots=True)
class Claims:
    """Owners of blocks, as columns: at `position` the live block that holds `address` belonged to
    `category`.
    """

    position: Positions
    device: Indices
    address: Indices
    category: tuple[Category, ...]
    name: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Copies:
    """Copies between host and device of 64 KiB and more, as columns.

    Attributes:
        address: on the device.
        stream: the CUDA stream's handle.
        is_to_device: else to the host.
        is_pinned: whether the memory of the host was; the driver copies other memory twice.
        is_waited_for: whether the host did nothing else before it had waited for the copy.
    """

    position: Int64Array
    device: Int64Array
    address: Int64Array
    size_bytes: Int64Array
    stream: Int64Array
    is_to_device: npt.NDArray[np.bool_]
    is_pinned: npt.NDArray[np.bool_]
    is_waited_for: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class PinnedLevels:
    """The host memory that was pinned from each position on, as columns."""

    position: Positions
    size_bytes: Indices

    def __len__(self) -> int:
        return len(self.position)


@dataclass(frozen=True, slots=True)
class Holder:
    """By which name the program held a tensor: "outputs[3] in train()"."""

    position: Position
    device: Index
    address: Index
    chain: str


@dataclass(frozen=True, slots=True)
class GraphHolder:
    """A tensor that kept an autograd graph of `num_nodes` nodes alive, by its name."""

    position: Position
    num_nodes: int
    chain: str


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """One device's counters at the end of the process, in bytes and counts.

    `outside` is what the driver and libraries held outside the allocator; `non_torch_bytes` has it
    at its upper end. `place` is the device's in the run,
    `peak_of_all_bytes` what all processes used of it, 0: no other; `num_others` left a record.
    """

    index: int
    name: str
    total_bytes: int
    context_bytes: int
    non_torch_bytes: int
    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_allocs: int
    num_segments: int
    num_ooms: int
    num_alloc_retries: int
    outside: Annotated[tuple[Assumption, ...], FieldMark.UNWRITTEN] = ()
    peak_of_all_bytes: Annotated[int, FieldMark.UNWRITTEN] = 0
    place: Annotated[int, FieldMark.UNWRITTEN] = 0
    num_others: Annotated[int, FieldMark.NO_KEY] = 0

    @figure
    def others_bytes(self) -> Annotated[int, As("other_processes_bytes")]:
        """How much more all processes used, at the highest, than this one did at its own."""
        own_bytes = self.peak_reserved_bytes + self.context_bytes + self.non_torch_bytes
        return max(0, self.peak_of_all_bytes - own_bytes)

    @property
    def beside_bytes(self) -> int:
        """The bytes that others than PyTorch and the driver's context took."""
        return self.non_torch_bytes + self.others_bytes

    @property
    def all_outside_bytes(self) -> int:
        """The bytes taken outside PyTorch's allocator: the context, libraries, other processes."""
        return self.context_bytes + self.beside_bytes

    @property
    def outside_spread_bytes(self) -> int:
        """How much less than its upper end what is outside may be."""
        return sum(size.size_bytes for size in self.outside)


@dataclass(frozen=True, slots=True)
class Stop:
    """After how many steps, and of which kind, `--steps` ended the program."""

    count: int
    kind: StepKind


@dataclass(frozen=True, slots=True)
class ProgramExit:
    """How the program ended, with the exception that ended it and the user's innermost line, where
    there was one; `stop` where `--steps` ended it.
    """

    kind: ExitKind
    exception: str | None
    message: Lines | None
    where: str | None
    code: Index = 0
    stop: Annotated[Stop | None, As("steps")] = None


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One allocation that failed; `ended` is the part of the program that it ended, such as "thread
    'loader'", where nobody caught it there.
    """

    position: Position
    device: Index
    requested_bytes: int
    message: Lines | None
    where: str | None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Request:
    """A request of a file that was replayed, from the position at which it began to that at which
    it ended; `where` is its line, such as "requests.jsonl:7". `failure` is why it was not answered,
    empty where it was.
    """

    where: str
    begin: Position
    end: Position
    failure: str = ""
    is_out_of_memory: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """All that one watched process wrote down.

    `basis` is what the player assumed.
    `last_use` has for each event that gave out a block the position at which it was last handed to
    a kernel, a library or a copy, 0 for never; this and `copies` are None in records of before.
    `requests` are those that were replayed against the program; then a step ends where none runs.
    `groups` are the ranks of each process group of a rank that was played alone. `num_not_yet` is
    how often the allocator asked whether another stream was done with a block, and it was not, and
    how many blocks were kept for a collective; only then can its bytes depend on when work is done;
    `operands` has what was kept so at the end: (position, device, address). `num_timed` is how
    often Inductor timed kernels. `otherwise` has what replays of the requests come to.
    `attempts` has for each work for which a request of memory failed the numbers of these failures,
    and the bytes of all requests for it in order, negative where they failed.
    `recipe` is what an estimate was asked for, by name; empty where a program ran.
    `measured` and `batch_waits` are there where a real GPU was recorded; of more copies than such a
    record keeps, `num_lost_copies` came before those in `copies`.
    """

    ullage: str
    torch: str
    cuda: str | None
    python: str
    argv: tuple[str, ...]
    pid: int
    rank: int | None
    started_s: float
    ended_s: float
    exit: ProgramExit
    devices: tuple[DeviceTotals, ...]
    first_position: Position
    events: Events
    marks: tuple[Mark, ...]
    claims: Claims
    workspaces: Workspaces
    modules: tuple[str, ...] = ()
    last_use: UInt32Array | None = None
    copies: Copies | None = None
    pinned: PinnedLevels | None = None
    pinned_low: PinnedLevels | None = None
    holders: tuple[Holder, ...] = ()
    graphs: tuple[GraphHolder, ...] = ()
    basis: tuple[Assumption, ...] = ()
    ooms: tuple[OutOfMemory, ...] = ()
    done_without: Annotated[tuple[OutOfMemory, ...], FieldMark.NO_KEY] = ()
    host_peak_bytes: int = 0
    host_needed_bytes: int = 0
    pinned_peak_bytes: int = 0
    pinned_low_peak_bytes: int = 0
    pinned_asked_peak_bytes: int = 0
    warnings: tuple[str, ...] = ()
    groups: tuple[tuple[Index, ...], ...] = ()
    num_not_yet: int = 0
    operands: tuple[tuple[Index, Index, Index], ...] = ()
    num_timed: int = 0
    scratch: Scratch | None = None
    otherwise: Annotated[tuple[OtherPeaks, ...], FieldMark.NO_KEY] = ()
    requests: tuple[Request, ...] = ()
    work_log: WorkLog | None = None
    measured: Measured | None = None
    batch_waits: BatchWaits | None = None
    num_lost_copies: int = 0
    attempts: tuple[tuple[tuple[Index, ...], tuple[Index, ...]], ...] = ()
    recipe: tuple[tuple[str, str], ...] = ()

    def otherwise_on(self, device: int, what: Otherwise) -> OtherPeaks | None:
        """The memory that a device would have taken otherwise; None: no replay says so."""
        each = (other for other in self.otherwise if (other.device, other.what) == (device, what))
        return next(each, None)

    def order(self, own_pid: int) -> tuple[bool, int, float]:
        """The order of a run's records: the program's own process, then by rank and start."""
        return self.pid != own_pid, self.rank or 0, self.started_s
