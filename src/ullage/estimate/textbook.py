"""The results that every account of GPU memory quotes, as functions that say what they leave out.

Closed forms alone: no model is read, no torch is needed, and nothing here knows the allocator (its
rounding, its cache) or what libraries take; docs/results/folklore.md compares them with runs. For
chains of layers see checkpointing.py.

    >>> mixed_precision_states(7_000_000_000).total_bytes
    112000000000
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from ullage.errors import SpecError


class States(NamedTuple):
    """What parameters entail, each in bytes; the parts are all there is."""

    weight_bytes: int
    gradient_bytes: int
    accumulated_bytes: int
    """A second copy of the gradients in fp32."""
    master_bytes: int
    optimizer_bytes: int

    @property
    def total_bytes(self) -> int:
        """All of them at once."""
        return sum(self)


def adam_bytes(num_parameters: int, state_bytes: int = 4) -> int:
    """Adam's two moments: 2 x state_bytes a parameter, 8 in fp32.

    Counts: both; torch makes them in the type of the parameter, so 4 bytes where that is bfloat16.
    Ignores: the step count of each tensor; the temporaries of a foreach step, another copy of the
    parameters.
    Error: none beside these.
    Source: Kingma and Ba 2015, arXiv:1412.6980, algorithm 1; torch 2.15, torch/optim/adam.py.
    """
    require_positive(num_parameters=num_parameters, state_bytes=state_bytes)
    return 2 * state_bytes * num_parameters


def mixed_precision_states(
    num_parameters: int, *, gradient_bytes: int = 2, accumulates_fp32: bool = False
) -> States:
    """Adam's states in mixed precision with master weights: 16, 18 or 20 bytes a parameter.

    Counts: 16: weights 2, gradients 2, master weights 4, moments 4 + 4. 18: gradients in fp32
    (gradient_bytes=4). 20: gradients in both. torch.autocast keeps fp32 weights and no master copy:
    16 as well, and 2 more while its cache of casts is alive.
    Ignores: activations, temporaries, buckets.
    Error: none for what is listed.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, section 3.1 (16); Megatron-LM,
    megatron/training/theoretical_memory_usage.py (18).
    """
    require_positive(num_parameters=num_parameters, gradient_bytes=gradient_bytes)
    return States(
        weight_bytes=2 * num_parameters,
        gradient_bytes=gradient_bytes * num_parameters,
        accumulated_bytes=4 * num_parameters if accumulates_fp32 else 0,
        master_bytes=4 * num_parameters,
        optimizer_bytes=adam_bytes(num_parameters),
    )


def zero_states(states: States, zero_stage: int, dp_size: int) -> States:
    """What one rank holds of the states under ZeRO: stage 1 shares out the optimizer's (master
    weights and moments), 2 the gradients too, 3 the weights too.

    Counts: a share as a dp_size-th, rounded up to a byte. With K bytes of optimizer state a
    parameter: 2P + 2P + K P/N, 2P + (2 + K) P/N, (2 + 2 + K) P/N.
    Ignores: padding of shares, gathered weights and buckets in flight.
    Error: what FSDP2 rounds up, as it shards each tensor by its first dimension.
    Source: Rajbhandari et al. 2020, arXiv:1910.02054, figure 1 and section 5.
    """
    require_positive(dp_size=dp_size)
    if zero_stage not in range(4):
        raise SpecError(f"zero_stage={zero_stage} is not a stage of ZeRO; use 0, 1, 2 or 3")
    first_sharded_at = (3, 2, 2, 1, 1)  # in the order of the parts
    shares = (
        -(-part // dp_size) if zero_stage >= stage else part
        for part, stage in zip(states, first_sharded_at, strict=True)
    )
    return States(*shares)


class Recompute(Enum):
    """What of a transformer's layer is made again in backward: nothing, the attention between the
    projections, or all.
    """

    NONE = "none"
    SELECTIVE = "selective"
    FULL = "full"


def activation_bytes_per_layer(
    tokens: int,
    hidden_size: int,
    *,
    num_heads: int,
    seq_len: int,
    tp_size: int = 1,
    sequence_parallel: bool = False,
    recompute: Recompute = Recompute.NONE,
) -> int:
    """What a GPT layer in 16 bits keeps for backward on one rank: s b h (34 + 5 a s / h) bytes.

    Counts: tokens is s b, micro-batch times sequence. Tensor parallelism t shares out 24 of the 34
    and the attention: s b h (10 + 24/t + 5 a s / (h t)); sequence parallelism the rest too.
    Selective recomputation spares the attention's 5 a s / h; full keeps the layer's input, 2 s b h,
    alone. Rounded up. For: attention written out, dropout with one-byte masks, GELU, a feed-forward
    part of 4 h. Flash attention is as good as SELECTIVE.
    Ignores: fp32 statistics of norms, embeddings, logits, gated feed-forward parts, grouped heads.
    Error: that of a model that is built otherwise; estimate_training() plays what it keeps.
    Source: Korthikanti et al. 2022, arXiv:2205.05198, table 2.
    """
    require_positive(tokens=tokens, hidden_size=hidden_size, num_heads=num_heads, seq_len=seq_len)
    require_positive(tp_size=tp_size)
    if recompute is Recompute.FULL:
        return -(-2 * tokens * hidden_size // (tp_size if sequence_parallel else 1))
    attention = 0 if recompute is Recompute.SELECTIVE else 5 * num_heads * seq_len
    whole = 10 * hidden_size * (1 if sequence_parallel else tp_size)
    return -(-tokens * (whole + 24 * hidden_size + attention) // tp_size)


def transformer_parameters(
    num_layers: int, hidden_size: int, *, vocabulary_size: int = 0, seq_len: int = 0
) -> int:
    """Parameters of a GPT: 12 L h^2, for biases and norms 13 L h, and (V + s) h for embeddings.

    Counts: 4 h^2 of attention and 8 h^2 of a feed-forward part of 4 h; the head shares the weights
    of the embedding.
    Ignores: the last norm (2 h), gated parts, grouped heads, a head of its own.
    Error: none for GPT-2 beside the last norm.
    Source: Narayanan et al. 2021, arXiv:2104.04473, equation (2).
    """
    require_positive(num_layers=num_layers, hidden_size=hidden_size)
    layer = 12 * hidden_size**2 + 13 * hidden_size
    return num_layers * layer + (vocabulary_size + seq_len) * hidden_size


def kv_bytes_per_token(
    num_layers: int, num_kv_heads: int, head_dim: int, item_bytes: int = 2
) -> int:
    """Keys and values of one token in all layers: 2 x layers x KV heads x head_dim x item_bytes.

    Counts: layers that attend to all. Not for latent attention, sliding windows, recurrent state.
    Ignores: rounding up to whole blocks, scales of a quantised cache.
    Error: none for such layers.
    Source: Pope et al. 2022, arXiv:2211.05102, section 2; Kwon et al. 2023, arXiv:2309.06180.
    """
    sizes = {"num_layers": num_layers, "num_kv_heads": num_kv_heads, "head_dim": head_dim}
    require_positive(**sizes, item_bytes=item_bytes)
    return 2 * num_layers * num_kv_heads * head_dim * item_bytes


class Schedule(Enum):
    """In which order a pipeline's stages take micro-batches forward and backward."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    INTERLEAVED = "interleaved"
    ZERO_BUBBLE_H1 = "zb-h1"
    ZERO_BUBBLE_H2 = "zb-h2"


