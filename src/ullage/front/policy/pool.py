"""The engines that can replace each other: those that serve the same models.

pools = make_pools(engines, weights, spare_requests=None)
pools["llama"].engines
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ullage.front.policy.engine_ledger import Engine
from ullage.front.policy.room import Room

__all__ = ["Pool", "make_pools"]


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines, and what tenants hold in them together."""

    engines: tuple[Engine, ...]
    room: Room

    @property
    def up(self) -> list[Engine]:
        """Those that take requests now."""
        return [engine for engine in self.engines if engine.is_open]

    def spare_bytes(self, engine: Engine, tenant: str, num_bytes: int, now_s: float) -> int:
        """What a request of the tenant has to leave free in an engine, so that others find room:
        all that it has to leave, less what is free in other engines in pieces of use.
        """
        up = self.up
        usable_bytes = sum(each.usable_bytes for each in up)
        needed, piece = self.room.left_for_others(tenant, num_bytes, usable_bytes, now_s)
        if not needed:
            return 0
        free = (each.usable_bytes - each.reserved_bytes for each in up if each is not engine)
        missing = needed - sum(room for room in free if room >= piece)
        return max(missing, piece) if missing > 0 else 0

    def is_above_share(self, tenant: str, num_bytes: int, now_s: float) -> bool:
        """Whether the tenant would hold more than its share of the engines."""
        usable_bytes = sum(each.usable_bytes for each in self.up)
        return self.room.is_above_share(tenant, num_bytes, usable_bytes, now_s)


def make_pools(
    engines: Sequence[Engine], weights: Mapping[str, float], spare_requests: int | None
) -> dict[str, Pool]:
    """The pool of each model; models that the same engines serve have the same.

    Ignores: that pools of different models may have some engines in common; what a tenant holds
    there through one model is not seen through the other.
    """
    pools: dict[tuple[str, ...], Pool] = {}
    by_model = {}
    for model in sorted({model for engine in engines for model in engine.spec.models}):
        serving = tuple(engine for engine in engines if model in engine.spec.models)
        names = tuple(engine.spec.name for engine in serving)
        if names not in pools:
            pools[names] = Pool(serving, Room(weights, spare_requests))
        by_model[model] = pools[names]
    return by_model
