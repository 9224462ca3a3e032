"""The worth of each flag of a server: tokens of the cache, and requests within the objective.

for worth in find_worths(bounds, candidate, order):
    print(worth.flag, worth.is_taken, worth.tokens_frac, worth.goodput_frac)

Each row changes one flag of the command and leaves the others; both figures are closed forms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ullage.operate.serve.forecast.forecast import resolve_plan
from ullage.operate.serve.search.bounds import Bounds
from ullage.operate.serve.search.candidate import Candidate, given_flags
from ullage.operate.serve.search.search import Order

_DEFAULTS: Final[dict[str, object]] = {
    "max_seqs": None, "max_batched_tokens": None, "utilization": None, "kv": "auto",
    "weights": "auto",
}  # fmt: skip
_MOST_FACTOR: Final = 16.0
_STEPS: Final = 6


@dataclass(frozen=True, slots=True)
class Worth:
    """One flag.

    Attributes:
        flag: as in the command, or would have it.
        is_taken: it is in the command; the figures are then those of the command without it.
        tokens_frac: the tokens of the changed cache, of those of the command.
        goodput_frac: of the changed command, by the forecast.
        what: what it does, in a few words.
    """

    flag: str
    is_taken: bool
    tokens_frac: float
    goodput_frac: float
    what: str


def find_worths(bounds: Bounds, candidate: Candidate, order: Order) -> tuple[Worth, ...]:
    """Every flag of the command that the search chose, and those that it left out."""
    base = bounds.judge(candidate)
    rows = []
    for flag, is_taken, changed, what in _changes(candidate, order):
        judged = bounds.judge(changed)
        share = judged.tokens / base.tokens if base.tokens else 0.0
        rows.append(Worth(flag, is_taken, share, judged.goodput_frac, what))
    return tuple(rows)


def _changes(candidate: Candidate, order: Order) -> Iterator[tuple[str, bool, Candidate, str]]:
    given = given_flags(order.command)
    for name in candidate.chosen:
        if name in _DEFAULTS:
            yield (
                candidate.flag(name), True, candidate.without(name, _DEFAULTS[name]),
                "without it: vLLM's default",
            )  # fmt: skip
    plan = resolve_plan(candidate.plan, candidate.gpu)
    if "kv" not in given and plan.kv == "auto":
        changed = candidate.with_fields(kv="fp8")
        yield "--kv-cache-dtype fp8", False, changed, "rounds keys and values"
    if "weights" not in given and plan.weights == "auto":
        changed = candidate.with_fields(weights="fp8")
        yield "--quantization fp8", False, changed, "rounds weights"
    if "has_prefix_caching" not in given:
        changed = candidate.with_fields(has_prefix_caching=False)
        yield "--no-enable-prefix-caching", False, changed, "nothing is found again"
    if "has_graphs" not in given:
        changed = candidate.with_fields(has_graphs=False)
        yield "--enforce-eager", False, changed, "no CUDA graphs"
    if "max_batched_tokens" not in given and (plan.max_batched_tokens or 0) < plan.context:
        changed = candidate.with_fields(max_batched_tokens=plan.context)
        yield (
            f"--no-enable-chunked-prefill --max-num-batched-tokens {plan.context}", False, changed,
            "the longest prompt in one step; the forecast still cuts prompts",
        )  # fmt: skip


def find_capacity(bounds: Bounds, candidate: Candidate, order: Order) -> float:
    """How many times the traffic's rate the candidate holds by the forecast, bisected; 0: not even
    its own rate. Arrivals come closer, lengths stay.
    """

    def holds(factor: float) -> bool:
        faster = Bounds(bounds.config, bounds.traffic.faster(factor), bounds.slo)
        return faster.judge(candidate).goodput_frac >= order.target_frac

    if bounds.traffic.num_users is not None:
        return 1.0 if holds(1.0) else 0.0
    low, high = 0.0, 1.0
    while high < _MOST_FACTOR and holds(high):
        low, high = high, 2 * high
    if not low:
        return 0.0
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
