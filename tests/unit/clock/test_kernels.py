"""The times of kernels: which measurements they come from, how wide they are, how they scale."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.clock import (
    Attention,
    Collective,
    Duration,
    Kind,
    MatrixProduct,
    attention_decode,
    attention_forward,
    collective,
    matrix_product,
    memory_bound,
)
from ullage.clock.table import load_table, load_widths, table_names
from ullage.clock.work import Roof, roofline
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SpecError

H100 = find_gpu("h100-80gb")
PRODUCT = MatrixProduct(4096, 4096, 4096)
SEQUENCE = Attention(8, 32, 8, 128, 2048, 2048)
CACHE = Attention(32, 32, 8, 128, 1, 4096)


def spread(time: Duration) -> float:
    assert 0 < time.low_s <= time.s <= time.high_s
    return time.high_s / time.low_s


@pytest.mark.parametrize("name", table_names(), ids=lambda name: f"{name[0]}-{name[1].value}")
def test_a_table_loads_and_states_its_source(name: tuple[str, Kind, str]) -> None:
    table = load_table(*name)
    assert table.kernel and table.source.endswith(".parquet")
    assert table.num_shapes > 30
    assert table.inside.low < 1 < table.inside.high
    assert table.edge.low <= table.inside.low and table.edge.high >= table.inside.high
    assert find_gpu(table.gpu).slug == table.gpu


def test_a_table_that_is_not_there_is_refused() -> None:
    with pytest.raises(SpecError, match="no table of matrix-product in int8 for 'h100-80gb'"):
        load_table("h100-80gb", Kind.MATRIX_PRODUCT, "int8")


def test_operations_and_bytes_are_counted() -> None:
    assert PRODUCT.ops == 2 * 4096**3
    assert PRODUCT.num_bytes == 3 * 2 * 4096**2
    assert replace(SEQUENCE, is_causal=False).ops == 4 * 8 * 32 * 128 * 2048**2
    assert SEQUENCE.ops == 4 * 8 * 32 * 128 * (2048 * 2049 // 2)
    assert CACHE.ops == 4 * 32 * 32 * 128 * 4096
    assert Collective(Kind.ALL_REDUCE, 800, 8).sent_bytes == 2 * 700
    assert Collective(Kind.ALL_GATHER, 800, 8).sent_bytes == 700
    assert roofline(PRODUCT, Roof(1e12, 1e12, 1.0)) == pytest.approx(1 + PRODUCT.ops / 1e12)


def test_a_large_product_takes_somewhat_longer_than_the_roofline() -> None:
    time = matrix_product(H100, PRODUCT, "bfloat16")
    assert 1 < time.s / (PRODUCT.ops / 989.4e12) < 2.5
    assert time.basis == "NVIDIA's measurements (torch.nn.functional.linear)"


@pytest.mark.parametrize("gpu", sorted({name[0] for name in table_names()}))
def test_twice_the_work_takes_longer(gpu: str) -> None:
    device = find_gpu(gpu)
    for size in (512, 1024, 2048, 4096, 8192, 16384):
        smaller = matrix_product(device, MatrixProduct(size, 4096, 4096), "bfloat16").s
        assert matrix_product(device, MatrixProduct(2 * size, 4096, 4096), "bfloat16").s > smaller
        shorter = replace(SEQUENCE, q_len=size, kv_len=size)
        longer = replace(SEQUENCE, q_len=2 * size, kv_len=2 * size)
        first, second = (attention_forward(device, of, "bfloat16").s for of in (shorter, longer))
        assert second > first


def test_a_relative_stands_for_a_gpu_without_a_table() -> None:
    own = matrix_product(H100, PRODUCT, "bfloat16")
    near = matrix_product(find_gpu("gh200"), PRODUCT, "bfloat16")
    far = matrix_product(find_gpu("h20"), PRODUCT, "bfloat16")
    assert "measured on h100-80gb, scaled" in near.basis
    assert "measured on h" in far.basis
    assert far.s > 4 * own.s  # 148 of 989 TFLOPS
    assert spread(own) < spread(near) < spread(far)


@pytest.mark.parametrize(
    ("gpu", "relative"),
    [("l4", "l40s"), ("rtx-4090", "l40s"), ("a100-40gb", "a100-80gb"), ("a30", "a100-80gb"),
     ("rtx-5090", "rtx-pro-6000-server"), ("rtx-3090", "a100-80gb")],
)  # fmt: skip
def test_the_nearest_relative_is_of_the_same_architecture(gpu: str, relative: str) -> None:
    time = matrix_product(find_gpu(gpu), PRODUCT, "bfloat16")
    assert f"measured on {relative}," in time.basis


def test_every_gpu_of_the_catalogue_has_a_time() -> None:
    for slug in ("v100-32gb", "t4", "p100-16gb", "gb10", "rtx-2080-ti", "jetson-agx-thor"):
        gpu = find_gpu(slug)
        assert spread(matrix_product(gpu, PRODUCT, "float16")) > 2
        assert spread(attention_decode(gpu, CACHE, "float16")) > 1
        assert spread(memory_bound(gpu, 1e6)) > 1


def test_another_precision_stands_in_with_a_wider_interval() -> None:
    own = matrix_product(H100, PRODUCT, "bfloat16")
    assert matrix_product(H100, PRODUCT, "float16") == own
    single = matrix_product(H100, PRODUCT, "fp32")
    assert single.s > 10 * own.s
    assert spread(single) > spread(own)
    assert "the efficiency of bfloat16 stands for that of fp32" in single.basis


@pytest.mark.parametrize(
    ("precision", "share"), [("float8_e4m3fn", 0.5), ("float4_e2m1fn_x2", 0.25)]
)
def test_low_precisions_reach_down_to_the_product_alone(precision: str, share: float) -> None:
    gpu = find_gpu("b200")
    full = matrix_product(gpu, PRODUCT, "bfloat16")
    time = matrix_product(gpu, PRODUCT, precision)
    assert time.low_s <= share * full.low_s < time.s < full.s
    assert "with the quantisation of the input" in time.basis


def test_the_bytes_of_a_number_follow_from_the_precision() -> None:
    column = MatrixProduct(1, 65536, 65536)
    single, half = (matrix_product(H100, column, of) for of in ("fp32", "bfloat16"))
    assert single.s == pytest.approx(2 * half.s, rel=0.05)  # twice the bytes
    with pytest.raises(SpecError, match="precision='half'; expected one of float64, fp32"):
        matrix_product(H100, PRODUCT, "half")


def test_the_interval_widens_with_the_distance_from_the_measured_shapes() -> None:
    inside = matrix_product(H100, MatrixProduct(16384, 8192, 8192), "bfloat16")
    near, far = (
        matrix_product(H100, MatrixProduct(size, 8192, 8192), "bfloat16")
        for size in (4 * 32768, 16 * 32768)
    )
    assert spread(inside) < spread(near) < spread(far)
    assert "2.0 octaves outside of the measured shapes" in near.basis
    assert far.s == pytest.approx(4 * near.s, rel=0.01)  # by the roofline


def test_what_was_not_measured_is_said() -> None:
    causal = attention_forward(H100, SEQUENCE, "bfloat16")
    full = attention_forward(H100, replace(SEQUENCE, is_causal=False), "bfloat16")
    assert 1.5 < full.s / causal.s < 2.1
    assert "without a mask" in full.basis and spread(full) > spread(causal)
    batch = matrix_product(H100, replace(PRODUCT, m=512, batch=8), "bfloat16")
    assert "a batch of products" in batch.basis and spread(batch) >= spread(causal) / 2
    assert "several" in attention_decode(H100, replace(CACHE, q_len=4), "bfloat16").basis


def test_many_heads_count_as_sequences() -> None:
    """Decode tables have up to 8 heads of keys: 32 heads of 8 sequences are 8 of 32."""
    many = Attention(8, 32, 32, 128, 1, 4096)
    few = Attention(32, 8, 8, 128, 1, 4096)
    first, second = (attention_decode(H100, of, "bfloat16") for of in (many, few))
    assert first.s == pytest.approx(second.s)
    assert "outside" not in first.basis


def test_a_cache_streams_at_nearly_the_bandwidth() -> None:
    time = attention_decode(H100, replace(CACHE, batch=128, kv_len=16383), "bfloat16")
    num_bytes = replace(CACHE, batch=128, kv_len=16383).num_bytes
    assert 0.6 < num_bytes / 3350e9 / time.s < 1


def test_collectives_grow_with_bytes_and_follow_the_link() -> None:
    work = Collective(Kind.ALL_GATHER, 2**30, 8)
    time = collective(H100, work)
    assert 0.5 < work.sent_bytes / 450e9 / time.s < 1
    slow = collective(H100, work, link_bytes_per_s=50e9)
    assert slow.s > 6 * time.s and "another link" in slow.basis
    assert collective(H100, replace(work, num_gpus=64)).high_s > time.high_s
    assert collective(H100, replace(work, num_bytes=2**31)).s > 1.8 * time.s
    with pytest.raises(SpecError, match="num_gpus=1"):
        collective(H100, replace(work, num_gpus=1))


def test_memory_bound_kernels_start_and_then_stream() -> None:
    least, large = memory_bound(H100, 1), memory_bound(H100, 1e10)
    assert least.s == pytest.approx(load_widths().start_s["h100-80gb"], rel=0.01)
    low, likely, high = load_widths().streaming["h100-80gb"]
    assert 0.5 < low < likely < high <= 1.05
    assert large.s == pytest.approx(1e10 / (likely * 3350e9), rel=0.01)
    assert spread(memory_bound(find_gpu("h200-nvl"), 1e10)) >= spread(large)
