"""A deployment with CacheRouter in a Ray Serve of its own; prints what came of its requests."""

from __future__ import annotations

import asyncio
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

REQUEST = {"prompt": "x" * 300, "max_tokens": 300}  # 100 and 300 tokens
ATTEMPTS = 4
STORE_BYTES = 80 * 1024**2  # the least that Ray takes


@serve.deployment(
    num_replicas=2,
    max_ongoing_requests=100,
    ray_actor_options={"num_cpus": 0.1},
    request_router_config=RequestRouterConfig(
        request_router_class="ullage.operate.front.cluster.ray_router:CacheRouter",
        request_router_kwargs={"cache": 1000, "token_bytes": 1},
    ),
)
class Server:
    """Answers after a while."""

    def __init__(self) -> None:
        self.num_running = self.most = 0

    async def __call__(self, request: dict[str, Any]) -> tuple[int, int]:
        self.num_running += 1
        self.most = max(self.most, self.num_running)
        await asyncio.sleep(0.5)
        self.num_running -= 1
        return id(self), self.most


def start_ray() -> None:
    """Starts Ray, again where it is late: it gives its own node 30 seconds, which no setting
    changes (ray 2.60, `raylet_start_wait_time_s`), and a machine with other work takes longer.
    """
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(num_cpus=2, include_dashboard=False, object_store_memory=STORE_BYTES)
            return
        except Exception as error:  # Ray raises this very class
            if attempt == ATTEMPTS or "timed out" not in str(error):
                raise
            ray.shutdown()


def main() -> None:
    """Sends twelve requests at once, and one that is too large."""
    start_ray()
    serve.start(proxy_location="Disabled")
    handle = serve.run(Server.bind(), route_prefix=None)
    responses = [handle.remote(REQUEST) for _ in range(12)]
    answers = [response.result(timeout_s=120) for response in responses]
    most: dict[int, int] = {}
    for replica, count in answers:
        most[replica] = max(most.get(replica, 0), count)
    print("most at once:", *most.values())
    print("answered:", len(answers))
    try:
        handle.remote({"prompt": "x" * 9000}).result(timeout_s=60)
        print("too large: answered")
    except Exception as error:
        print("too large:", type(error).__name__)
    serve.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
