"""The allocator's events in a process with a real GPU, by a hook in libc10_cuda
(players/inside/csrc).

hook = EventHook(torch, claims, ring_bytes=16 << 20, max_workspaces=1 << 16)
hook.hook()                     # False: this torch cannot be hooked
hook.ring().columns             # events, as in the phantom
hook.remove()
"""

from __future__ import annotations

import array
import bisect
import ctypes
from collections import Counter
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ullage.ground.native.libraries import EVENT_HOOK
from ullage.log.record_schema import ROWS
from ullage.players.inside import library
from ullage.players.inside.part import Part

if TYPE_CHECKING:
    from ullage.log.record_schema import EventColumns, Rows
    from ullage.players.inside.owners.ownership import Claims

_COLUMNS = (("address", "q"), ("bytes", "q"), ("reserved", "q"), ("scope", "i"), ("device", "B"),
            ("kind", "B"))  # fmt: skip
_NO_COLUMNS = cast("EventColumns", {name: b"" for name, _ in _COLUMNS})
_MORE = 2**64 - 1
_WIDTH_OF = {"copies": "copies", "pinned_levels": "pinned"}
_SPARE_ROWS = 1024  # other threads may allocate meanwhile


class Ring(NamedTuple):
    """The rows of events that are kept.

    Attributes:
        first: the position of the first event in the ring; the events before it are lost.
        births: of each block that was there before, the position of the event that brought it.
        columns: those blocks, as if each had been allocated right before the ring, and the ring.
    """

    first: int
    births: array.array[int]
    columns: EventColumns

    @property
    def first_position(self) -> int:
        """The position of the first entry of the columns."""
        return self.first - len(self.births)

    def births_by_address(self) -> dict[tuple[int, int], int]:
        """The position at which each of the blocks before came, by device and address."""
        before = zip(self.addresses(), self.columns["device"], self.births, strict=False)
        return {(device, address): birth for address, device, birth in before}

    def addresses(self) -> array.array[int]:
        """The address of each entry of the columns."""
        return array.array("q", self.columns["address"])


