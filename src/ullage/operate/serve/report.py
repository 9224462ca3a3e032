"""All that is reported of a server's run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

from ullage.ground.protocol.plain import Mark, figure
from ullage.operate.serve.cache_bytes import RealCache, real_cache
from ullage.operate.serve.curve import Curve
from ullage.operate.serve.measures import Measures
from ullage.operate.serve.run import Served
from ullage.operate.serve.slo import Slo


@dataclass(frozen=True, slots=True)
class ServeReport:
    """A run and its figures.

    Attributes:
        served: the engine's figures, what became of each request, the device's memory.
        measures: percentiles, throughput, goodput.
        slo: the objective; None: there is none.
        curve: the figures by load; None: only the traffic itself was sent.
    """

    SCHEMA: ClassVar[str] = "ullage.serve/1"

    served: Annotated[Served, Mark.FLAT]
    measures: Annotated[Measures, Mark.FLAT]
    slo: Slo | None
    curve: Curve | None = None

    @figure
    def cache(self) -> RealCache | None:
        """The bytes that a real GPU leaves for the cache."""
        return real_cache(self.served.outcome.engine, self.served.gpu)

    @figure
    def steps(self) -> Mapping[str, float]:
        """The number of the engine's steps, and the seconds of all of them."""
        outcome = self.served.outcome
        names = ("num_steps", "device_s", "prompt_s", "attention_s", "host_s")
        sums = {name: getattr(outcome, name) for name in names}
        return {**sums, "idle_frac": self.measures.idle_frac}
