"""What a recording is to keep, and where: from an option, or from the parent's variable."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from ullage.protocol.variables import RECORDING
from ullage.units import MIB, parse_bytes

DEFAULT_RING_BYTES = 64 * MIB
MIN_RING_BYTES = MIB
_STACK_SHARE = 4  # of the ring, one part in so many is for the hook's events, the rest for stacks


class Mode(enum.Enum):
    """How much is recorded.

    FULL: every allocation with its stack, owner and module. EVENTS: the same without stacks.
    COUNTERS: the peaks of each step, from the allocator's own counters; nothing is called when
    memory is allocated.
    """

    FULL = "full"
    EVENTS = "events"
    COUNTERS = "counters"


@dataclass(frozen=True, slots=True)
class RecordingSettings:
    """What one process records.

    Attributes:
        path: the file of the recording; None: it is only kept in memory, and published.
        mode: how much is recorded.
        ring_bytes: the host memory for events and stacks, about.
        flush_s: the file is written anew after a step when so many seconds have passed; None: at
            the end and when memory runs out only.
        is_published: whether the job publishes its state for `ullage watch`.
        is_first: whether this is the process that `ullage record` started.
        trackers: the names of the experiment trackers that are told of the steps.
    """

    path: Path | None = None
    mode: Mode = Mode.FULL
    ring_bytes: int = DEFAULT_RING_BYTES
    flush_s: float | None = 60.0
    is_published: bool = True
    is_first: bool = False
    trackers: tuple[str, ...] = ()

    @property
    def event_ring_bytes(self) -> int:
        """For the events of the hook."""
        share = _STACK_SHARE if self.mode is Mode.FULL else 1
        return self.ring_bytes // share

    @property
    def stack_ring_bytes(self) -> int:
        """For torch's own history with stacks."""
        return self.ring_bytes - self.event_ring_bytes

    def to_variable(self) -> str:
        """The text of the variable RECORDING."""
        return json.dumps({**asdict(self), "path": str(self.path), "mode": self.mode.value})

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> RecordingSettings:
        """What the parent asks for."""
        fields = json.loads(environment[RECORDING])
        return cls(
            **{
                **fields,
                "path": Path(fields["path"]),
                "mode": Mode(fields["mode"]),
                "trackers": tuple(fields["trackers"]),
            }
        )


def parse_ring(text: str | int) -> int:
    """The size of a ring, such as "64MiB"; raises SpecError where it is none, or below 1 MiB."""
    from ullage.errors import SpecError

    num_bytes = parse_bytes(text)
    if num_bytes < MIN_RING_BYTES:
        raise SpecError(f"a ring of {text!r} is too small; expected 1MiB or more")
    return num_bytes
