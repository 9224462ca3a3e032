"""When each piece of work begins and ends: streams as queues, and the host that fills them.

The host gives one piece of work after another, in the order of the log, and each takes it some time
(`HostCosts`). A stream begins a piece when the host has given it and the piece before it has ended;
it waits for events of other streams, and the host for streams, events or the device, as CUDA orders
them. A stream takes about 1,024 pieces; then the host waits for the oldest
(https://forums.developer.nvidia.com/t/68937).

Kernels on several streams share the device, and messages on several streams a link (sharing.py).
Messages take multiprocessors and bandwidth from the kernels beside them (contention.py); copies
between host and device run beside both at full speed.

Ignores: that copies slow kernels down; that another thread of the program gives work at the same
time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ullage.clock.contention import Bound, Contention, Load
from ullage.clock.sharing import Sharing
from ullage.log.work_log import EntryKind

_QUEUE: Final = 1024


@dataclass(frozen=True, slots=True)
class HostCosts:
    """Seconds that the host needs to give a piece of work.

    Attributes:
        launch_s: a kernel, a call of a library, a copy: with the operator around it.
        graph_s: a whole CUDA graph.
    """

    launch_s: float
    graph_s: float


@dataclass(frozen=True, slots=True)
class WorkTimes:
    """The times of pieces of work; all may grow while the log does.

    Attributes:
        seconds: of each piece of work.
        graph_seconds: of each graph.
        uses: of each piece of work what it needs of the device: what bounds a kernel, what a
            message takes; None: nothing that others need. None for all: nothing slows another.
        contention: how many times as much as by its law messages slow kernels.
    """

    seconds: Sequence[float]
    graph_seconds: Mapping[int, float]
    uses: Sequence[Bound | Load | None] | None = None
    contention: float = 0.0


class Moment(NamedTuple):
    """A mark of the program, and how far host and device are.

    Attributes:
        entry: the row of the log.
        mark: which mark, as a number of WORK_MARKS.
        number: of a step: its number.
        host_s: the host passes it.
        done_s: all work that was given before is done, and the host has passed.
    """

    entry: int
    mark: int
    number: int
    host_s: float
    done_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """The times of a log.

    Attributes:
        starts, ends: by row of the log, seconds; of a row that is not work both are the same.
        host_waits: for each time that the host waited: (row, from, until).
        moments: the program's marks.
    """

    starts: Sequence[float]
    ends: Sequence[float]
    host_waits: Sequence[tuple[int, float, float]]
    moments: Sequence[Moment]


def simulate(rows: Sequence[tuple[int, ...]], first: int, times: WorkTimes, host: HostCosts) -> Run:
    """Plays a log.

    Args:
        rows: of a log: (other, work, scope, position, lane, kind, device).
        first: the serial number before that of the first row.
    """
    player = Player(first, times, host)
    for row in rows:
        player.play(row)
    return Run(player.starts, player.ends, player.host_waits, player.moments)


class Player:
    """Plays a log row by row; `simulate` plays a whole one.

    Args:
        first: the serial number before that of the first row.
    """

    def __init__(self, first: int, times: WorkTimes, host: HostCosts) -> None:
        self.starts: list[float] = []
        self.ends: list[float] = []
        self.host_waits: list[tuple[int, float, float]] = []
        self.moments: list[Moment] = []
        self._serial = first
        self._times = times
        self._costs = host
        # By device, and of messages by link.
        self._sharing: defaultdict[tuple[int, str], Sharing] = defaultdict(Sharing)
        self._contention: defaultdict[int, Contention] = defaultdict(
            lambda: Contention(times.contention)
        )
        self._host_s = 0.0
        self._free_s: defaultdict[int, float] = defaultdict(float)  # by lane
        self._last_row: dict[int, int] = {}  # by lane
        self._shared: dict[int, Sharing] = {}  # by lane: where its last piece of work was placed
        self._device_of: dict[int, int] = {}
        self._records: dict[int, float] = {}
        self._pending: defaultdict[int, deque[float]] = defaultdict(lambda: deque(maxlen=_QUEUE))

    @property
    def host_s(self) -> float:
        """The time of the host."""
        return self._host_s

    def record_s(self, serial: int) -> float | None:
        """When the event with this record happened; None: the record is not in the log."""
        return self._records.get(serial)

    def pass_time(self, seconds: float) -> None:
        """The host does something of its own, or sleeps."""
        self._host_s += seconds

    def play(self, row: Sequence[Any]) -> None:
        """Takes the next row of the log."""
        other, work, _, _, lane, kind, device = row
        self._serial += 1
        if kind in (EntryKind.GIVEN, EntryKind.GRAPH):
            is_graph = kind == EntryKind.GRAPH
            times = self._times
            taken = times.graph_seconds.get(other, 0.0) if is_graph else times.seconds[work]
            use = None
            if times.uses is not None:
                use = Bound.MULTIPROCESSORS if is_graph else times.uses[work]
            self._device_of[lane] = device
            start = self._begin(lane, self._costs.graph_s if is_graph else self._costs.launch_s)
            end = start + taken if use is None else self._place(lane, start, taken, use)
            self._free_s[lane] = end
            self._pending[lane].append(end)
            self._last_row[lane] = len(self.ends)
            self.starts.append(start)
            self.ends.append(end)
            return
        if kind == EntryKind.RECORDED:
            self._records[self._serial] = max(self._free_s[lane], self._host_s)
        elif kind == EntryKind.WAITED:
            self._free_s[lane] = max(self._free_s[lane], self._records.get(other, 0.0))
        elif kind == EntryKind.HOST_WAITED_LANE:
            self._wait_until(self._free_s[lane])
        elif kind == EntryKind.HOST_WAITED_EVENT:
            self._wait_until(self._records.get(other, 0.0))
        elif kind == EntryKind.HOST_WAITED_DEVICE:
            self._wait_until(self._done_s(device))
        elif kind == EntryKind.MARKED:
            done_s = max(self._host_s, self._done_s(None))
            self.moments.append(Moment(len(self.ends), work, other, self._host_s, done_s))
        self.starts.append(self._host_s)
        self.ends.append(self._host_s)

    def _begin(self, lane: int, host_s: float) -> float:
        """The host gives a stream a piece of work; returns when that begins."""
        pending = self._pending[lane]
        if len(pending) == _QUEUE:
            self._host_s = max(self._host_s, pending[0])
        self._host_s += host_s
        return max(self._free_s[lane], self._host_s)

    def _place(self, lane: int, start: float, taken_s: float, use: Bound | Load) -> float:
        """When a piece of work ends that needs what others need, too."""
        device = self._device_of[lane]
        contention = self._contention[device]
        if isinstance(use, Bound):
            sharing = self._shared[lane] = self._sharing[device, ""]
            taken_s = contention.stretch(start, taken_s, use)
            end, lost = sharing.place(lane, start, taken_s)
            contention.note_kernel(lane, start, end, use)
            self._extend(lost)
            return end
        sharing = self._shared[lane] = self._sharing[device, use.link]
        end, lost = sharing.place(lane, start, taken_s)
        self._extend(lost)
        self._extend(contention.place_message(lane, start, end, use))
        return end

    def _extend(self, lost: Mapping[int, float]) -> None:
        """The last pieces of work of streams take longer, as others run beside them."""
        for lane, seconds in lost.items():
            self._free_s[lane] += seconds
            self._pending[lane][-1] += seconds
            self.ends[self._last_row[lane]] += seconds
            self._shared[lane].extend(lane, seconds)
            self._contention[self._device_of[lane]].extend(lane, seconds)

    def _wait_until(self, seconds: float) -> None:
        if seconds > self._host_s:
            self.host_waits.append((len(self.ends), self._host_s, seconds))
            self._host_s = seconds

    def _done_s(self, device: int | None) -> float:
        """When the streams of a device, or of all, have done what they were given."""
        return max(
            (
                seconds
                for lane, seconds in self._free_s.items()
                if device is None or self._device_of.get(lane, device) == device
            ),
            default=0.0,
        )
