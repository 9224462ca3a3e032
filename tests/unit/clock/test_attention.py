"""Attention: what launches ask for, and times beside those that others published."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise

import pytest
from tests.rows import each

from ullage.clock.cost import Category
from ullage.clock.costs import cost_of
from ullage.clock.costs.attention import BACKWARD_OPS, attention_time
from ullage.clock.costs.attention_launches import read_attention
from ullage.clock.costs.attention_rates import Kernel, Pass, rate
from ullage.clock.given_work import KernelLaunch
from ullage.clock.work import Attention
from ullage.facts.gpus import find_gpu

H100 = find_gpu("h100-80gb")
TRAITS = "Li{d}ELi{m}ELi{n}ELi4E"
FORWARD = (
    "_ZN13pytorch_flash16flash_fwd_kernelI23Flash_fwd_kernel_traitsI{t}Lb0ELb0EN7cutlass10bfloat16_t"
    "E19Flash_kernel_traitsI{t}S3_EELb0E{flags}Lb0ELb0ELb1ELb0ELb0EEEvNS_16Flash_fwd_paramsE"
)
BACKWARD = (
    "_ZN13pytorch_flash44flash_bwd_dq_dk_dv_loop_seqk_parallel_kernelI23Flash_bwd_kernel_traitsI{t}"
    "Li4ELi4ELi4ELb0ELb0EN7cutlass10bfloat16_tE19Flash_kernel_traitsI{t}S3_EELb0E{flags}Lb0ELb0E"
    "Lb1ELb0EEEvNS_16Flash_bwd_paramsE"
)
EFFICIENT = (
    "_Z{}fmha_cutlass{}_bf16_aligned_64x64_{}_sm80N22PyTorchMemEffAttention15AttentionKernel"
)


def parameters(shape: tuple[int, int, int, int, int, int]) -> bytes:
    """The structure of FlashAttention 2: pointers, strides, heads, pointers, and lengths."""
    batch, heads, kv_heads, head_dim, q_len, kv_len = shape
    pointers = struct.pack("<3Q", *(0x7F0000000000 + n for n in (0, 4096, 8192)))
    strides = struct.pack("<9q", *([heads * q_len * head_dim] * 3 + [head_dim] * 6))
    counts = struct.pack("<4i", heads, kv_heads, heads // kv_heads, 0)
    results = struct.pack("<8Q", *([0x7F0000100000] * 8))
    lengths = struct.pack("<7i", batch, q_len, kv_len, 0, head_dim, q_len, kv_len)
    return pointers + strides + counts + results + lengths + bytes(700)


def flash(
    name: str, shape: tuple[int, int, int, int, int, int], flags: str, grid: tuple[int, int, int]
) -> KernelLaunch:
    traits = TRAITS.format(d=shape[3], m=128, n=64)
    return KernelLaunch(
        name.format(t=traits, flags=flags), grid, 128, (1 << 24,) * 4, 0, 4, parameters(shape)
    )


def test_a_launch_of_flash_attention_tells_its_shape() -> None:
    launch = flash(FORWARD, (2, 32, 8, 128, 1500, 1500), "Lb1ELb0E", (12, 2, 32))
    attention = read_attention(launch)
    assert attention is not None and attention.is_exact and not attention.is_local
    assert (attention.part, attention.precision) == ("forward", "bfloat16")
    assert attention.work == Attention(2, 32, 8, 128, 1500, 1500, is_causal=True)


def test_the_backward_pass_has_blocks_of_keys() -> None:
    launch = flash(BACKWARD, (2, 16, 16, 64, 1024, 2000), "Lb0ELb0E", (32, 2, 16))
    attention = read_attention(launch)
    assert attention is not None and attention.is_exact
    assert attention.part == "backward"
    assert attention.work == Attention(2, 16, 16, 64, 1024, 2000, is_causal=False)


def test_arguments_that_the_grid_contradicts_are_not_read() -> None:
    launch = flash(FORWARD, (2, 32, 8, 128, 1500, 1500), "Lb1ELb0E", (99, 2, 32))
    for arguments in (launch.arguments, b"", launch.arguments[:100]):
        attention = read_attention(replace(launch, arguments=arguments))
        assert attention is not None and not attention.is_exact
        assert attention.work == Attention(2, 32, 32, 128, 99 * 128, 99 * 128, is_causal=True)
    time = cost_of(H100, launch, None).duration
    assert "by the grid or the operands" in time.basis
    assert time.s / time.low_s > 2


def test_a_window_reaches_far_down() -> None:
    launch = flash(FORWARD, (2, 32, 8, 128, 4096, 4096), "Lb0ELb1E", (32, 2, 32))
    time = cost_of(H100, launch, None).duration
    assert time.s > 8 * time.low_s and "a window" in time.basis


@pytest.mark.parametrize("mask", [0, 1])
def test_memory_efficient_attention_tells_its_shape(mask: int) -> None:
    forward = struct.pack("<20i", *([0x7F00] * 12), 80, 80, 1000, 900, 900, 0x7F0000 + mask, 960, 0)
    launch = KernelLaunch(
        EFFICIENT.format(39, "F", "rf"), (16, 12, 4), 128, (1 << 24,), 0, 1, forward + bytes(64)
    )
    attention = read_attention(launch)
    assert attention is not None and attention.is_exact
    assert attention.work == Attention(4, 12, 12, 80, 1000, 900, is_causal=bool(mask))
    backward = struct.pack("<20i", *([0x7F00] * 12), 80, 80, 1000, 900, 12, 1, 65536 + mask, 0)
    launch = replace(launch, name=EFFICIENT.format(40, "B", "k128"), arguments=backward + bytes(64))
    attention = read_attention(launch)
    assert attention is not None and attention.part == "backward"
    assert attention.work == Attention(4, 12, 12, 80, 1000, 900, is_causal=bool(mask))


def test_memory_efficient_attention_without_arguments_goes_by_operands() -> None:
    numbers = 4 * 12 * 1024 * 64
    launch = KernelLaunch(EFFICIENT.format(40, "B", "k64"), (1, 12, 4), 128, (2 * numbers,) * 4)
    attention = read_attention(launch)
    assert attention is not None and not attention.is_exact
    assert attention.work.q_len == 1024


def test_flash_attention_3_has_its_shape_among_the_arguments() -> None:
    shape = struct.pack("<12i", 9, 128, 0x7F00, 0, 2048, 128, 16, 8, 128, 1, 2, 3)
    name = "_ZN7cutlass13device_kernelIN5flash11enable_sm90INS1_16FlashAttnFwdSm90INS1_25Collective"
    launch = KernelLaunch(name, (132, 1, 1), 384, (2 * 2048 * 128 * 16 * 8,), 0, 1, shape)
    attention = read_attention(launch)
    assert attention is not None and attention.kernel is Kernel.FLASH_3
    assert attention.work == Attention(8, 16, 16, 128, 2048, 2048)
    assert read_attention(replace(launch, operand_bytes=(5000,))) is None
    assert cost_of(H100, launch, None).flops == attention.work.ops


def test_attention_in_triton_goes_by_its_grid() -> None:
    numbers = 8 * 16 * 2048 * 128
    launch = KernelLaunch(
        "triton_tem_fused_flex_attention_0", (16, 8 * 16, 1), 128, (2 * numbers,) * 4, 0, 4
    )
    cost = cost_of(H100, launch, None)
    assert cost.flops == Attention(8, 16, 16, 128, 2048, 2048).ops
    assert cost.category is Category.ATTENTION


def test_partial_results_are_counted_by_the_grid_not_by_their_buffer() -> None:
    """A server's graphs have room for the partial results of the most sequences and splits."""
    name = (
        "_ZN7cutlass13device_kernelIN5flash19FlashAttnFwdCombineIN4cute5tupleIJNS3_1CILi8EEENS5_I"
        "Li128EEEEEELi5ELi256ELi1ELb0ELb1ENS_10bfloat16_tEfNS_4arch4Sm90EEEEEvNT_6ParamsE"
    )
    few, many = (
        KernelLaunch(name, (4, 1, 1), 256, (size, 4096), 0, 2) for size in (1 << 19, 1 << 29)
    )
    assert cost_of(H100, few, None).duration == cost_of(H100, many, None).duration
    attention = read_attention(many)
    assert attention is not None and attention.part == "gradients"
    assert (attention.work.q_len, attention.work.head_dim) == (4 * 8, 128)


