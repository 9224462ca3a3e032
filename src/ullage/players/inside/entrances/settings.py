"""The settings of a recording, from an option or from the parent's variable."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ullage.ground.parsing import parse_json
from ullage.ground.protocol.plain import plain, restore
from ullage.ground.protocol.variables import RECORDING
from ullage.ground.units import MIB, parse_bytes
from ullage.players.inside.steps.step_rows import MAX_ROWS

DEFAULT_RING_BYTES = 64 * MIB
MIN_RING_BYTES = MIB
# Of the ring, in eighths: for the hook's events, PyTorch's stacks, and the rows beside them.
_SHARES = 8
_EVENT_SHARE = {"full": 1, "events": 5, "counters": 0}
_STACK_SHARE = {"full": 6, "events": 0, "counters": 0}
_ROW_SHARE = {"full": 1, "events": 3, "counters": 8}
# Of host memory for a row, with what Python adds: as measured, rounded up.
_MARK_BYTES, _CLAIM_BYTES, _STEP_BYTES, _HOLDER_BYTES = 128, 32, 64, 256
_SCRATCH_BYTES = 24  # in the file, where marks take a tenth: in memory it has a table of its own
_OOM_BYTES, _SCOPE_BYTES, _MIN_SCOPES = 512, 256, 4096


class Mode(enum.Enum):
    """The amount that is recorded.

    FULL: every allocation with its stack, owner and module. EVENTS: the same without stacks.
    COUNTERS: the peaks of each step, from the allocator's own counters; nothing is called when
    memory is allocated.
    """

    FULL = "full"
    EVENTS = "events"
    COUNTERS = "counters"


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The number of rows kept of each kind; the oldest go.

    Attributes:
        num_marks: of phases and steps.
        num_claims: of owners.
        num_steps: rows of step peaks, each for one step or more; even.
        num_workspaces: blocks that libraries were handed.
        num_holders: names of variables, of tensors and graphs each.
        num_ooms: failures, the first and the last one.
        num_scopes: modules with a name of their own, over all models.
    """

    num_marks: int
    num_claims: int
    num_steps: int
    num_workspaces: int
    num_holders: int
    num_ooms: int
    num_scopes: int

    @classmethod
    def for_room(cls, room: int) -> RowLimits:
        """The rows that this many bytes have room for: 3/8 marks, 3/8 claims, the rest the others.

        Modules come besides: a model has as many as it has.
        """
        small = room // 16
        return cls(
            num_marks=3 * room // 8 // _MARK_BYTES,
            num_claims=3 * room // 8 // _CLAIM_BYTES,
            num_steps=min(small // _STEP_BYTES, MAX_ROWS) // 2 * 2,
            num_workspaces=room // 4 // _SCRATCH_BYTES,
            num_holders=small // _HOLDER_BYTES,
            num_ooms=small // _OOM_BYTES,
            num_scopes=max(_MIN_SCOPES, room // _SCOPE_BYTES),
        )


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """The settings of one process's recording.

    Attributes:
        path: the file of the recording; None: it is only kept in memory, and published.
        mode: how much is recorded.
        ring_bytes: the host memory for events, stacks and all rows beside them, about.
        flush_s: the file is written anew after a step when this many seconds have passed; None: at
            the end and when memory runs out only.
        is_published: whether the job publishes its state for `ullage watch`.
        has_kernels: whether the kernels of the third step are timed.
        is_first: whether this is the process that `ullage record` started.
    """

    path: Path | None = None
    mode: Mode = Mode.FULL
    ring_bytes: int = DEFAULT_RING_BYTES
    flush_s: float | None = 60.0
    is_published: bool = True
    has_kernels: bool = False
    is_first: bool = False

    @property
    def event_ring_bytes(self) -> int:
        """For the events of the hook."""
        return self.ring_bytes * _EVENT_SHARE[self.mode.value] // _SHARES

    @property
    def stack_ring_bytes(self) -> int:
        """For torch's own history: with stacks, or without them in the place of the events."""
        share = _STACK_SHARE[self.mode.value] or _EVENT_SHARE[self.mode.value]
        return self.ring_bytes * share // _SHARES

    @property
    def limits(self) -> RowLimits:
        """The limits of the rows beside the events."""
        return RowLimits.for_room(self.ring_bytes * _ROW_SHARE[self.mode.value] // _SHARES)

    def to_variable(self) -> str:
        """The text of the variable RECORDING."""
        return json.dumps(plain(self))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> RecordingSettings:
        """Reads what the parent asks for."""
        return restore(cls, parse_json(environment[RECORDING]), RECORDING)


def parse_ring(text: str | int) -> int:
    """The size of a ring, such as "64MiB"; raises SpecError where it is none, or below 1 MiB."""
    from ullage.ground.errors import SpecError

    num_bytes = parse_bytes(text)
    if num_bytes < MIN_RING_BYTES:
        raise SpecError(f"a ring of {text!r} is too small; expected 1MiB or more")
    return num_bytes
