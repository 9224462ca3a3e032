"""The router in a real Ray Serve of this machine alone, on its loopback device; and its answers to
calls as Ray makes them, without Ray.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

# Ray listens on the loopback device alone (ray 2.60, ENABLE_RAY_CLUSTER).
ALONE = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0", "RAY_USAGE_STATS_ENABLED": "0"}
# Seconds until its first process answers; 30 by default, too few for a machine with other work.
PATIENT = {"RAY_gcs_server_port_wait_time_s": "120", "RAY_worker_register_timeout_seconds": "240"}
PROGRAM = Path(__file__).with_name("serve_program.py")


@pytest.mark.nightly
def test_replicas_are_never_given_more_than_their_caches_hold() -> None:
    """Two replicas whose caches hold two requests each, and twelve requests at once: each replica
    says how many it ran at the same time, and what never fits fails.
    """
    python = os.environ.get("ULLAGE_TEST_RAY_PYTHON", sys.executable)
    has_serve = subprocess.run([python, "-c", "import ray.serve"], capture_output=True, check=False)
    if has_serve.returncode:
        pytest.skip("needs ray[serve], here or in the Python of ULLAGE_TEST_RAY_PYTHON")
    outcome = subprocess.run(
        [python, str(PROGRAM)], env=os.environ | ALONE | PATIENT, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert outcome.returncode == 0, outcome.stderr[-4000:]
    lines = outcome.stdout.splitlines()
    assert "most at once: 2 2" in lines
    assert "answered: 12" in lines
    assert "too large: RequestRefused" in lines
    assert "Unexpected error" not in outcome.stderr


class Router:
    """Stands for Ray's."""

    def update_replicas(self, replicas: list[Any]) -> None:
        self.replicas = replicas


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A router to two replicas, whose caches hold 1,000 tokens each."""
    name = "ullage.operate.front.cluster.ray_router"
    stand_in = SimpleNamespace(
        PendingRequest=object, ReplicaID=object, RequestRouter=Router, RunningReplica=object
    )
    monkeypatch.setitem(sys.modules, "ray.serve.request_router", stand_in)
    monkeypatch.delitem(sys.modules, name, raising=False)
    made = importlib.import_module(name).CacheRouter()
    made.initialize_state(cache="1000", token_bytes=1, block_tokens=1)
    made.update_replicas([SimpleNamespace(replica_id=SimpleNamespace(unique_id=n)) for n in "ab"])
    yield made
    del sys.modules[name]


def request(name: str, tokens: int) -> Any:
    """One whose prompt and answer have so many tokens together."""
    return SimpleNamespace(
        args=({"prompt": "x" * 30, "max_tokens": tokens - 10},),
        kwargs={},
        metadata=SimpleNamespace(internal_request_id=name),
        routing_context=SimpleNamespace(should_backoff=False),
        future=asyncio.Future(),
    )


def test_a_request_waits_for_room_and_one_whose_caller_is_gone_takes_none(router: Any) -> None:
    async def play() -> None:
        async def place(pending: Any) -> list[str]:
            rows = await router.choose_replicas(router.replicas, pending)
            return [each.replica_id.unique_id for row in rows for each in row]

        first, second, gone, last = (request(name, 600) for name in ("1", "2", "3", "4"))
        assert {*await place(first), *await place(second)} == {"a", "b"}
        assert await place(gone) == await place(last) == []
        gone.future.cancel()
        (where,) = await place(first)  # asked again: the same
        router.on_request_completed(None, "1")
        assert await place(last) == [where]

    asyncio.run(play())


def test_what_never_fits_fails_at_once(router: Any) -> None:
    async def play() -> None:
        large = request("1", 1200)
        assert await router.choose_replicas(router.replicas, large) == [router.replicas]
        error = large.future.exception()
        assert type(error).__name__ == "RequestRefused"

    asyncio.run(play())


def test_a_replica_that_ray_does_not_offer_gets_nothing_and_the_request_is_placed_anew(
    router: Any,
) -> None:
    async def play() -> None:
        pending = request("1", 600)
        assert await router.choose_replicas([], pending) == []
        assert pending.routing_context.should_backoff
        assert [len(row) for row in await router.choose_replicas(router.replicas, pending)] == [1]
        assert await router.choose_replicas(router.replicas) == []

    asyncio.run(play())
