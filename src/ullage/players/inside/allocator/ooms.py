"""The allocations that found no room: noted as they fail, whether the program catches them or not.

Who holds what is looked up at each, which takes some hundredths of a second: a program that lives
with thousands of failures (a search for the largest batch) is looked at more and more seldom, and
once more when one is about to end it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ullage.players.inside.owners import source_location
from ullage.players.inside.owners.attempts import Work, find_attempts, users_frames, work_of

if TYPE_CHECKING:
    from ullage.log.record_schema import OomFields

# At a place of the program: the first failures, and then those whose number is a power of two.
_ALWAYS = 2
_MAX_ROWS = 10_000


class OutOfMemories:
    """Collects failures. One for the process.

    Args:
        torch: the module.
        look: notes who holds what.
        max_rows: the rows that are kept: the first max_rows - 1, and the last.
        find_position: of an event that comes now.
    """

    def __init__(
        self,
        torch: ModuleType,
        look: Callable[[], None],
        max_rows: int | None,
        find_position: Callable[[], int],
    ) -> None:
        self._find_position = find_position
        self._max_rows = max_rows or _MAX_ROWS
        self.rows: list[OomFields] = []
        self._torch: Any = torch
        self._look = look
        self.is_looked_at = False
        """True if it was noted at the last failure who holds what."""
        self._counts: dict[str | None, int] = {}
        self._works: list[tuple[int, Work]] = []
        self._requests: list[dict[str, Any]] = []

    def note(self, device: int, requested: int, _device_total: int, _device_free: int) -> None:
        """torch's observer: an allocation has failed."""
        frames = source_location.frames_here()
        where = source_location.describe(frames)
        count = self._counts[where] = self._counts.get(where, 0) + 1
        self.is_looked_at = count <= _ALWAYS or count & (count - 1) == 0
        if self.is_looked_at:
            self._look()
        if len(self.rows) >= self._max_rows:
            del self.rows[-1], self._works[-1]
        self._works.append((device, work_of(users_frames(frames))))
        self.rows.append(
            {
                "position": self._find_position(),
                "device": device,
                "requested_bytes": requested,
                "message": None,
                "where": where,
            }
        )

    def note_request(self, num_bytes: int, has_room: int) -> None:
        """A request from the driver, of a program whose tensors have no cache of torch's."""
        stack = [
            {"filename": file, "line": line, "name": name}
            for file, line, name in source_location.frames_here()
        ]
        action, device = "alloc" if has_room else "oom", int(self._torch.cuda.current_device())
        request = {"action": action, "size": num_bytes, "frames": stack, "device": device}
        if self._requests[-1:] == [request] and not has_room:
            return  # torch has tried it again itself
        self._requests.append(request)
        if not has_room:
            self.note(device, num_bytes, 0, 0)

    def attempts(self, snapshot: dict[str, Any]) -> list[list[Any]]:
        """The requests for the same work as those that failed; see `find_attempts`."""
        rows = find_attempts(self._works, [*snapshot["device_traces"], self._requests])
        for failures, sizes in rows:  # those before there were stacks
            num_missing = len(failures) - sum(size < 0 for size in sizes)
            early = failures[: max(num_missing, 0)]
            sizes[:0] = [-self.rows[number]["requested_bytes"] for number in early]
        return rows

    def note_exception(self, error: BaseException, where: str | None) -> None:
        """One that ends the program, which still has all that its functions hold."""
        if self.rows and isinstance(error, self._torch.OutOfMemoryError):
            if not self.is_looked_at:
                self._look()
            self.rows[-1]["message"] = str(error)
            self.rows[-1]["where"] = where or self.rows[-1]["where"]

    def note_end_of(self, what: str, error: BaseException | None) -> None:
        """One that nobody caught, and that ended a part of the program: a thread, a callback."""
        if error is None or not self._is_out_of_memory(error):
            return
        where = source_location.of_traceback(error.__traceback__)
        at_place = [row for row in self.rows if row["where"] == where]
        for row in (at_place or self.rows)[-1:]:
            row["message"], row["ended"] = str(error), what

    def _is_out_of_memory(self, error: BaseException) -> bool:
        if isinstance(error, self._torch.OutOfMemoryError):
            return True
        # cuBLAS and others say so in a RuntimeError.
        text = str(error).lower() if isinstance(error, RuntimeError) else ""
        return "out of memory" in text or "_alloc_failed" in text
