"""The requests that a program answers: how long each took, and its memory while it was open.

Of all requests the times are counted, by name; the last ones are kept with their bytes, and of the
one with the most calls of the model, how the bytes grew with the calls. So the log is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ullage.ground.errors import SpecError
from ullage.players.inside.pressure.step_windows import TimeCounts

if TYPE_CHECKING:
    from ullage.log.record_schema import Rows

MAX_NAMES = 16
MAX_REQUESTS = 512
MAX_POINTS = 64
MAX_TOKENS = 2**40
_OTHERS = "(others)"
_NAME_CHARS = 80


class Request:
    """A request that is being answered.

    Attributes:
        name: of its kind, such as "chat"; requests of a name are counted together.
        outermost: the request within which it is answered, such as a server's around that of
            generate(); itself where there is none.

    Raises:
        SpecError: the name is not a text, or the tokens are not a number.
    """

    def __init__(
        self, name: str, num_tokens: int | None = None, around: Request | None = None
    ) -> None:
        if not isinstance(name, str):
            raise SpecError(f"{name!r} is not a name of a request; give a text, such as 'chat'")
        self.name = name
        self.num_tokens = num_tokens
        self.outermost: Request = self if around is None else around.outermost
        self.began_s = 0.0
        self.begin_bytes = 0
        self.num_beside = 0
        self.num_calls = 0
        self.last_call_bytes: int | None = None
        self.points: list[tuple[int, int]] = []
        self._peaks: dict[int, int] = {}
        self._stride = 1

    @property
    def num_tokens(self) -> int | None:
        """The number of tokens it has made, which the program may say; None: not known."""
        return self._num_tokens

    @num_tokens.setter
    def num_tokens(self, number: int | None) -> None:
        is_number = isinstance(number, int) and not isinstance(number, bool)
        if number is not None and not (is_number and 0 <= number <= MAX_TOKENS):
            raise SpecError(f"num_tokens={number!r} is not a count of tokens; give an int, or None")
        self._num_tokens = number

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated while it was open: of several devices the sum."""
        return sum(self._peaks.values())

    def reach(self, device: int, allocated_bytes: int) -> None:
        """This much was allocated on a device while it was open."""
        self._peaks[device] = max(self._peaks.get(device, 0), allocated_bytes)

    def note_call(self, allocated_bytes: int) -> None:
        """The model was called once more; this much is allocated after it. Of many calls every
        second, fourth, ... is kept.
        """
        if self.num_calls % self._stride == 0:
            self.points.append((self.num_calls + 1, allocated_bytes))
            if len(self.points) == MAX_POINTS:
                del self.points[1::2]
                self._stride *= 2
        self.num_calls += 1
        self.last_call_bytes = allocated_bytes


class RequestLog:
    """Collects requests."""

    def __init__(self) -> None:
        self.open: list[Request] = []
        self.num_requests = 0
        self._times: dict[str, TimeCounts] = {}
        self._rows: deque[list[object]] = deque(maxlen=MAX_REQUESTS)
        self._longest: Request | None = None

    def begin(self, request: Request, now_s: float, allocated_bytes: int) -> None:
        """A request begins; those that are open have one more beside them, but for what is answered
        within another.
        """
        self.open.append(request)
        request.began_s, request.begin_bytes = now_s, allocated_bytes
        num_beside = len({id(each.outermost) for each in self.open}) - 1
        for each in self.open:
            each.num_beside = max(each.num_beside, num_beside)

    def end(
        self, request: Request, now_s: float, allocated_bytes: int, *, has_failed: bool
    ) -> None:
        """It has been answered, or an exception ended it."""
        self.open.remove(request)
        seconds = now_s - request.began_s
        name = request.name[:_NAME_CHARS]
        if name not in self._times and len(self._times) >= MAX_NAMES:
            name = _OTHERS
        self._times.setdefault(name, TimeCounts()).add(seconds)
        self.num_requests += 1
        first_bytes = request.points[0][1] if request.points else None
        self._rows.append(
            [name, request.began_s, seconds, request.begin_bytes, allocated_bytes,
             request.peak_bytes, request.num_calls, request.num_tokens, first_bytes,
             request.last_call_bytes, request.num_beside, has_failed]
        )  # fmt: skip
        longest = 1 if self._longest is None else self._longest.num_calls
        if not request.num_beside and request.num_calls > longest:
            self._longest = request

    def rows(self) -> Rows:
        """The last requests, oldest first; the columns are those of the schema."""
        return [list(row) for row in self._rows]

    def time_rows(self) -> Rows:
        """[name, bin, requests, of the last ones]."""
        return [[name, *row] for name, times in self._times.items() for row in times.rows()]

    def growth_rows(self) -> Rows:
        """[call, bytes allocated after it] of the request with the most calls of those that had no
        other beside them; empty: none had two.
        """
        if self._longest is None or self._longest.last_call_bytes is None:
            return []
        last = (self._longest.num_calls, self._longest.last_call_bytes)
        return [list(point) for point in dict([*self._longest.points, last]).items()]
