"""vLLM's copies between the GPU's cache and that of the host (--kv-offloading-size), by time.

    transfers = Transfers(block_bytes, copy_times(find_gpu("l40s")))
    begin_s = transfers.begin(metadata, now_s)        # of a step
    output = transfers.take(end_s)                    # what the engine's worker would report

vLLM's scheduler decides which blocks go to the host and which come back; its worker copies them.
Here nothing is copied: a copy takes what the clock says of pinned memory, each direction one after
another, and then its job is reported as the worker does it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias

from ullage.clock.costs.transfers import copy_cost
from ullage.clock.given_work import Copy
from ullage.clock.interconnect import Interconnect
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError

Theirs: TypeAlias = Any
"""An object of vLLM, which has no type here."""
_TO_HOST, _TO_DEVICE = "to host", "to device"
_CONNECTOR: Final = "OffloadingConnector"


def copy_times(gpu: Gpu) -> Callable[[str, int], float]:
    """The seconds of a copy of pinned memory, by its direction and bytes."""
    links = Interconnect()
    return lambda direction, size: copy_cost(gpu, Copy(direction, size, True), links).duration.s  # noqa: FBT003


def check_connector(config: Theirs) -> None:
    """Raises SpecError for a connector of vLLM whose copies are not known here."""
    chosen = config.kv_transfer_config
    name = None if chosen is None else chosen.kv_connector
    if name not in (None, _CONNECTOR):
        raise SpecError(
            f"the connector {name} is not simulated here; leave it out, or use "
            "--kv-offloading-size GIB, which is vLLM's own offloading to the host"
        )


class _Direction:
    """Copies one way, one after another."""

    def __init__(self) -> None:
        self.free_s, self.moved_bytes = 0.0, 0
        self.ends_s: dict[int, float] = {}

    def add(self, job: int, size: int, now_s: float, copy_s: float) -> None:
        self.free_s = max(self.free_s, now_s) + copy_s
        self.moved_bytes += size
        self.ends_s[job] = self.free_s


class Transfers:
    """The copies that are under way.

    Counts: the bytes of the blocks; `copy_s` has the seconds for a direction and its bytes.
    Ignores: what else uses the link or the host's memory; that blocks are copied in pieces, one of
    each layer; that copies slow kernels down.
    """

    def __init__(self, block_bytes: int, copy_s: Callable[[str, int], float]) -> None:
        self._block_bytes, self._copy_s = block_bytes, copy_s
        self._stores, self._loads = _Direction(), _Direction()
        self._deferred: dict[int, int] = {}
        self._requests: dict[int, str] = {}

    @property
    def stored_bytes(self) -> int:
        """Copied to the host so far."""
        return self._stores.moved_bytes

    @property
    def loaded_bytes(self) -> int:
        """Copied back so far."""
        return self._loads.moved_bytes

    @property
    def next_s(self) -> float | None:
        """When the next copy ends; None: none is under way."""
        ends_s = [*self._stores.ends_s.values(), *self._loads.ends_s.values()]
        return min(ends_s, default=None)

    def begin(self, metadata: Theirs, now_s: float) -> float:
        """Takes the orders of a step that would begin now; when it begins.

        As vLLM's worker does it: stores wait for the next step, and blocks that are to be used
        again must have been stored before it begins.
        """
        flushed = set(metadata.jobs_to_flush or ())
        stores = {job: self._size(order.src_spec) for job, order in metadata.store_jobs.items()}
        now = {**self._deferred, **{job: stores[job] for job in flushed & stores.keys()}}
        for job, size in now.items():
            self._stores.add(job, size, now_s, self._copy_s(_TO_HOST, size))
        self._deferred = {job: size for job, size in stores.items() if job not in now}
        for job, order in metadata.load_jobs.items():
            size = self._size(order.dst_spec)
            self._loads.add(job, size, now_s, self._copy_s(_TO_DEVICE, size))
            self._requests[job] = order.req_id
        return max([now_s, *(self._stores.ends_s.get(job, now_s) for job in flushed)])

    def ended(self, now_s: float) -> tuple[set[int], set[str]]:
        """Jobs that have ended and were not told yet, and requests whose blocks came back."""
        jobs: set[int] = set()
        for direction in (self._stores, self._loads):
            jobs |= {job for job, end_s in direction.ends_s.items() if end_s <= now_s}
            for job in jobs & direction.ends_s.keys():
                del direction.ends_s[job]
        return jobs, {self._requests.pop(job) for job in jobs & self._requests.keys()}

    def take(self, now_s: float) -> Theirs:
        """vLLM's own record of the copies that have ended; None: none has."""
        jobs, requests = self.ended(now_s)
        if not jobs:
            return None
        from vllm.distributed.kv_transfer.kv_connector.v1.offloading.common import (
            OffloadingWorkerMetadata,
        )
        from vllm.v1.outputs import KVConnectorOutput

        done = OffloadingWorkerMetadata(completed_jobs=dict.fromkeys(jobs, 1))
        return KVConnectorOutput(finished_recving=requests or None, kv_connector_worker_meta=done)

    def _size(self, blocks: Theirs) -> int:
        return len(blocks.block_ids) * self._block_bytes


def copy_at_once(scheduled: Theirs) -> Theirs:
    """Takes the orders for copies out of a step that vLLM's worker runs, so that the step alone is
    measured; vLLM's record of them as ended. None: there are none.
    """
    orders = scheduled.kv_connector_metadata
    if orders is None:
        return None
    scheduled.kv_connector_metadata = type(orders)(load_jobs={}, store_jobs={})
    transfers = Transfers(0, lambda _direction, _size: 0.0)
    transfers.begin(orders, 0.0)
    transfers.begin(scheduled.kv_connector_metadata, 0.0)  # the stores that waited for a next step
    return transfers.take(0.0)
