"""The front's policy as a request router of Ray Serve.

    @serve.deployment(
        request_router_config=RequestRouterConfig(
            request_router_class="ullage.operate.front.cluster.ray_router:CacheRouter",
            request_router_kwargs={"cache": "40GiB", "token_bytes": 131072},
        ),
        max_ongoing_requests=256,
    )

A request waits in the router until a replica's cache has room for it, the tenant with the fewest
byte-seconds first; `user` of the request is the tenant. What never fits fails at once. Each router
process (a proxy, a handle) counts its own requests: where there are several, give each its part of
the cache. Ray Serve's replicas, retries and health checks are as always.

Checked with Ray 2.60 (tests/unit/front/cluster).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Final

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from ullage.ground.errors import UllageError
from ullage.ground.units import parse_bytes
from ullage.operate.front.cluster.replicas import Replicas, ReplicaSpec, read_asked
from ullage.operate.front.policy.request import Reject

_ROUTING_TASKS: Final = 4096


class RequestRefused(UllageError):
    """A request that fits no replica, or that no replica is there for."""


# Ray is not there where types are checked.
class CacheRouter(RequestRouter):  # type: ignore[misc]
    """Routes by the bytes of cache that requests will take."""

    # A task of Ray's looks after one request that waits; all of them are to be seen here, else
    # there is nothing to choose from.
    max_num_routing_tasks_cap = _ROUTING_TASKS

    @property
    def max_num_routing_tasks(self) -> int:
        """Requests that are looked at."""
        return _ROUTING_TASKS

    def initialize_state(
        self,
        *,
        cache: str | int,
        token_bytes: int,
        block_tokens: int = 16,
        max_requests: int = 256,
        max_tokens: int = 1024,
        weights: Mapping[str, float] | None = None,
    ) -> None:
        """Takes `request_router_kwargs`: those of `ReplicaSpec`, the cache as "40GiB" or bytes."""
        spec = ReplicaSpec(
            parse_bytes(cache), token_bytes, block_tokens, max_requests, max_tokens, weights
        )
        self._ledger = Replicas(spec)
        self._pending: dict[str, PendingRequest] = {}
        # Ray calls `on_request_completed` from whichever thread sees the answer.
        self._lock = threading.Lock()

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Takes which replicas there are."""
        with self._lock:
            self._ledger.update(each.replica_id.unique_id for each in replicas)
        super().update_replicas(replicas)

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The one replica that has room for the request; none: it is asked again soon."""
        if pending_request is None:
            return []
        pending_request.routing_context.should_backoff = True
        key = pending_request.metadata.internal_request_id
        asked = read_asked((*pending_request.args, *pending_request.kwargs.values()))
        with self._lock:
            self._drop_cancelled()
            self._pending.setdefault(key, pending_request)
            place = self._ledger.place(key, asked, time.monotonic())
            if isinstance(place, Reject):
                del self._pending[key]
        if isinstance(place, Reject):
            if not pending_request.future.done():
                pending_request.future.set_exception(RequestRefused(place.reason.value))
            return [candidate_replicas]  # Ray sees that the request is done only if it gets some
        chosen = [each for each in candidate_replicas if each.replica_id.unique_id == place]
        if place is not None and not chosen:  # it is gone: the request is placed anew
            self.on_request_completed(None, key)
        return [chosen] if chosen else []

    def on_request_completed(self, replica_id: ReplicaID | None, internal_request_id: str) -> None:
        """A request has ended, however it did: its bytes are free."""
        del replica_id
        with self._lock:
            self._pending.pop(internal_request_id, None)
            self._ledger.finish(internal_request_id, time.monotonic())

    def _drop_cancelled(self) -> None:
        """Forgets those whose callers have gone while they waited."""
        gone = [key for key, each in self._pending.items() if each.future.cancelled()]
        for key in gone:
            del self._pending[key]
            self._ledger.finish(key, time.monotonic())
