"""What pieces of work cost: intervals in order, more work takes longer, bytes by the names."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import pairwise, product

import pytest
from tests.rows import each

from ullage.clock import memory_bound
from ullage.clock.cost import Category
from ullage.clock.costs import cost_of
from ullage.clock.costs.grouped import Groups, find_groups
from ullage.clock.given_work import (
    CollectiveCall,
    Convolution,
    Copy,
    Fill,
    FusedAttention,
    GivenWork,
    KernelLaunch,
    LibraryCall,
    Product,
)
from ullage.clock.interconnect import Interconnect
from ullage.facts.gpus import find_gpu

H100 = find_gpu("h100-80gb")
MIB = 1 << 20
ADD = (
    "_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEESt5arrayIPcLm3E"
    "EEEviT0_T1_"
)
COPY = (
    "_ZN2at6native18elementwise_kernelILi128ELi4EZNS0_22gpu_kernel_impl_nocastIZZZNS0_23direct_copy"
    "_kernel_cudaERNS_18TensorIteratorBaseEENKUlvE1_clEvENKUlvE2_clEvEUlfE_EEvS4_RKT_EUliE_EEviT1_"
)
ADAM = (
    "_ZN2at6native25multi_tensor_apply_kernelINS0_32FusedOptimizerTensorListMetadataILi4EEENS0_20"
    "FusedAdamMathFunctorIfLi4ELNS0_9ADAM_MODEE0ELb0EEEJPKfdddddbS6_S6_EEEvT_T0_DpT1_"
)
GATHER = "_ZN2at6native24vectorized_gather_kernelILi16ElEEvPcS2_PT0_illllb"
LOSS = "_ZN2at6native38nll_loss_forward_reduce_cuda_kernel_2dIfflEEvPT_S3_PKS2_PKlS5_bill"
SUM = "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIfNS0_14func_wrapper_tIfEEEEEvT1_"


def launch(name: str, numbers: int, *operands: int, per_block: int = 512) -> KernelLaunch:
    blocks = -(-numbers // per_block)
    return KernelLaunch(name, (blocks, 1, 1), 128, operands, 0, len(operands))


def attention(*, is_backward: bool, is_causal: bool | None) -> FusedAttention:
    return FusedAttention(is_backward, 8, 12, 12, 2048, 2048, 64, "bfloat16", is_causal)


EXAMPLES: tuple[GivenWork, ...] = (
    launch(ADD, 8 * MIB, 32 * MIB, 32 * MIB, 32 * MIB),
    launch(COPY, 8 * MIB, 32 * MIB, 32 * MIB),
    launch(SUM, 8 * MIB, 32 * MIB, 4096),
    launch(GATHER, 8192, 24 * MIB, 148 * MIB, 65536, per_block=1),
    launch(LOSS, 1, 4, 4, 1572 * MIB, 65536),
    KernelLaunch(ADAM, (320, 1, 1), 512, (90 * MIB,) * 4, 0, 4),
    launch("triton_poi_fused_add_0", 8 * MIB, 32 * MIB, 32 * MIB),
    launch("triton_red_fused_native_layer_norm_1", 8 * MIB, 32 * MIB, 32 * MIB),
    launch("triton_tem_fused_mm_2", 8 * MIB, 32 * MIB, 32 * MIB, 32 * MIB),
    launch("triton_tem_fused_flex_attention_1", 65536, *(32 * MIB,) * 4),
    launch("mystery", 8 * MIB, 32 * MIB, 32 * MIB),
    launch("", 1),
    Product(4096, 4096, 4096, 1, "bfloat16", 2),
    Product(4096, 4096, 4096, 1, "float8_e4m3fn", 2),
    Product(4096, 4096, 4096, 1, "complex64", 8),
    Product(1, 0, 1, 0, "fp32", 4),
    Convolution("forward", 10**10, 10**8, "float16"),
    Convolution("backward filter", 10**8, 10**8, "float32", 256),
    attention(is_backward=False, is_causal=True),
    attention(is_backward=True, is_causal=None),
    CollectiveCall("all-reduce", 10**9, 8),
    CollectiveCall("all-gather", 10**9, 128),
    CollectiveCall("all-to-all", 10**8, 64),
    CollectiveCall("send", 10**7, 16),
    CollectiveCall("", 10**7, 1),
    Copy("to device", 10**8, is_pinned=True),
    Copy("to host", 8, is_pinned=False),
    Copy("on device", 10**8, is_pinned=False),
    Copy("between devices", 10**8, is_pinned=False),
    Fill(10**8),
    LibraryCall("cublasSgemv_v2", 10**7),
    LibraryCall("", 0),
)


@each(
    ("work", "gpu"), product(EXAMPLES, ["h100-80gb", "a100-80gb", "b200", "l40s", "rtx-4090", "t4"])
)
def test_every_interval_is_in_order_and_has_a_basis(gpu: str, work: GivenWork) -> None:
    cost = cost_of(find_gpu(gpu), work, None)
    assert 0 < cost.duration.low_s <= cost.duration.s <= cost.duration.high_s < 100
    assert cost.duration.basis and cost.name
    assert cost.flops >= 0


def seconds(work: GivenWork, gpu: str = "h100-80gb") -> float:
    return cost_of(find_gpu(gpu), work, None).duration.s


def test_bytes_are_those_of_the_numbers_not_of_the_blocks() -> None:
    """A view of a larger block has as many numbers as the others."""
    exact = launch(ADD, 8 * MIB, 32 * MIB, 32 * MIB, 32 * MIB)
    time = cost_of(H100, exact, None).duration
    assert time.s == pytest.approx(memory_bound(H100, 96 * MIB).s)
    assert time.high_s / time.low_s < 2
    by_chance = replace(exact, operand_bytes=(*exact.operand_bytes, 786 * MIB), num_operands=4)
    assert seconds(by_chance) == seconds(exact)
    in_place = replace(exact, operand_bytes=(32 * MIB,) * 2, num_operands=2)
    assert seconds(in_place) == seconds(exact)


def test_newer_kernels_take_more_numbers_a_thread() -> None:
    name = ADD.replace("IfE", "IN3c108BFloat16EE")
    wide = launch(name, 8 * MIB, *(16 * MIB,) * 3, per_block=1024)
    narrow = launch(name, 8 * MIB, *(16 * MIB,) * 3)
    assert seconds(wide) == seconds(narrow)
    vectors = replace(wide, name=name.replace("kernelILi4E", "kernelILi8E"))
    assert seconds(vectors) < seconds(wide)


def test_a_reduction_reads_its_first_operand() -> None:
    once = launch(SUM, 8 * MIB, 128 * MIB, 4096)
    buffers = launch(SUM, 8 * MIB, 128 * MIB, 4096, 512 * MIB)
    assert seconds(once) == seconds(buffers)
    assert seconds(once) == pytest.approx(1.2 * memory_bound(H100, 128 * MIB).s, rel=0.05)


def test_a_table_is_not_read_as_a_whole() -> None:
    small, large = (
        cost_of(H100, launch(GATHER, 8192, 24 * MIB, size * MIB, 65536, per_block=1), None).duration
        for size in (148, 4096)
    )
    assert large.s == small.s
    assert seconds(launch(LOSS, 1, 4, 4, 1572 * MIB, 65536)) < 400e-6


def test_blocks_behind_the_arguments_do_not_count() -> None:
    """Kernels with large structures show blocks of earlier calls, such as a table of weights."""
    junk = (502 * MIB,) * 4
    sort = (
        "_ZN14at_cuda_detail3cub6detail10radix_sort30DeviceRadixSortOnesweepKernelINS1_5radix10"
        "policy_hubIlNS0_8NullTypeEyEE"
    )
    tiles = KernelLaunch(sort, (2, 1, 1), 384, (65536, 4096, *junk), 1200 * MIB, 34)
    assert seconds(tiles) < 10e-6
    cat = "_ZN2at6native35CatArrayBatchedCopy_alignedK_contigINS0_"
    work = KernelLaunch(cat, (216, 2, 1), 512, (16 * MIB, 8 * MIB, 8 * MIB, *junk), 0, 7)
    assert seconds(work) == seconds(replace(work, operand_bytes=work.operand_bytes[:3]))
    scatter = GATHER.replace("24vectorized_gather", "15sum_and_scatter")
    rows = launch(scatter, 8192, 32768, 501 * MIB, 32768, 0, 35 * MIB, *junk, per_block=1)
    assert seconds(rows) < 60e-6


def test_a_fused_optimizer_reads_four_lists_and_writes_three() -> None:
    chunks, full = 512, 512 * 65536 * 4
    work = KernelLaunch(ADAM, (chunks, 1, 1), 512, (full,) * 4, 0, 4)
    assert seconds(work) == pytest.approx(memory_bound(H100, 0.9 * 7 * full).s, rel=0.01)
    behind = replace(work, operand_bytes=(full,) * 8, num_operands=400)
    assert seconds(behind) == seconds(work)


def test_inductor_has_no_more_numbers_than_its_grid() -> None:
    numbers = 8 * MIB
    exact = launch("triton_poi_fused_add_0", numbers, 16 * MIB, 16 * MIB, 8192)
    by_chance = replace(exact, operand_bytes=(*exact.operand_bytes, 786 * MIB), num_operands=4)
    assert seconds(by_chance) < 2 * seconds(exact)
    lookup = launch("triton_poi_fused_embedding_0", numbers, 786 * MIB, 65536, 32 * MIB)
    assert seconds(lookup) < 1.1 * memory_bound(H100, 64 * MIB).s


def test_a_kernel_of_which_nothing_is_known_is_wide() -> None:
    cost = cost_of(H100, launch("mystery", 8 * MIB, 512 * MIB, 512 * MIB), None)
    assert cost.category is Category.UNKNOWN
    assert cost.duration.high_s > 4.5 * cost.duration.s > 12 * cost.duration.low_s
    assert "nothing is known" in cost.duration.basis


@pytest.mark.parametrize("gpu", ["h100-80gb", "a100-80gb", "rtx-4090"])
def test_more_bytes_never_take_less_time(gpu: str) -> None:
    times = [
        cost_of(find_gpu(gpu), launch("triton_poi_fused_add", size, size, size), None).duration
        for size in (2**power for power in range(10, 32))
    ]
    for below, above in pairwise(times):
        assert below.s <= above.s and below.low_s <= above.low_s and below.high_s <= above.high_s


def test_what_fits_the_cache_may_be_faster() -> None:
    small, large = (
        cost_of(H100, launch(ADD, size, *(4 * size,) * 3), None).duration
        for size in (MIB, 256 * MIB)
    )
    assert small.s / small.low_s > 2
    assert large.s / large.low_s < 1.1


def test_a_product_may_be_given_by_columns() -> None:
    """cuBLAS exchanges rows and columns."""
    one_way, other = (
        Product(50304, 131072, 768, 1, "bfloat16", 2),
        Product(131072, 50304, 768, 1, "bfloat16", 2),
    )
    assert seconds(one_way) == seconds(other)


def test_a_product_in_float8_is_faster_than_with_its_quantisation() -> None:
    work = Product(8192, 8192, 8192, 1, "float8_e4m3fn", 2)
    half = Product(8192, 8192, 8192, 1, "bfloat16", 2)
    assert 1.3 < seconds(half) / seconds(work) < 2.1
    assert cost_of(H100, work, None).flops == 2 * 8192**3


def test_a_template_finds_its_shape_in_the_operands() -> None:
    m, n, k = 8192, 4096, 1024
    work = launch("triton_mm_0", 1, 2 * m * k, 2 * k * n, 2 * m * n)
    cost = cost_of(H100, work, None)
    assert cost.flops == pytest.approx(2 * m * n * k)
    assert cost.duration.s == pytest.approx(seconds(Product(m, n, k, 1, "bfloat16", 2)), rel=0.1)


def test_memory_that_is_not_pinned_is_slower() -> None:
    pinned, pageable = (
        cost_of(H100, Copy("to device", 10**9, is_pinned=flag), None).duration
        for flag in (True, False)
    )
    assert pageable.s > 3 * pinned.s and pageable.low_s >= pinned.low_s


def test_a_ring_over_machines_is_bound_by_the_network() -> None:
    work = CollectiveCall("all-reduce", 2**30, 64)
    fast, slow = (
        cost_of(H100, work, Interconnect(between_bytes_per_s=rate)).duration for rate in (50e9, 5e9)
    )
    assert slow.s > 5 * fast.s
    sent = 2 * 2**30 * 63 / 64
    assert slow.s == pytest.approx(sent / 8 / (0.94 * 5e9), rel=0.05)
    assert "assumed" in cost_of(H100, work, None).duration.basis
    assert seconds(replace(work, num_gpus=8)) < fast.s
    within = cost_of(H100, replace(work, num_gpus=8), Interconnect(is_pcie=True)).duration
    assert within.s > 5 * seconds(replace(work, num_gpus=8))


def test_pieces_of_a_large_tensor_come_to_the_whole() -> None:
    """6.6 GB of single precision to 16 bits, in four pieces, whose blocks are what is left."""
    name = (
        "_ZN2at6native29vectorized_elementwise_kernelILi8EZNS0_27converting_copy_kernel_cudaIfN3c10"
        "8BFloat16EEEvRNS_18TensorIteratorBaseEEUlfE_St5arrayIPcLm2EELb0EEEviT0_T1_"
    )
    numbers, pieces = 1_646_821_376, 4
    seconds = 0.0
    for rest in range(pieces, 0, -1):
        share = numbers * rest // pieces
        seconds += cost_of(
            H100, launch(name, numbers // pieces, 2 * numbers, 4 * share, per_block=1024)
        ).duration.s
    whole = memory_bound(H100, 6 * numbers).s
    assert 0.95 * whole < seconds < 1.35 * whole


def test_grouped_products_are_counted_once() -> None:
    """Eight experts of (4096, 28672), 4,096 rows in all, as torch 2.15 launches them."""
    groups = KernelLaunch(
        "_ZN2at4cuda6detail25prepare_grouped_gemm_dataIN7cutlass10bfloat16_tES4_S4_fN4cute5tupleI",
        (1, 1, 1), 8, (512, 234881024, 1879048192, 33554432, 512), 0, 5,
    )  # fmt: skip
    assert find_groups(groups) == Groups(8, 4096, 28672, 4096, is_weight=False)
    cost = cost_of(H100, groups)
    assert cost.flops == 2 * 4096 * 28672 * 4096
    alone = cost_of(H100, Product(28672, 4096, 4096, 1, "bfloat16", 2)).duration
    assert 0.9 * alone.s < cost.duration.s < 2 * alone.s
    gradient = replace(groups, operand_bytes=(512, 1879048192, 234881024, 33554432, 512))
    found = find_groups(gradient)
    assert found is not None
    assert (found.rows, found.is_weight) == (4096, True)
    assert cost_of(H100, gradient).flops == cost.flops
    multiplied = launch(
        "_ZN7cutlass13device_kernelINS5_4gemm6kernel13GemmUniversalINS5_17GroupProblemShapeI",
        512,
        512,
    )
    assert cost_of(H100, multiplied).duration.s < 1e-5


@pytest.mark.parametrize(
    "name",
    [
        "_matmul_ogs_NNT_bf16xbf16xmxfp4_16x256x128x1_swiglu",
        "fused_moe_kernel",
        "fused_moe_kernel_gptq_awq",
        "_ZN16marlin_moe_wna166MarlinILl1125899906909952ELl1125899906909952E",
    ],
)
def test_products_of_experts_may_read_few_of_them(name: str) -> None:
    weights = launch(name, 512, 1 << 16, 1 << 30, 1 << 26)
    cost = cost_of(H100, weights)
    assert cost.category is Category.MATRIX_PRODUCTS and "all experts" in cost.duration.basis
    assert cost.duration.s > 2e-4
    assert cost.duration.low_s < cost.duration.s / 20


def test_a_product_of_cutlass_says_its_shape() -> None:
    name = "_ZN7cutlass13device_kernelIN4vllm29cutlass_3x_gemm_fp8_blockwiseINS_10"
    plain = launch(name, 512, 40_960, 132_120_576, 1536, 484_442_112, 32_256)
    known = replace(plain, arguments=struct.pack("<5i", 1, 8, 25_600, 5120, 1).ljust(1024, b"\0"))
    expected = cost_of(H100, Product(8, 25_600, 5120, 1, "float8_e4m3fn", 2))
    assert cost_of(H100, known).duration == expected.duration
    other = replace(plain, arguments=struct.pack("<5i", 1, 0, 25_600, 5120, 1))
    assert cost_of(H100, other) == cost_of(H100, plain)


@pytest.mark.parametrize(("bits", "kind"), [(4, 1 << 50 | 4 << 8), (8, 1 << 50 | 0x10304)])
def test_a_product_of_packed_weights_reads_their_bits(bits: int, kind: int) -> None:
    """8 and 4,096 rows of 3,584 numbers of 16 bits, by 3,584 x 37,888 weights of few."""
    half = 1 << 50 | 0x10A05
    name = f"_ZN6marlin6MarlinILl{half}ELl{kind}ELl{half}ELl{half}ELi128ELi1EEEvPK4int4S3_PS1_"
    weights = 3584 * 37_888 * bits // 8
    few, many = (
        cost_of(H100, launch(name, 512, rows * 3584 * 2, weights, rows * 37_888 * 2, 512))
        for rows in (8, 4096)
    )
    assert few.name == f"matrix product 8x37888x3584, weights of {bits} bits"
    assert 1.0 < few.duration.s / memory_bound(H100, weights).s < 1.8
    plain = cost_of(H100, Product(37_888, 4096, 3584, 1, "bfloat16", 2))
    assert 0.8 < many.duration.s / plain.duration.s <= 1.05
    assert many.flops == plain.flops


def test_a_pointer_into_a_servers_cache_is_no_factor_of_a_product() -> None:
    name = "_ZN7cutlass13device_kernelIN4vllm29cutlass_3x_gemm_fp8_blockwiseINS_10"
    product = launch(name, 512, 16_384, 10 << 20, 81_920, 512)
    with_cache = launch(name, 512, 16_384, 10 << 20, 81_920, 40 << 30)
    assert cost_of(H100, with_cache).duration.s == cost_of(H100, product).duration.s
    head = launch(name, 512, 16_384, 1200 << 20, 2_400_000)
    assert cost_of(H100, head).duration.s > 3e-4


def test_a_rotation_reads_rows_of_its_table() -> None:
    """Of 8 requests; a table of 40,960 positions."""
    sizes = (81_920, 512, 16_384, 10_485_760, 512, 65_536, 8192)
    rotation = launch("triton_red_fused_3", 144 * 512, *sizes)
    cost = cost_of(H100, rotation)
    assert cost.duration.s < 3e-6 < 2 * cost.duration.s < cost.duration.high_s
    named = replace(rotation, name="triton_red_fused_sum_3")
    assert cost_of(H100, named).duration.s > 2 * cost.duration.s


CACHE = (
    "_ZN4vllm30reshape_and_cache_flash_kernelI13__nv_bfloat16S1_LNS_18Fp8KVCacheDataTypeE0EEEvPKT_"
    "S5_PT0_S7_PKlllllliiiPKfSB_i"
)


@pytest.mark.parametrize(
    "name",
    [
        CACHE,
        "fusedQKNormRopeKernel",
        "_post_update_kernel",
        "_gather_block_tables_kernel",
        "_ZN4vllm3moe18moe_sum_vec_kernelIN3c108BFloat16EiLi8ELb0EEEvPT_PKS4_li",
        "_ZN4vllm15vocab_embedding31vocab_parallel_embedding_kernelIi5uint4EEvPT0_PKT_PKS3_lllllll",
    ],
)
def test_a_kernel_that_gets_the_whole_cache_touches_little_of_it(name: str) -> None:
    """vLLM hands the whole cache to a kernel that writes a step's keys and values into it."""
    whole_cache = launch(name, 512, 16_384, 16_384, 70 << 30)
    cost = cost_of(H100, whole_cache, Interconnect())
    assert cost.category is Category.MEMORY_BOUND
    assert cost.duration.high_s < 1e-4


