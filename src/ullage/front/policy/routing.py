"""Which engine a request goes to, among those whose cache has room for it.

The cost of an engine is counted in prompt tokens: those that it has to compute before the first
token of the request, its own and those ahead of it, and `PRESSURE_TOKENS` times the share of its
cache that would be full. So a shared prefix attracts until its engine is busy or full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ullage.front.policy.engine_ledger import Engine
from ullage.front.policy.request import Request

PRESSURE_TOKENS: Final = 2048
ADAPTER_TOKENS: Final = 512  # what it costs to load an adapter that does not run yet


def cost(engine: Engine, request: Request) -> float:
    """The cost of a request at an engine, in prompt tokens."""
    fullness = engine.reserved_bytes / max(1, engine.usable_bytes)
    load = 0 if engine.has_adapter(request) else ADAPTER_TOKENS
    computed = engine.pending_tokens + engine.uncached_tokens(request)
    return computed + load + PRESSURE_TOKENS * fullness


def choose_engine(
    engines: Iterable[Engine],
    request: Request,
    output_tokens: int,
    now_s: float,
    spare: Callable[[], Mapping[str, int] | None] = lambda: None,
) -> Engine | None:
    """The engine to which the request goes now; None: it waits.

    An engine that computes many prompts already gets no more of them: those that wait here can
    still be put in another order, those that wait there cannot.

    Args:
        engines: that take requests.
        request: to be sent.
        output_tokens: that are expected of each of its sequences.
        now_s: the time.
        spare: gives the bytes that the request has to leave free, by engine, and of others it may
            go to none; None: to any, and it leaves nothing. Where it fits none this is not asked.
    """
    possible = [
        engine
        for engine in engines
        if _is_prompt(engine, request, now_s) and engine.fits(request, output_tokens)
    ]
    if possible and (spare_bytes := spare()) is not None:
        possible = [
            engine
            for engine in possible
            if (left := spare_bytes.get(engine.spec.name)) is not None
            and engine.fits(request, output_tokens, left)
        ]
    return min(possible, key=lambda engine: cost(engine, request), default=None)


def _is_prompt(engine: Engine, request: Request, now_s: float) -> bool:
    """True if the engine would come to the request soon, and before its deadline."""
    if (
        request.deadline_s is not None
        and now_s + engine.first_token_s(request) > request.deadline_s
    ):
        return False
    ahead = engine.pending_tokens
    return not ahead or ahead + engine.uncached_tokens(request) <= engine.spec.prefill_in_flight
