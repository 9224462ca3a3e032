"""The phantom's own entry points, through ctypes: positions in the event sequence, and values.

The library is preloaded, so its functions are found among the process's global symbols. Where
`ullage record` watches a real GPU, positions and modules are those of its event hook (`stand_on`).
"""

from __future__ import annotations

import array
import ctypes
import enum
import itertools
from collections.abc import Callable, Iterable, Iterator
from ctypes import (
    POINTER,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any, cast

from ullage.log.assumptions import Assumption, AssumptionKind
from ullage.log.record_schema import ROWS, EventColumns

if TYPE_CHECKING:
    from ullage.log.record_schema import Rows, UsageFields

_HOST_READ = ctypes.CFUNCTYPE(None, c_uint64)
_REQUEST = ctypes.CFUNCTYPE(None, c_uint64, c_int)

_library = ctypes.CDLL(None)
is_present = hasattr(_library, "ullage_position")
"""True if the phantom is loaded into this process."""


_SHARED: dict[str, tuple[type | None, tuple[type, ...]]] = {
    "position": (c_uint64, ()),
    "know_nodes": (c_int, (c_void_p, c_uint64)),
    "enter_scope": (None, (c_int,)),
    "leave_scope": (None, ()),
    "leave_scopes": (None, ()),
    "current_scope": (c_int, ()),
}
"""The functions that the event hook answers, too."""
_of_phantom: dict[str, Any] = {}


def stand_on(hook: ctypes.CDLL | None) -> None:
    """Positions and scopes come from the event hook from here on; None: from the phantom again."""
    names = globals()
    if hook is None:
        names.update(_of_phantom)
        _of_phantom.clear()
        return
    for name, (result, arguments) in _SHARED.items():
        function = hook[f"ullage_{name}"]
        function.restype, function.argtypes = result, arguments
        _of_phantom.setdefault(name, names[name])
        names[name] = function


def bind(name: str, result: type | None, *arguments: type) -> Callable[..., Any]:
    """A function of the library; one that raises RuntimeError where the library is not loaded."""
    if not is_present:
        return _absent
    function: Any = getattr(_library, name, None)
    if function is None:
        raise RuntimeError(
            f"the phantom in this environment is of another version of ullage (it has no {name}); "
            "make the environment again: ullage env DIR --force"
        )
    function.restype, function.argtypes = result, arguments
    return cast("Callable[..., Any]", function)


def _absent(*_arguments: object) -> int:
    raise RuntimeError("the phantom is not loaded into this process")


position = bind("ullage_position", c_uint64)
"""Number of allocator events so far, over all devices."""
share_levels = bind("ullage_share_levels", c_int, c_char_p, c_uint64)
"""(path, offset): keeps the levels in that file from there on; see levels.py."""
never_runs_out = bind("ullage_never_runs_out", None, c_int)
"""Devices have memory without end from now on, or no longer."""
read_bytes = bind("ullage_read", c_int, c_void_p, c_void_p, c_size_t)
"""(address, data, size): 0, or the mark of what is there, TRUE_VALUE or ASSUMED."""
look = bind("ullage_look", None, c_void_p, c_void_p, c_void_p, c_size_t)
"""(address, data, known, size): copies what is known, and a flag for each byte of it."""
is_device_address = bind("ullage_is_device_address", c_int, c_void_p)
write_bytes = bind("ullage_write", None, c_void_p, c_void_p, c_size_t, c_int)
"""(address, data, size, mark)"""
set_number = bind("ullage_set_number", None, c_void_p, c_double, c_int)
"""(address, number, uniformity): all elements of the block are that number."""
_number = bind("ullage_number", c_int, c_void_p, POINTER(c_double))
expect_element = bind("ullage_expect_element", None, c_char_p, c_size_t, c_int)
"""(element, its size, whether it is true): what this thread's unknown bytes read as."""
expect_zeros = bind("ullage_expect_zeros", None)
forget = bind("ullage_forget", None, c_void_p)
hide_host_memory = bind("ullage_hide_host_memory", None, c_int)
follow_thread = bind("ullage_follow_thread", None, c_int)
know_nodes = bind("ullage_know_nodes", c_int, c_void_p, c_uint64)
enter_scope = bind("ullage_enter_scope", None, c_int)
leave_scope = bind("ullage_leave_scope", None)
leave_scopes = bind("ullage_leave_scopes", None)
current_scope = bind("ullage_current_scope", c_int)
expect_count = bind("ullage_expect_count", None, c_int64)
split = bind("ullage_split", None, c_int, c_int)
"""(ranks, of them on this machine): of the communicator that this thread splits next; 0: none."""
expect_nothing = bind("ullage_expect_nothing", None)
skip_random = bind("ullage_skip_random", None, c_void_p, c_uint64)
host_filled = bind("ullage_host_filled", None, c_void_p, c_uint64)
host_zero = bind("ullage_host_zero", None, c_void_p, c_uint64)
host_is_untouched = bind("ullage_host_is_untouched", c_int, c_void_p, c_uint64, c_int)
host_needed_bytes = bind("ullage_host_needed_bytes", c_uint64)
# From now on it is known what torch's allocator of pinned memory is asked for, and given back.
watch_pinned = bind("ullage_watch_pinned", c_int)
pinned_peak_bytes = bind("ullage_pinned_peak_bytes", c_uint64)
pinned_low_peak_bytes = bind("ullage_pinned_low_peak_bytes", c_uint64)
pinned_asked_peak_bytes = bind("ullage_pinned_asked_peak_bytes", c_uint64)
non_torch_peak_bytes = bind("ullage_non_torch_peak", c_uint64, c_int)
peak_of_all_bytes = bind("ullage_peak_of_all", c_uint64, c_int)
"""The bytes that all processes of the run used of a device, at most; 0: no other used it."""
note_precision = bind("ullage_note_precision", None, c_void_p, c_int)
"""(address, precision): a tensor in the block there has numbers of this type (PRECISIONS)."""
place_of = bind("ullage_place", c_int, c_int)
begin_anew = bind("ullage_begin_anew", None)
"""This process is a copy of another, and uses devices in a run of its own from now on."""
num_not_yet = bind("ullage_num_not_yet", c_uint64)
"""How often the allocator asked whether another stream was done with a block, and it was not."""
_num_operands = bind("ullage_num_operands", c_uint64)
_operand = bind("ullage_operand", None, c_uint64, POINTER(c_int64))
_num_events = bind("ullage_num_events", c_uint64)
_events = bind("ullage_events", None, c_uint64, *[c_void_p] * 7)
_num_workspaces = bind("ullage_num_workspaces", c_uint64)
_workspace = bind("ullage_workspace", None, c_uint64, POINTER(c_int64))
_num_scratch = bind("ullage_num_scratch", c_uint64)
_scratch = bind("ullage_scratch", c_char_p, c_uint64, POINTER(c_int64))
_last_uses = bind("ullage_last_uses", None, c_uint64, c_void_p)
_num_copies = bind("ullage_num_copies", c_uint64)
_copy = bind("ullage_copy", None, c_uint64, POINTER(c_int64))
_num_pinned = bind("ullage_num_pinned", c_uint64)
_pinned = bind("ullage_pinned", None, c_uint64, POINTER(c_int64))
_refused = bind("ullage_refused", c_char_p, c_uint64, POINTER(c_uint64))
_assumed = bind("ullage_assumed", c_char_p, c_uint64, POINTER(c_uint64))
_outside = bind("ullage_outside", c_char_p, c_uint64, POINTER(c_uint64))
_on_host_read = bind("ullage_on_host_read", None, _HOST_READ)
_on_request = bind("ullage_on_request", None, _REQUEST)
_num_uniform = c_int.in_dll(_library, "ullage_num_uniform") if is_present else c_int()
_callbacks: list[object] = []  # ctypes callbacks must outlive the library's use of them

TRUE_VALUE, ASSUMED = 1, 2
"""Marks of bytes, as csrc/machine/values.c has them."""


class Uniformity(enum.IntEnum):
    """Why all elements of a block are one number.

    TRUE: a kernel that is known wrote it. ASSUMED: it follows from assumptions, but nothing has
    read it yet: what counts elements first may still decide otherwise. DECIDED: a decision was made
    by it. READ: the host has read the elements.
    """

    TRUE = 1
    ASSUMED = 2
    DECIDED = 3
    READ = 4


LIBRARIES = ("cuBLAS", "cuBLASLt", "cuDNN", "cuSOLVER", "cuSPARSE", "cuFFT", "other", "NCCL")
"""Names of enum library in phantom.h."""


def on_host_read(callback: Callable[[int], None]) -> None:
    """Calls `callback(num_bytes)` whenever the host reads bytes that a kernel may have written."""
    _call_back(_on_host_read, _HOST_READ(callback))


def on_request(callback: Callable[[int, int], None]) -> None:
    """Calls `callback(num_bytes, has_room)` for the first request of device memory from the driver
    that has no room, and for each after it.
    """
    _call_back(_on_request, _REQUEST(callback))


def _call_back(install: Callable[[object], None], wrapped: object) -> None:
    _callbacks.append(wrapped)
    install(wrapped)


def has_numbers() -> bool:
    """True if the number of any block is known."""
    return bool(_num_uniform.value)


def number_at(address: int) -> tuple[float, Uniformity] | None:
    """The number that all elements of a block are; None: it is not known to be uniform."""
    number = c_double()
    uniformity = _number(address, byref(number))
    return (number.value, Uniformity(uniformity)) if uniformity else None


def events() -> EventColumns:
    """All allocator events as columns: address, bytes, reserved (int64), scope (int32), device,
    kind, precision (uint8).
    """
    count, types = _num_events(), zip(EventColumns.__annotations__, "qqqiBBB", strict=True)
    columns = {name: array.array(code, [0]) * count for name, code in types}
    _events(count, *(column.buffer_info()[0] for column in columns.values()))
    return cast("EventColumns", {name: column.tobytes() for name, column in columns.items()})


def operands() -> Rows:
    """The operands of asynchronous collectives at this moment: [position, device, address]."""
    return _rows(_num_operands(), _operand, len(ROWS["operands"]))


def workspaces() -> Rows:
    """Blocks handed to a library as scratch, or to NCCL to exchange: [position, device, address,
    bytes, library].
    """
    rows = _rows(_num_workspaces(), _workspace, len(ROWS["workspaces"]))
    return [[*row, LIBRARIES[library]] for *row, library in rows]


def usage(num_events: int) -> UsageFields:
    """The uses of memory by time, and the transfers between host and device.

    last_uses: for each of the first events, if it gave out a block, the position at which the block
        was last handed to a kernel, a library or a copy (uint32); 0: never, or no such event.
    scratch: memory whose size a model gave: [position, device, address, low, answered and high
        bytes, what]; the address is 0 where none was needed.
    copies: between host and device, of 64 KiB and more: [position, device, address on the device,
        bytes, stream, flags]; 1 to the device, 2 pinned memory, 4 the host waited for it.
    pinned: whenever it grew or shrank: [position, bytes]; pinned_low: if work is done at once.
    """
    pinned = _rows(_num_pinned(), _pinned, 3)
    last_uses = array.array("I", bytes(4 * num_events))
    _last_uses(num_events, last_uses.buffer_info()[0])
    return {
        "last_uses": last_uses.tobytes(),
        "scratch": [
            [*row, _text(what)]
            for row, what in _named_rows(_num_scratch(), _scratch, len(ROWS["scratch"]) - 1)
        ],
        "copies": _rows(_num_copies(), _copy, len(ROWS["copies"])),
        "pinned": _changes([position, size] for position, size, _ in pinned),
        "pinned_low": _changes([position, low] for position, _, low in pinned),
    }


def _changes(rows: Iterable[list[int]]) -> Rows:
    """The rows whose last column is another one than before."""
    return [next(alike) for _, alike in itertools.groupby(rows, lambda row: row[-1])]


def _rows(count: int, read: Callable[..., Any], width: int) -> Rows:
    return [row for row, _ in _named_rows(count, read, width)]


def _named_rows(
    count: int, read: Callable[..., Any], width: int
) -> Iterator[tuple[list[int], object]]:
    """Numbered rows of the library's, each with what reading it returned."""
    row = (c_int64 * width)()
    for number in range(count):
        name = read(number, row)
        yield [*row], name


def _until_nameless(read: Callable[..., Any], width: int) -> Iterator[tuple[str, list[int]]]:
    """Rows with names, until one has none."""
    row = (c_uint64 * width)()
    for number in itertools.count():
        name = read(number, row)
        if not name:
            return
        yield _text(name), [*row]


def basis() -> Rows:
    """Sizes answered from a model, with the interval of the largest, and calls answered with "not
    supported".
    """
    sizes = (
        Assumption(AssumptionKind.WORKSPACE, what, "", *numbers)
        for what, numbers in _until_nameless(_assumed, 4)
    )
    calls = (
        Assumption(AssumptionKind.CALL, f"{name} answered with 'not supported'", "", *count)
        for name, count in _until_nameless(_refused, 1)
    )
    return [assumption.row() for assumption in (*sizes, *calls)]


def outside(device: int) -> list[Assumption]:
    """The bytes that the driver and libraries held of a device: the interval of the highest."""
    return [
        Assumption(AssumptionKind.OUTSIDE, what, "", count, low, high, high)
        for what, (of_device, count, low, high) in _until_nameless(_outside, 4)
        if of_device == device
    ]


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