def test_attention_over_pages_does_not_read_the_cache_of_all_requests() -> None:
    """What looks like sizes in its arguments is not taken for any."""
    name = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90E"
    alone = launch(name, 512, 1 << 20, 1 << 20)
    paged = launch(name, 512, 1 << 20, 1 << 20, 60 << 30)
    cost = cost_of(H100, paged, Interconnect())
    assert cost.category is Category.ATTENTION and "pages" in cost.duration.basis
    assert cost.duration.s <= cost_of(H100, alone, Interconnect()).duration.s * 2


def test_what_an_earlier_call_left_does_not_change_attention_over_pages() -> None:
    """In bytes of the structure that it never sets: of tensors, or of weights."""
    name = "_ZN7cutlass13device_kernelIN5flash20enable_sm90_or_laterINS1_16FlashAttnFwdSm90E"
    true = launch(name, 512, 4 << 20, 2 << 30, 4 << 20, 4608)
    expected = cost_of(H100, true, Interconnect())
    assert "pages" in expected.duration.basis
    for left in ((32 << 20,), (1 << 30, 256 << 20), (60 << 30,)):
        found = replace(true, operand_bytes=(*true.operand_bytes, *left), other_bytes=9 << 20)
        assert cost_of(H100, found, Interconnect()) == expected