def in_flight_micro_batches(
    schedule: Schedule, stage: int, pp_size: int, num_micro_batches: int, *, num_chunks: int = 1
) -> float:
    """The most micro-batches whose activations one stage holds at once; in chunks of a stage, each
    counts for its part.

    Counts: GPipe: all m. 1F1B: p - stage, at most m. Interleaved with v chunks: (2 (p - stage - 1)
    + (v - 1) p + 1) / v. Zero bubble H1: p; H2: 2 p - 1.
    Ignores: what stages receive and send.
    Error: none but for zero bubbles, whose figures are those of the fullest stage, and hold what
    waits for its weights' gradients to be as large as all of an activation.
    Source: Huang et al. 2019, arXiv:1811.06965; Narayanan et al. 2021, arXiv:2104.04473, section
    2.2; Qi et al. 2023, arXiv:2401.10241, section 2.
    """
    sizes = {"pp_size": pp_size, "num_micro_batches": num_micro_batches, "num_chunks": num_chunks}
    require_positive(**sizes)
    if stage not in range(pp_size):
        raise SpecError(f"stage={stage} is not one of pp_size={pp_size}; use 0 to {pp_size - 1}")
    if num_chunks > 1 and schedule is not Schedule.INTERLEAVED:
        raise SpecError(f"num_chunks={num_chunks} is for Schedule.INTERLEAVED, not {schedule}")
    after = pp_size - stage - 1
    shares = {
        Schedule.GPIPE: float(num_micro_batches),
        Schedule.ONE_F_ONE_B: after + 1,
        Schedule.INTERLEAVED: (2 * after + (num_chunks - 1) * pp_size + 1) / num_chunks,
        Schedule.ZERO_BUBBLE_H1: pp_size,
        Schedule.ZERO_BUBBLE_H2: 2 * pp_size - 1,
    }
    return min(shares[schedule], num_micro_batches)


