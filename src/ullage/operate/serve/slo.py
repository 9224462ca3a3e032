"""The objective of a service: how long a request may take.

slo = parse_slo("ttft=1s,tpot=50ms")
slo.holds(ttft_s, tpot_s, e2e_s)        # of each request, whether it met all of them
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from ullage.ground.errors import SpecError
from ullage.operate.serve.traffic.spec import parse_duration

Seconds = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Slo:
    """Limits in seconds; None: there is none.

    Attributes:
        ttft_s: from the arrival to the first token.
        tpot_s: between two tokens after the first, on average over the request.
        e2e_s: from the arrival to the last token.
    """

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def holds(self, ttft_s: Seconds, tpot_s: Seconds, e2e_s: Seconds) -> npt.NDArray[np.bool_]:
        """True where requests met all limits; a request without an answer (NAN) meets none, and one
        of a single token has no time between tokens (NAN in `tpot_s` alone).
        """
        is_met = np.isfinite(e2e_s)
        for seconds, limit_s in ((ttft_s, self.ttft_s), (e2e_s, self.e2e_s)):
            if limit_s is not None:
                is_met &= seconds <= limit_s
        if self.tpot_s is not None:
            is_met &= ~(tpot_s > self.tpot_s)
        return is_met

    def text(self) -> str:
        """As parse_slo reads it."""
        limits = {
            field.name.removesuffix("_s"): getattr(self, field.name) for field in fields(self)
        }
        return ",".join(f"{name}={limit:g}s" for name, limit in limits.items() if limit is not None)


def parse_slo(text: str) -> Slo:
    """Parses "ttft=1s,tpot=50ms,e2e=20s"; at least one of them.

    Raises:
        SpecError: a name is not known or given twice, or a limit is not a time.
    """
    limits: dict[str, float] = {}
    names = [field.name.removesuffix("_s") for field in fields(Slo)]
    for part in text.split(","):
        name, equals, limit = (word.strip() for word in part.partition("="))
        if name not in names or not equals or f"{name}_s" in limits:
            raise SpecError(
                f"slo {text!r}: found {part!r}; expected each of {', '.join(names)} at most once, "
                "such as ttft=1s,tpot=50ms"
            )
        limits[f"{name}_s"] = parse_duration(limit)
    return Slo(**limits)
