"""The fields of a run record: what a watched process writes, and what the reader expects.

A record is a dict of plain values, pickled as `<pid>.record` and under "ullage" in a snapshot. The
writer (`ullage.players.inside.recorder`) builds these dicts, the reader (`ullage.log.reader`)
checks them; what a field means is said in `ullage.log.model`, which is what everybody else sees. A
field that is not in REQUIRED_KEYS came later: the reader takes a record without it.

Standard library alone: the writer imports this in the user's interpreter.
"""

# Annotations are evaluated here: from texts TypedDict does not learn which keys are optional.
from collections.abc import Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict

SCHEMA = "ullage.record/1"
REQUIRED_KEYS = frozenset(
    {"schema", "ullage", "torch", "python", "pid", "started_s", "ended_s", "exit"}
    | {"first_position", "events"}
)

Rows: TypeAlias = list[list[Any]]
ROWS: Mapping[str, tuple[str, ...]] = {
    "requests": ("where", "begin", "end", "failure", "is_out_of_memory"),
    "attempts": ("failures", "sizes"),
    "recipe": ("name", "value"),
    "marks": ("position", "kind", "details"),
    "claims": ("position", "device", "address", "category", "name"),
    "operands": ("position", "device", "address"),
    "workspaces": ("position", "device", "address", "bytes", "library"),
    "scratch": (
        "position", "device", "address", "low_bytes", "answered_bytes", "high_bytes", "what",
    ),
    "copies": ("position", "device", "address", "bytes", "stream", "flags"),
    "pinned": ("position", "bytes"),
    "holders": ("position", "device", "address", "chain"),
    "graphs": ("position", "num_nodes", "chain"),
    "step_peaks": ("first", "num_steps", "allocated_bytes", "reserved_bytes", "seconds"),
    "waits": ("first", "num_steps", "seconds", "waited_s", "idle_low_s", "idle_high_s"),
    "step_times": ("bin", "num_steps", "num_recent", "num_with_retry", "num_with_device_free"),
    "windows": (
        "first", "num_steps", "began_s", "seconds", "allocated_bytes", "reserved_bytes",
        "inactive_split_bytes", "num_alloc_retries", "num_device_frees",
    ),
    "window_times": ("window", "bin", "num_steps"),
    "request_times": ("name", "bin", "num_requests", "num_recent"),
    "last_requests": (
        "name", "began_s", "seconds", "begin_bytes", "end_bytes", "peak_bytes", "num_calls",
        "num_tokens", "first_call_bytes", "last_call_bytes", "num_beside", "has_failed",
    ),
    "token_growth": ("call", "bytes"),
    "basis": ("kind", "what", "where", "count", "low_bytes", "likely_bytes", "high_bytes"),
}  # fmt: skip
"""The entries of a list, where each is a row of values."""


WORK_MARKS = (
    "none", "forward_begin", "forward_end", "backward_begin", "backward_end", "optimizer_begin",
    "optimizer_end", "step",
)  # fmt: skip
"""The marks in a log of work, by their numbers there."""


PRECISIONS = (
    "", "float32", "bfloat16", "float16", "float64", "bool", "uint8", "int8", "int16", "int32",
    "int64", "float8_e4m3fn", "float8_e5m2",
)  # fmt: skip
"""Types of numbers as torch calls them, by their numbers in `precision`; the first is not known."""


class StopFields(TypedDict):
    """After how many steps, and of which kind, `--steps` ended the program."""

    count: int
    kind: str


class ExitFields(TypedDict):
    """The end of the program."""

    kind: str
    exception: str | None
    message: str | None
    where: str | None
    code: int
    steps: NotRequired[StopFields]


class EventColumns(TypedDict):
    """The allocator's events, a column of little-endian numbers each."""

    address: bytes
    bytes: bytes
    reserved: bytes
    scope: bytes
    device: bytes
    kind: bytes
    precision: NotRequired[bytes]


class PeakFields(TypedDict):
    """The allocator's peaks and counts of a device."""

    peak_requested_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    num_allocs: int
    num_segments: int
    num_ooms: int
    num_alloc_retries: int