def test_another_kernel_of_attention_goes_by_its_bytes() -> None:
    cost = cost_of(H100, KernelLaunch("flash_fwd_of_tomorrow", (8, 1, 1), 128, (1 << 26,)), None)
    assert cost.category is Category.ATTENTION
    assert cost.duration.high_s > 10 * cost.duration.low_s
    assert read_attention(KernelLaunch("triton_poi_fused", (1, 1, 1), 32, ())) is None


@pytest.mark.parametrize("kernel", list(Kernel))
@pytest.mark.parametrize("is_backward", [False, True])
def test_rates_rise_with_length(kernel: Kernel, *, is_backward: bool) -> None:
    which = Pass(is_backward, is_causal=True)
    for head_dim in (32, 64, 80, 128, 192, 256):
        rates = [rate(kernel, which, head_dim, 2**power) for power in range(6, 16)]
        assert all(above >= 0.97 * below > 0 for below, above in pairwise(rates))
    assert rate(Kernel.FLASH_2, Pass(False, False), 128, 8192) == pytest.approx(370e12)  # noqa: FBT003


# What others published of the same kernels, in TFLOPS; those of the H100 set the widths, the others
# are not in the model: GPU, kernel, mask, size of a head, length, sequences, forward, backward (0:
# not published).
# Sources: gpu-mode/ring-attention, issue 10 (RTX A5000); Dao-AILab/flash-attention, pull request
# 1791 (H100), issues 1310 (H20) and 1589 (B200, whose longest sets its multiple), pull request 2605
# (B200, cuDNN).
PUBLISHED = [
    ("rtx-a5000", Kernel.FLASH_2, False, 64, 512, 32, 84.08, 52.88),
    ("rtx-a5000", Kernel.FLASH_2, False, 64, 1024, 16, 81.02, 62.54),
    ("rtx-a5000", Kernel.FLASH_2, False, 64, 2048, 8, 81.31, 70.07),
    ("rtx-a5000", Kernel.FLASH_2, False, 64, 4096, 4, 81.69, 74.80),
    ("rtx-a5000", Kernel.FLASH_2, False, 64, 8192, 2, 81.86, 77.42),
    ("h100-80gb", Kernel.FLASH_2, False, 128, 8192, 2, 369.9, 290.6),
    ("h100-80gb", Kernel.FLASH_2, True, 128, 8192, 2, 284.1, 287.1),
    ("h20", Kernel.FLASH_2, False, 128, 2048, 2, 83.7, 0),
    ("h20", Kernel.FLASH_2, True, 128, 2048, 2, 65.9, 0),
    ("h20", Kernel.CUDNN, False, 128, 2048, 2, 129.1, 0),
    ("h20", Kernel.CUDNN, True, 128, 2048, 2, 107.8, 0),
    ("b200", Kernel.CUDNN, False, 64, 1024, 32, 846, 0),
    ("b200", Kernel.CUDNN, False, 64, 4096, 8, 890, 0),
    ("b200", Kernel.CUDNN, False, 64, 16384, 2, 906, 0),
    ("b200", Kernel.CUDNN, True, 64, 1024, 32, 501, 0),
    ("b200", Kernel.CUDNN, True, 64, 4096, 8, 770, 0),
    ("b200", Kernel.CUDNN, True, 64, 16384, 2, 872, 0),
    ("b200", Kernel.CUDNN, False, 128, 1024, 32, 1156, 0),
    ("b200", Kernel.FLASH_2, False, 64, 512, 32, 308.4, 243.05),
    ("b200", Kernel.FLASH_2, False, 64, 2048, 8, 380.99, 301.61),
    ("b200", Kernel.FLASH_2, False, 64, 8192, 2, 343.07, 329.09),
]


@each("row", PUBLISHED, name=str)
def test_what_others_published_lies_inside(
    row: tuple[str, Kernel, bool, int, int, int, float, float],
) -> None:
    gpu, kernel, is_causal, head_dim, length, batch, *rates = row
    heads = 2048 // head_dim
    work = Attention(batch, heads, heads, head_dim, length, length, is_causal)
    for is_backward, published in zip((False, True), rates, strict=True):
        time = attention_time(find_gpu(gpu), kernel, work, "bfloat16", is_backward=is_backward)
        ops = work.ops * (BACKWARD_OPS if is_backward else 1)
        assert not published or time.low_s <= ops / (published * 1e12) <= time.high_s


def test_few_blocks_leave_multiprocessors_idle() -> None:
    """One sequence of one head has four blocks for 132 multiprocessors."""
    small, large = Attention(1, 1, 1, 128, 512, 512), Attention(33, 1, 1, 128, 512, 512)
    times = [
        attention_time(H100, Kernel.FLASH_2, work, "bfloat16", is_backward=False)
        for work in (small, large)
    ]
    assert times[1].s < 1.5 * times[0].s
