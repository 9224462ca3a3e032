"""All that is reported of a server's run."""

from __future__ import annotations

from dataclasses import dataclass

from ullage.serve.curve import Curve
from ullage.serve.measures import Measures
from ullage.serve.run import Served
from ullage.serve.slo import Slo


@dataclass(frozen=True, slots=True)
class ServeReport:
    """A run and its figures.

    Attributes:
        served: the engine's figures, what became of each request, the device's memory.
        measures: percentiles, throughput, goodput.
        slo: the objective; None: there is none.
        curve: the figures by load; None: only the traffic itself was sent.
    """

    served: Served
    measures: Measures
    slo: Slo | None
    curve: Curve | None = None