def ring_attention_bytes(tokens: int, hidden_size: int, cp_size: int, item_bytes: int = 2) -> int:
    """What one layer's ring attention holds on one rank: 6 blocks of its share of the tokens.

    Counts: of ceil(tokens / cp_size) tokens the queries, keys and values, those on their way from
    the neighbour, and the output. Every other activation of the layer is shared out alike.
    Ignores: the statistics of the softmax; what torch's own ring holds beside (eager/ring.py).
    Error: too much for grouped heads, whose keys and values are narrower.
    Source: Liu et al. 2023, arXiv:2310.01889, section 3.2.
    """
    require_positive(tokens=tokens, hidden_size=hidden_size, cp_size=cp_size)
    require_positive(item_bytes=item_bytes)
    return 6 * -(-tokens // cp_size) * hidden_size * item_bytes


def int8_bytes(num_rows: int, num_columns: int, scale_bytes: int = 4) -> int:
    """A matrix in int8 with a scale for each row (output channel).

    Counts: a byte each, and the scales. Ignores: columns of outliers, which stay in 16 bits.
    Error: none. Source: Dettmers et al. 2022, arXiv:2208.07339, section 2.1.
    """
    require_positive(num_rows=num_rows, num_columns=num_columns, scale_bytes=scale_bytes)
    return num_rows * (num_columns + scale_bytes)


def int4_bytes(
    num_weights: int, group_size: int = 128, *, scale_bytes: int = 2, zero_bits: int = 4
) -> int:
    """Weights in 4 bits, two in a byte, and a scale and a zero point (0 bits: none) for each group.

    Counts: 4 + (16 + 4) / 128 = 4.16 bits a weight as it stands; one in a byte, it is twice that.
    Ignores: padding of a kernel's layout, the order of columns (GPTQ's act-order).
    Error: none beside these.
    Source: Frantar et al. 2022, arXiv:2210.17323, section 4; Lin et al. 2023, arXiv:2306.00978.
    """
    require_positive(num_weights=num_weights, group_size=group_size, scale_bytes=scale_bytes)
    num_groups = -(-num_weights // group_size)
    return -(-num_weights // 2) + num_groups * scale_bytes + -(-num_groups * zero_bits // 8)


def nf4_bytes(num_weights: int, *, double_quantised: bool = False) -> int:
    """Weights in NF4 with an fp32 scale for each 64: 4.5 bits. Doubly quantised, the scales take 8
    bits and an fp32 one for each 256 of them: 4.127 bits.

    Counts: the weights and their scales.
    Ignores: the tables of values and the mean of the scales, 1.1 kB a tensor.
    Error: none beside these.
    Source: Dettmers et al. 2023, arXiv:2305.14314, section 3.
    """
    require_positive(num_weights=num_weights)
    num_scales = -(-num_weights // 64)
    scale_bytes = num_scales + 4 * -(-num_scales // 256) if double_quantised else 4 * num_scales
    return -(-num_weights // 2) + scale_bytes


def ivf_bytes(num_vectors: int, dim: int, num_lists: int, code_bytes: int | None = None) -> int:
    """An inverted-file index: each vector (4 dim bytes, or its code) with an 8-byte id, and the
    centroids of the lists.

    Counts: vectors, ids and centroids.
    Ignores: slack of the lists' growth, up to as much again on the CPU; codebooks of a quantiser.
    Error: none beside these.
    Source: Douze et al. 2024, arXiv:2401.08281, section 5; FAISS's guidelines: 4 d + 8 a vector.
    """
    require_positive(num_vectors=num_vectors, dim=dim, num_lists=num_lists)
    vector_bytes = 4 * dim if code_bytes is None else code_bytes
    return num_vectors * (vector_bytes + 8) + 4 * dim * num_lists


def hnsw_bytes(num_vectors: int, dim: int, num_links: int = 32) -> int:
    """A navigable small-world graph over float vectors: 4 dim + 2 num_links x 4 bytes for each.

    Counts: num_links is M; the lowest level has 2 M of 4 bytes.
    Ignores: the levels above, about 1 in M of the vectors, and offsets (some 8 bytes a vector).
    Error: 2 M x 4 / (M - 1) bytes a vector too little; retrieval.hnsw_bytes has them.
    Source: Malkov and Yashunin 2016, arXiv:1603.09320, section 4.2; FAISS's guidelines.
    """
    require_positive(num_vectors=num_vectors, dim=dim, num_links=num_links)
    return num_vectors * (4 * dim + 2 * num_links * 4)


def require_positive(**sizes: int) -> None:
    """Refuses sizes below 1, by their names."""
    for name, size in sizes.items():
        if size < 1:
            raise SpecError(f"{name}={size!r} is not possible; use 1 or more")
