"""The memory outside the allocator, compared with what nvidia-smi printed on real machines."""

from __future__ import annotations

from benchmarks.accuracy.contexts import Machine, inside_frac, nccl_of, read, score

from ullage.facts.gpus import find_gpu
from ullage.facts.gpus.nccl import find_nccl_kernels, has_multicast
from ullage.ground.units import MIB


def test_the_readings_of_training_logs_are_inside_the_intervals() -> None:
    rows = score(read())
    assert sum(row.count for row in rows) > 8000
    assert inside_frac(rows) >= 0.95


def test_one_rank_has_the_kernels_of_nccl_and_no_buffers() -> None:
    for slug in ("h100-80gb", "a100-40gb", "rtx-4090"):
        low, high = find_nccl_kernels(find_gpu(slug))
        interval = nccl_of(Machine(slug, 22705, 1))
        assert (interval.low * MIB, interval.high * MIB) == (low, high)
        assert 0 < low < high


def test_an_old_nccl_reduces_in_the_switch_with_six_times_the_buffers() -> None:
    def reductions(nccl: int, ranks: int) -> float:
        _, kernels = find_nccl_kernels(find_gpu("h100-80gb"))
        connections = 32 * 24
        return nccl_of(Machine("h100-80gb", nccl, ranks)).high - kernels / MIB - connections

    # 16 channels, 2 directions, 8 GPUs: src/transport/nvls.cc.
    assert reductions(22105, 8) == 16 * 2 * 8 * 6
    assert reductions(22705, 8) == 16 * 2 * 8
    assert reductions(22105, 2) == 0


def test_only_boards_on_a_switch_reduce_in_it() -> None:
    has = {slug: has_multicast(find_gpu(slug)) for slug in ("h200", "h100-nvl", "a100-40gb", "l4")}
    assert has == {"h200": True, "h100-nvl": False, "a100-40gb": False, "l4": False}