class EventHook(Part):
    """The hook of this process: there is one.

    Args:
        torch: the module.
        claims: of what is there before the hook.
        ring_bytes: for events.
        max_workspaces: blocks that libraries were handed.

    Attributes:
        kept: what was in the ring when the record was last made.
    """

    def __init__(
        self, torch: ModuleType, claims: Claims, ring_bytes: int, max_workspaces: int
    ) -> None:
        self._torch: Any = torch
        self._claims = claims
        self._ring_bytes = ring_bytes
        self._max_workspaces = max_workspaces
        self.kept = Ring(0, array.array("Q"), _NO_COLUMNS)
        self._library = ctypes.CDLL(str(EVENT_HOOK))
        for name in ("first_position", "num_rows", "ring", "num_handed", "copies", "pinned_levels"):
            self._library[f"ullage_{name}"].restype = ctypes.c_uint64
        self._library.ullage_hook.argtypes = [ctypes.c_uint64]
        self._library.ullage_ring.argtypes = [ctypes.c_uint64, *[ctypes.c_void_p] * 8]
        self._library.ullage_handed.argtypes = [ctypes.c_uint64, ctypes.c_void_p]
        self._library.ullage_note_block.argtypes = [ctypes.c_int, *[ctypes.c_int64] * 3]
        self._level = (ctypes.c_uint64 * 2)()

    def hook(self) -> bool:
        """Notes events from here on; False: libc10_cuda has no slot for them, and none is noted."""
        library.stand_on(self._library)
        if self._library.ullage_hook(self._ring_bytes):
            return True
        self.remove()
        return False

    def begin(self) -> None:
        """Notes what is there already, with its owners."""
        if self._note_blocks():
            self._claims.claim_everything()

    def remove(self) -> None:
        """Takes the hook out and forgets the events."""
        self._library.ullage_unhook()
        library.stand_on(None)

    def leave(self) -> None:
        """Notes nothing."""
        self._library.ullage_stop_noting()

    def prepare(self) -> None:
        """Looks at the ring."""
        self.kept = self.ring()

    def fields(self) -> dict[str, Any]:
        """The events, what libraries were handed, and what went between host and device."""
        ring = self.kept
        copies, num_lost_copies = self._copies(ring)
        pinned, highest_bytes = self._pinned(ring)
        return {
            "first_position": ring.first_position,
            "events": ring.columns,
            "workspaces": self._workspaces(ring),
            "copies": copies,
            "num_lost_copies": num_lost_copies,
            "pinned": pinned,
            "pinned_peak_bytes": highest_bytes,
            "measured": {"num_lost": self.num_lost},
        }

    def remarks(self) -> list[str]:
        """That events are missing."""
        text = (
            f"the oldest {self.num_lost:,} allocator events are not in the record, as its ring was "
            "full; a larger --ring keeps more"
        )
        return [text] if self.num_lost else []

    @property
    def num_lost(self) -> int:
        """The number of events that have left the ring."""
        return int(self._library.ullage_first_position())

    def ring(self) -> Ring:
        """The rows that are kept now."""
        counts = (ctypes.c_uint64 * 2)()
        first = _MORE
        while first == _MORE:
            num_rows = int(self._library.ullage_num_rows()) + _SPARE_ROWS
            births = array.array("Q", bytes(8 * num_rows))
            columns = {name: array.array(code, [0]) * num_rows for name, code in _COLUMNS}
            pointers = [column.buffer_info()[0] for column in (births, *columns.values())]
            first = int(self._library.ullage_ring(num_rows, counts, *pointers))
        num_before, num_events = counts
        raw = {}
        for name, _ in _COLUMNS:  # each is freed as the next is copied
            column = memoryview(columns.pop(name))
            raw[name] = column[: num_before + num_events].tobytes()
        return Ring(first, births[:num_before], cast("EventColumns", raw))

    def _note_blocks(self) -> bool:
        """Notes the blocks that were live before the hook was, as if they were allocated now;
        whether there are any.
        """
        if library.position():
            return False
        segments = self._torch.cuda.memory_snapshot()
        reserved: Counter[int] = Counter()
        for segment in segments:
            reserved[segment["device"]] += segment["total_size"]
        for segment in segments:
            device, address = segment["device"], segment["address"]
            for block in segment["blocks"]:
                place = block.get("address", address)
                if block["state"] == "active_allocated":
                    self._library.ullage_note_block(device, place, block["size"], reserved[device])
                address = place + block["size"]
        return bool(library.position())

    def _workspaces(self, ring: Ring) -> Rows:
        """Blocks that libraries were handed as scratch, or to exchange: [position, device, address,
        bytes, library], the last of them. The bytes are not known; 0.
        """
        row = (ctypes.c_int64 * 3)()
        handed = []
        for number in range(self._library.ullage_num_handed()):
            self._library.ullage_handed(number, row)
            handed.append((row[0], row[1], library.LIBRARIES[row[2]]))
        return place_workspaces(handed, ring, self._max_workspaces)

    def _copies(self, ring: Ring) -> tuple[Rows, int]:
        """The copies between host and device since the ring begins, as in the record, and how
        many were lost before these.
        """
        rows, num_lost = self._rows("copies")
        in_ring = [row for row in rows if row[0] >= ring.first]
        return in_ring, num_lost + len(rows) - len(in_ring)

    def _pinned(self, ring: Ring) -> tuple[Rows, int]:
        """The host memory that was pinned since the hook, whenever it changed: [position, bytes],
        and the most.
        """
        rows, highest_bytes = self._rows("pinned_levels")
        before = [[ring.first, size] for position, size in rows if position < ring.first]
        return [*before[-1:], *(row for row in rows if row[0] >= ring.first)], highest_bytes

    def _rows(self, name: str) -> tuple[list[list[int]], int]:
        """The rows of a list of the library's, and the number that it answers besides."""
        read, other = self._library[f"ullage_{name}"], ctypes.c_uint64()
        width = len(ROWS[_WIDTH_OF[name]])
        cells = (ctypes.c_int64 * (width * read(None, None)))()
        count = read(cells, ctypes.byref(other))
        flat = iter(cells[: count * width])
        return [list(row) for row in zip(*[flat] * width, strict=True)], other.value

    def take_peak(self, device: int) -> tuple[int, int]:
        """The highest bytes of a device since this was last called: allocated, reserved; zeros
        where nothing has changed.
        """
        self._library.ullage_take_peak(device, self._level)
        return self._level[0], self._level[1]


def place_workspaces(handed: Sequence[tuple[int, int, str]], ring: Ring, max_rows: int) -> Rows:
    """The workspaces in a ring, of those handed over as position, address and library.

    What was handed over before the ring stays if its block does, and counts from there on. Of more
    than `max_rows` the oldest in the ring go first.
    """
    devices = dict(zip(ring.addresses(), ring.columns["device"], strict=True))
    births = ring.births_by_address() if ring.first else {}
    before: dict[tuple[int, str], list[Any]] = {}
    within: Rows = []
    for position, address, name in handed:
        if address not in devices:
            continue
        device = devices[address]
        if position > ring.first or not ring.first:
            within.append([position, device, address, 0, name])
        elif births.get((device, address), position) < position:
            before[address, name] = [ring.first, device, address, 0, name]
    oldest = [*before.values()][:max_rows]
    if len(oldest) + len(within) > max_rows:
        within = _once_a_block(within, ring)
    return [*oldest, *within[max(0, len(within) + len(oldest) - max_rows) :]]


def _once_a_block(rows: Rows, ring: Ring) -> Rows:
    """The first row of each library and block: a block is noted again at times."""
    births: dict[int, list[int]] = {row[2]: [] for row in rows}
    sizes = array.array("q", ring.columns["bytes"])
    for number, address in enumerate(ring.addresses()):
        if sizes[number] > 0 and address in births:
            births[address].append(ring.first_position + number)
    once: dict[tuple[int, int, str], list[Any]] = {}
    for row in rows:
        life = bisect.bisect_left(births[row[2]], row[0])
        once.setdefault((life, row[2], row[4]), row)
    return list(once.values())
