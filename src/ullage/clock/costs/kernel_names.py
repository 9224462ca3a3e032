"""The work of kernels, by their names: the rule that counts their bytes, and a name for timelines.

    rule_of("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_15CUDAFunctor_addIfEE...")

Names of C++ are mangled (Itanium ABI): identifiers stand in them with their lengths. Triton's are
plain; Inductor's say what was fused into them.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import Final


class Rule(Enum):
    """The rule by which the bytes of a kernel are counted (launches.py)."""

    ATTENTION = "fused attention"
    ELEMENTWISE = "elementwise"
    STRIDED = "elementwise with strides"
    FOREACH = "over lists of tensors"
    ROWS = "rows by index"
    LOSS = "one number of each row"
    CONCATENATION = "concatenation"
    ONCE = "operands once"
    REDUCED = "the first operand"
    SORTED = "tiles"
    PASSES = "operands in several passes"
    SCATTERED = "scattered access"
    SMALL = "bookkeeping"
    PRODUCT = "matrix product"
    GROUPS = "the shapes of grouped products"
    GROUPED = "grouped products"
    EXPERTS = "products of experts"
    POINTWISE = "Inductor's pointwise"
    REDUCTION = "Inductor's reduction"
    TEMPLATE_ATTENTION = "attention in Triton"
    PEERS = "other GPUs' memory"
    UNKNOWN = "unknown"


# The first that the name contains decides.
_RULES: Final = tuple(
    (re.compile(pattern), rule)
    for pattern, rule in (
        (
            r"triton_tem_fused\w*(flex_attention|flex_decoding)|triton_tem_fused_(zeros_)?\d+$|^_attn_(fwd|bwd)",
            Rule.TEMPLATE_ATTENTION,
        ),
        (r"at_cuda_detail3cub|_ZN3cub|6thrust|cuda_cub|SortKVInPlace", Rule.SORTED),
        (r"\d+reduce_kernelI", Rule.REDUCED),
        (r"prepare_grouped_gemm_data", Rule.GROUPS),
        (r"GemmUniversal.*GroupProblemShape", Rule.GROUPED),
        # Of vLLM and of Triton's own, which get the weights of all experts.
        (r"matmul_ogs|^(fused_moe|batched_triton)_kernel|marlin_moe|moe_wna16_gemm", Rule.EXPERTS),
        (r"triton_(tem|mm)|triton_\w*_mm_template", Rule.PRODUCT),
        (r"^triton_(poi|for)_", Rule.POINTWISE),
        (r"^triton_(red|per|split_scan|spl)_", Rule.REDUCTION),
        (r"flash_(fwd|bwd)_|fmha_cutlass|FlashAttn(Fwd|Bwd)", Rule.ATTENTION),
        # vLLM's, which get the whole cache, a buffer for the most tokens, or tables of all requests
        # or positions, and touch a step's rows.
        (
            (
                r"reshape_and_cache|concat_and_cache|gather_cache|k_quant_and_cache"
                r"|rotary_embedding_kernel|[qQ][kK]_?[nN]orm_?[rR]ope"
                r"|^_ZN4vllm(?!.*(gemm|[mM]arlin|att(n|ention)|cross_device|all_?[rR]educe))"
                r"|vocab_parallel_embedding_kernel"
            ),
            Rule.SMALL,
        ),
        (
            (
                r"^_(post_update|apply_write|gather_block_tables|compute_slot_mappings|prepare_\w+"
                r"|combine_sampled_and_draft_tokens|get_num_sampled_and_rejected)_kernel$"
            ),
            Rule.SMALL,
        ),
        (r"^_gumbel_sample_kernel$", Rule.ONCE),
        (
            (
                r"one_shot_all_reduce|two_shot_all_reduce|multimem_|all_to_all_|all_gather_kernel"
                r"|tile_reduce|nccl_extension|stream_write_value|barrier_kernel|nvshmem"
            ),
            Rule.PEERS,
        ),
        (r"multi_tensor_apply_kernel|fused_adam|lpnorm_cleanup", Rule.FOREACH),
        (
            (
                r"vectorized_elementwise_kernel|unrolled_elementwise_kernel"
                r"|vectorized_templated_elementwise|elementwise_kernel_with_index|kernelPointwiseApply"
                r"|fused_dropout_kernel|masked_scale|distribution_(elementwise|nullary)"
                r"|philox_\w+_key_kernel|arange_cuda_out|range_cuda_out|linspace|logspace"
            ),
            Rule.ELEMENTWISE,
        ),
        (
            (
                r"index_elementwise_kernel|_scatter_gather_elementwise|scatter_(gather|fill)_internal"
                r"|indexSelect|vectorized_gather|embedding_backward|EmbeddingBag|compute_grad_weight"
                r"|sum_and_scatter|indexFunc|indexing_backward|index_(add|copy|fill|put|reduce)"
                r"|take_put_kernel|gatherTopK|renorm_kernel|grid_sampler"
            ),
            Rule.ROWS,
        ),
        (r"nll_loss\w*_(forward|backward)|nll_loss2d", Rule.LOSS),
        (r"elementwise_kernelI|elementwise_kernel_", Rule.STRIDED),
        (r"CatArrayBatchedCopy|split_with_sizes_copy|chunk_cat|_copy_kernel", Rule.CONCATENATION),
        (
            (
                r"cunn_SpatialSoftMax|upsample|_pool|adaptive|conv_depthwise|im2col|col2im|vol2col"
                r"|interp|reflection_pad|replication_pad|ctc_loss|cdist|histogram|Histogram"
                r"|scan_(outer|innermost)|DeviceScan|cumsum|roll_cuda|flip|triu_tril|rot90|transpose"
                r"|unfold_backward|cross_kernel|bucketize|searchsorted|multinomial|randperm"
                r"|pdist|im2Col|spatial_|dilated"
            ),
            Rule.SCATTERED,
        ),
        (
            (
                r"sort|Sort|radix|Radix|topk|topK|Median|KthValue|unique|Unique|mode|compute_mode"
                r"|mbtopk|computeBlock|computeDigit|bincount|merge"
            ),
            Rule.PASSES,
        ),
        (
            (
                r"softmax|Softmax|SoftMax|soft_max|layer_norm|LayerNorm|layernorm"
                r"|RowwiseMoments|GammaBeta|GroupNorm|group_norm|rms_norm|RMSNorm|batch_norm|BatchNorm"
                r"|DeviceReduce|DeviceSegmentedReduce|weight_norm|WeightNorm|Norm(For|Back)ward|amax"
                r"|cub\d*::|reduceUnrolled|compute_internal_gradients|fused_params|Compute\w+Cuda"
                r"|cuCompute|cuLoad|block_reduce|multilabel|multi_margin|glu|prelu|_norm_"
            ),
            Rule.PASSES,
        ),
        (r"jagged|nested|bfloat16_to_float|float_to_bfloat16|compute_cuda_kernel", Rule.ONCE),
        (
            (
                r"gemm|Gemm|GEMM|6MarlinI|cutlass|grouped_mm|gemv|int4_mm|int8_mm|mslk|f8f8|f4f4|s8s8"
                r"|cublas|sgemm|hgemm|splitKreduce|dense_tensor"
            ),
            Rule.PRODUCT,
        ),
        (
            (
                r"_amp_|amp_update|prepare_|krn_|partials|segment_offsets|offsets|radixFindKth|noop"
                r"|is_nonzero|assert_async|Philox|seed|fill_index|fill_reverse|spin|device_sleep"
                r"|DeviceSelect|DeviceFor|for_each|static_kernel|adjacent_difference|exclusive|Sum"
                r"|compute_num|count|write_num|triple_chevron|_kernel_agent|transform_vals|block_sums"
                r"|UniqueByKey|DeviceCompact|RunLength|flag|empty_kernel|EmptyKernel"
            ),
            Rule.SMALL,
        ),
        (
            (
                r"memcpy|Memcpy|memset|Memset|copy_kernel|FillFunctor|pack|unpack|quantize|dequant"
                r"|jagged|nested|padding|_to_padded|sparse|csr|csc|coo|foreach|adagrad|adam|sgd|dropout"
                r"|lstm|gru|rnn|thnn|cell|fft|complex|bernoulli|normal_|uniform_|two_four|softplus"
                r"|fused_moving_avg|fake_quant|choose_qparams|clamp|where|mul_|add_|cast|convert"
                r"|rope|swiglu|silu|gelu|relu|cross_entropy|_fwd|_bwd|forward|backward"
            ),
            Rule.ONCE,
        ),
        (r"^_ZN?\w*(at6native|2at4cuda|at_cuda_detail|thrust|c10)", Rule.ONCE),
    )
)
_FILE: Final = re.compile(r"_GLOBAL__N__[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}")
_LITERAL: Final = re.compile(r"L[a-z]n?\d+E|[ST]\d*_|E\d+_(?!GLOBAL)")
_DIGITS: Final = re.compile(r"[1-9]\d{0,3}")
_PLAIN: Final = re.compile(r"[A-Za-z_]\w*")
_SKIPPED: Final = re.compile(
    r"at|native|cuda|_GLOBAL__\w*|gpu_kernel_impl(_nocast)?|TensorIteratorBase|c10|detail|std"
    r"|\w*elementwise_kernel\w*|array|Half|BFloat16|complex|Float8\w*|opmath\w*|cub|at_cuda_detail"
    r"|thrust|cuda_cub|_V_\w*|cutlass|anonymous|pytorch_flash|internal|function_traits|run"
)
# What a kernel of many purposes is called; the next identifier says what it is for.
_FRAMES: Final = re.compile(
    r"^(reduce_kernel|ReduceOp|func_wrapper_t|multi_tensor_apply_kernel|\w*Metadata|BinaryFunctor"
    r"|binary_internal|[ABU]UnaryFunctor|(Unary|Binary|Pointwise|Ternary|Zero)Op\w*Functor|device_kernel"
    r"|Kernel2?|launch_\w+|distribution_\w+|kernelPointwiseApply\d)$"
)
_TRIMMED: Final = re.compile(
    r"^(CUDAFunctor(OnSelf|OnOther)?_|fused_)|(_kernel_cuda|_kernel_impl|_kernel|_cuda|_impl|Functor)$"
)


@lru_cache(maxsize=8192)
def rule_of(name: str) -> Rule:
    """The rule that counts the bytes of a kernel."""
    bare = bare_name(name)
    for pattern, rule in _RULES:
        if pattern.search(bare):
            return rule
    return Rule.UNKNOWN


def bare_name(name: str) -> str:
    """The name without the files of anonymous namespaces, which say nothing of the kernel."""
    return _FILE.sub("", name)


def is_plain(name: str) -> bool:
    """True if a name is not mangled, as Triton's are and those of C."""
    return not name.startswith("_Z") and _PLAIN.fullmatch(name) is not None


@lru_cache(maxsize=8192)
def identifiers(name: str) -> tuple[str, ...]:
    """The identifiers of a mangled name, in order; of a plain name, the name itself."""
    if is_plain(name):
        return (name,)
    words, place = [], 0
    while place < len(name):
        literal = _LITERAL.match(name, place)
        digits = None if literal else _DIGITS.match(name, place)
        end = literal.end() if literal else place + 1
        if digits is not None:
            word = name[digits.end() : digits.end() + int(digits[0])]
            is_word = len(word) == int(digits[0]) and _PLAIN.fullmatch(word) is not None
            words += [word] * is_word
            end = digits.end() + len(word) * is_word
        place = end
    return tuple(words)


@lru_cache(maxsize=8192)
def short_name(name: str) -> str:
    """A readable name: of an elementwise kernel, what it does to the numbers."""
    if not name:
        return "kernel without a name"
    words = [word for word in identifiers(name) if not _SKIPPED.fullmatch(word)]
    if not words:
        return (identifiers(name) or (name,))[-1][:60]
    word = next((each for each in words if not _FRAMES.search(each)), words[0])
    trimmed = _TRIMMED.sub("", _TRIMMED.sub("", word))
    return (trimmed or word).strip("_")[:60]
