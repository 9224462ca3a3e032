"""Bounds a server by closed forms: does it start, how many tokens has its cache, and would it hold
the objective by the forecast?

bounds = Bounds(config, traffic, slo)
bounds.judge(candidate).goodput_frac
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final

from ullage.facts.families.config import Config
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import Mark
from ullage.operate.serve.forecast.forecast import forecast_traffic
from ullage.operate.serve.forecast.step_seconds import StepSeconds
from ullage.operate.serve.search.candidate import Candidate
from ullage.operate.serve.slo import Slo
from ullage.operate.serve.traffic import Traffic
from ullage.players.eager.serving.serving import estimate_serving
from ullage.players.eager.term import Verdict

_MOST_SEQS: Final = 1024
_MOST_TOKENS: Final = 16384


@dataclass(frozen=True, slots=True)
class Judged:
    """The judgement of a candidate by the closed forms.

    Attributes:
        candidate: it.
        tokens: of its cache, likely; 0: nothing is left for one.
        goodput_frac: the share of all requests that meet the objective; 0 where it does not start.
        num_preemptions: likely.
        reason: why it cannot be; "": it can.
    """

    candidate: Annotated[Candidate, Mark.FLAT]
    tokens: int
    goodput_frac: float
    num_preemptions: int
    reason: str = ""


class Bounds:
    """Judges candidates; the prices of steps are kept by GPU."""

    def __init__(self, config: Config, traffic: Traffic, slo: Slo) -> None:
        self.config, self.traffic, self.slo = config, traffic, slo
        self._seconds: dict[tuple[object, ...], StepSeconds] = {}

    def judge(self, candidate: Candidate) -> Judged:
        """The closed forms of one candidate."""
        try:
            estimate = estimate_serving(self.config, candidate.plan)
        except SpecError as error:
            return Judged(candidate, 0, 0.0, 0, str(error))
        tokens = estimate.tokens[1] if estimate.tokens else 0
        if estimate.verdict is Verdict.DOES_NOT_FIT or tokens < candidate.plan.context:
            reason = estimate.reason or "nothing is left for the cache"
            return Judged(candidate, max(0, tokens), 0.0, 0, reason)
        forecast = forecast_traffic(
            self.config, candidate.plan, self.traffic, estimate.kv_bytes[1],
            self._price(candidate),
        )  # fmt: skip
        goodput = forecast.goodput(self.slo, self.traffic)
        return Judged(candidate, tokens, goodput, forecast.num_preemptions)

    def tokens(self, candidate: Candidate) -> int:
        """The tokens of its cache, likely; 0: it does not start."""
        try:
            return max(0, estimate_serving(self.config, candidate.plan).tokens[1])
        except SpecError:
            return 0

    def _price(self, candidate: Candidate) -> StepSeconds:
        plan = candidate.plan
        key = (candidate.gpu.slug, plan.tensor_parallel, plan.weights, plan.has_graphs)
        if key not in self._seconds:
            most = replace(plan, max_seqs=_MOST_SEQS, max_batched_tokens=_MOST_TOKENS)
            self._seconds[key] = StepSeconds(self.config, most, candidate.gpu)
        return self._seconds[key]
