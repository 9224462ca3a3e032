"""What the host takes for a step of an engine: to schedule it, and to take its tokens in.

    host = parse_host_time("1ms+20us")     # for each step, and for each request in it
    host.seconds(64)

It is an assumption of the user, not a measurement: the engine's own processor time on this machine
is no property of the server that is asked about.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from ullage.errors import SpecError

__all__ = ["NO_HOST_TIME", "HostTime", "parse_host_time"]

_UNITS_S: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s)")


class HostTime(NamedTuple):
    """Seconds of the host for each step, and for each request in it."""

    step_s: float = 0.0
    request_s: float = 0.0

    def seconds(self, requests: int) -> float:
        """Of a step with so many requests."""
        return self.step_s + self.request_s * requests

    def text(self) -> str:
        """As parse_host_time reads it."""
        return f"{1e6 * self.step_s:g}us+{1e6 * self.request_s:g}us"


NO_HOST_TIME: Final = HostTime()


def parse_host_time(text: str) -> HostTime:
    """Parses "1ms+20us", for each step and for each request in it, or "1ms".

    Raises:
        SpecError: a part is no time with a unit, or there are more than two.
    """
    matches = [_TIME.fullmatch(part.strip()) for part in text.split("+")]
    times_s = [float(match[1]) * _UNITS_S[match[2]] for match in matches if match]
    if len(times_s) != len(matches) or len(times_s) > 2:
        raise SpecError(
            f"host time {text!r}: expected the time of a step and of each request in it, such as "
            "1ms+20us"
        )
    return HostTime(*times_s)
