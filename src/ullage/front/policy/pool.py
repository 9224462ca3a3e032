"""The engines that can replace each other: those that serve the same models.

pools = make_pools(engines, weights, spare_requests=None)
pools["llama"].engines
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ullage.front.policy.engine_ledger import Engine
from ullage.front.policy.room import Room


@dataclass(frozen=True, slots=True)
class Pool:
    """Engines, and what tenants hold in them together."""

    engines: tuple[Engine, ...]
    room: Room

    @property
    def up(self) -> list[Engine]:
        """The engines that take requests now."""
        return [engine for engine in self.engines if engine.is_open]

    def spare_bytes(self, tenant: str, num_bytes: int, now_s: float) -> dict[str, int] | None:
        """The bytes that the tenant's request leaves free in each engine that takes a long prompt
        now, so that others find room: all that it has to leave, less what is free in other engines
        in pieces of use. None for a tenant within its share: it goes anywhere, and leaves nothing.
        """
        if not self.is_above_share(tenant, num_bytes, now_s):
            return None
        up = self.up
        usable = [each.usable_bytes for each in up]
        needed, piece = self.room.left_for_others(tenant, num_bytes, sum(usable), now_s)
        free = [size - each.reserved_bytes for each, size in zip(up, usable, strict=True)]
        pieces = [room if room >= piece else 0 for room in free]
        missing = {
            each.spec.name: needed - (sum(pieces) - own)
            for each, own in zip(up, pieces, strict=True)
            if each.takes_heavy(tenant, now_s)
        }
        return {name: max(size, piece) if size > 0 else 0 for name, size in missing.items()}

    def is_above_share(self, tenant: str, num_bytes: int, now_s: float) -> bool:
        """True if the tenant would hold more than its share of the engines."""
        usable_bytes = sum(each.usable_bytes for each in self.up)
        return self.room.is_above_share(tenant, num_bytes, usable_bytes, now_s)


def add_engine(pools: dict[str, Pool], engine: Engine, make_room: Callable[[], Room]) -> None:
    """Adds an engine to the pools of its models; models that the same engines serve share one.

    Ignores: that pools of different models may have some engines in common; what a tenant holds
    there through one model is not seen through the other.
    """
    split: dict[int, Pool] = {}
    for model in engine.spec.models:
        pool = pools.get(model)
        members = () if pool is None else pool.engines
        # Models that were served by the same engines so far stay together if this one has all.
        key = id(pool)
        if key not in split:
            has_all = all(
                other in engine.spec.models for other, each in pools.items() if each is pool
            )
            room = pool.room if pool is not None and has_all else make_room()
            split[key] = Pool((*members, engine), room)
        pools[model] = split[key]
