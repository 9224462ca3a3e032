"""Copies between the GPU's cache and the host's, by time: as vLLM's worker orders them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError
from ullage.operate.serve.vllm.offloading import Transfers, check_connector, copy_times

BLOCK = 1000
RATE = 1e6  # a block in a millisecond


def blocks(count: int) -> SimpleNamespace:
    return SimpleNamespace(block_ids=list(range(count)))


def orders(
    loads: dict[int, tuple[str, int]] | None = None,
    stores: dict[int, int] | None = None,
    flushed: set[int] | None = None,
) -> Any:
    """vLLM's metadata of a step: loads by job (request, blocks), stores by job (blocks)."""
    return SimpleNamespace(
        load_jobs={
            job: SimpleNamespace(req_id=name, dst_spec=blocks(count))
            for job, (name, count) in (loads or {}).items()
        },
        store_jobs={
            job: SimpleNamespace(src_spec=blocks(count)) for job, count in (stores or {}).items()
        },
        jobs_to_flush=flushed,
    )


@pytest.fixture
def transfers() -> Transfers:
    return Transfers(BLOCK, lambda _direction, size: size / RATE)


def test_stores_wait_for_the_next_step_and_delay_none(transfers: Transfers) -> None:
    assert transfers.begin(orders(stores={1: 4}), 1.0) == 1.0
    assert transfers.next_s is None
    assert transfers.begin(orders(), 2.0) == 2.0
    assert transfers.next_s == pytest.approx(2.004)
    assert transfers.stored_bytes == 4 * BLOCK


def test_blocks_that_are_used_again_are_stored_before_the_step(transfers: Transfers) -> None:
    transfers.begin(orders(stores={1: 4}), 1.0)
    assert transfers.begin(orders(stores={2: 6}, flushed={1, 2}), 2.0) == pytest.approx(2.010)


def test_each_direction_copies_one_after_another_beside_the_other(transfers: Transfers) -> None:
    transfers.begin(orders(loads={1: ("a", 2), 2: ("b", 3)}, stores={3: 9}), 0.0)
    transfers.begin(orders(loads={4: ("c", 1)}), 0.001)
    assert transfers.loaded_bytes == 6 * BLOCK
    assert transfers.ended(0.0021) == ({1}, {"a"})
    assert transfers.ended(0.0055) == ({2}, {"b"})
    assert transfers.ended(0.0101) == ({3, 4}, {"c"})
    assert transfers.next_s is None


def test_what_an_earlier_load_of_traffic_ordered_is_waited_for_no_more(
    transfers: Transfers,
) -> None:
    assert transfers.begin(orders(flushed={7}), 3.0) == 3.0


def test_a_copy_takes_its_share_of_the_link() -> None:
    copy_s, size = copy_times(find_gpu("h100-80gb")), 1 << 30
    assert size / 63e9 < copy_s("to host", size) == copy_s("to device", size) < size / 45e9


def test_only_vllms_own_offloading_is_simulated() -> None:
    def config(name: str | None) -> Any:
        chosen = None if name is None else SimpleNamespace(kv_connector=name)
        return SimpleNamespace(kv_transfer_config=chosen)

    check_connector(config(None))
    check_connector(config("OffloadingConnector"))
    with pytest.raises(SpecError, match="NixlConnector is not simulated"):
        check_connector(config("NixlConnector"))
