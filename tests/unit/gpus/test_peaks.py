"""The peak rates that follow from a GPU's figures."""

from __future__ import annotations

import pytest

from ullage.facts.gpus.catalog import find_gpu
from ullage.facts.gpus.peaks import flops_per_s, link_bytes_per_s, peer_bytes_per_s

H100 = find_gpu("h100-80gb")


def test_float32_runs_outside_of_the_tensor_cores() -> None:
    # 132 SMs x 128 lanes x 2 x 1.98 GHz = 66.9 TFLOP/s, as NVIDIA states for the H100 SXM.
    assert flops_per_s(H100, "fp32") == pytest.approx(66.9e12, rel=0.01)
    assert flops_per_s(H100, "tf32") > 5 * flops_per_s(H100, "fp32")


def test_what_ranks_send_each_other_goes_over_nvlink_where_there_is_one_for_all() -> None:
    assert peer_bytes_per_s(H100, 8) == 450e9  # 900 GB/s both ways together
    bridged = find_gpu("rtx-3090")  # 112.5 GB/s over a bridge of two cards
    assert peer_bytes_per_s(bridged, 2) == 56.25e9
    assert peer_bytes_per_s(bridged, 4) == link_bytes_per_s(bridged)