class DeviceFields(PeakFields):
    """The totals of a device; `outside` has rows of a basis, the upper end being likely."""

    index: int
    name: str
    total_bytes: int
    context_bytes: int
    non_torch_bytes: int
    outside: Rows
    peak_of_all_bytes: int
    place: int


class OomFields(TypedDict):
    """An allocation that failed."""

    position: int
    device: int
    requested_bytes: int
    message: str | None
    where: str | None
    ended: NotRequired[str]


class WorkLogFields(TypedDict):
    """The device's work; `ullage.log.work_log` reads it.

    first: how many entries were dropped before these. works: [kind, precision, name, numbers,
    arguments].
    """

    first: int
    entries: bytes
    captured: bytes
    works: Rows


class UsageFields(TypedDict):
    """The uses of memory by time, and the transfers between host and device."""

    last_uses: bytes
    scratch: Rows
    copies: Rows
    pinned: Rows
    pinned_low: NotRequired[Rows]


class HolderFields(TypedDict):
    """By which names the program held tensors, and graphs."""

    holders: Rows
    graphs: Rows


class BasisFields(TypedDict):
    """The unknown values, and the assumptions in their place."""

    basis: Rows
    operands: Rows
    num_not_yet: int
    num_timed: int


class PressureFields(TypedDict):
    """The allocator's work, beside the times of steps and requests.

    Times are counted in the bins of ullage.log.durations. step_times: of all steps, of the last
    `num_recent`, and of those with a retry or a cudaFree. windows: steps in a row; window_times
    counts theirs. has_device_frees: whether this torch counts cudaFrees. last_requests: of
    `num_requests` in all; num_calls is how often the model was called meanwhile, num_beside how
    many other requests were open at once. token_growth: what was allocated after a call, in the
    request with the most calls of those that were alone.
    """

    step_times: Rows
    windows: Rows
    window_times: Rows
    num_recent: int
    has_device_frees: bool
    num_requests: int
    request_times: Rows
    last_requests: Rows
    token_growth: Rows


class MeasuredFields(TypedDict):
    """The further fields of a record on a real GPU.

    mode: how much was recorded (players/inside/entrances/settings.py). driver: NVIDIA's version.
    num_lost: the events that left the ring. step_peaks: [first step, number of steps, allocated
    bytes, reserved bytes, seconds]. num_others: of each device, the processes beside this one when
    CUDA started; None: NVML did not tell. is_phantom: the GPU was the phantom. kernels: of the
    third step, where they were asked for: [name, precision, sizes, number, seconds].
    """

    mode: str
    driver: str | None
    num_lost: int
    step_peaks: Rows
    num_others: NotRequired[list[int | None]]
    is_phantom: NotRequired[bool]
    pressure: NotRequired[PressureFields]
    kernels: NotRequired[Rows]


class BatchWaitFields(TypedDict):
    """Waits for batches; num_workers: the most of a DataLoader, None: none was read."""

    num_workers: int | None
    waits: Rows


class OptionalFields(TypedDict, total=False):
    """The fields that a record has only where the run requested them.

    num_lost_copies: how many were dropped before those in `copies`. recipe: of an estimate.
    """

    attempts: Rows
    recipe: Rows
    measured: MeasuredFields
    batch_waits: BatchWaitFields
    num_lost_copies: int
    work_log: WorkLogFields


class ProgramFields(TypedDict):
    """The program that ran, and how it ended or stands."""

    schema: str
    ullage: str
    torch: str
    cuda: str | None
    python: str
    argv: list[str]
    pid: int
    rank: int | None
    started_s: float
    ended_s: float
    exit: ExitFields
    host_peak_bytes: int


class RecordFields(ProgramFields, UsageFields, HolderFields, BasisFields, OptionalFields):
    """A whole record."""

    devices: list[DeviceFields]
    first_position: int
    events: EventColumns
    requests: Rows
    marks: Rows
    modules: list[str]
    claims: Rows
    workspaces: Rows
    ooms: list[OomFields]
    host_needed_bytes: int
    pinned_peak_bytes: int
    pinned_low_peak_bytes: NotRequired[int]
    pinned_asked_peak_bytes: NotRequired[int]
    warnings: list[str]
    groups: list[list[int]]
