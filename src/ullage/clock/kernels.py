"""The time of a kernel on a GPU, as an interval: matrix products, attention, collectives, and
kernels that only move memory.

    matrix_product(find_gpu("h100"), MatrixProduct(4096, 4096, 4096), "bfloat16").s

The GPU's table of NVIDIA's measurements is used first; then the table of its nearest relative
(relatives.py). The interval is the error that was measured of each (docs/results/time.md),
and the basis says which it was.

Ignores: other kernels that run at the same time; a throttled clock; operands that are still in the
L2 cache, or are not, other than in the measurements.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from typing import Final

from ullage.clock.duration import Duration, around
from ullage.clock.relatives import Match, find_table, slug_of, with_roof
from ullage.clock.table import load_widths
from ullage.clock.work import ITEMSIZES, Attention, Collective, Kind, MatrixProduct, roofline
from ullage.facts.gpus import Gpu
from ullage.ground.errors import SpecError

# The tables that have the quantisation of an operand in them, and the least share of bfloat16's
# time that the product takes: its share of the operands' bytes.
_QUANTISED: Final = {"float8_e4m3fn": 0.5, "float4_e2m1fn_x2": 0.25}
_LARGE: Final = MatrixProduct(4096, 4096, 4096)
_UNPACKED: Final = 1.2


def matrix_product(gpu: Gpu, work: MatrixProduct, precision: str) -> Duration:
    """The time of a matrix product.

    Args:
        precision: torch's name of the operands' type; "tf32" and "fp32" for float32.

    Source: NVIDIA's measurements of torch.nn.functional.linear of random numbers, and of vLLM's
    linear layers in float8 and float4. These have the quantisation of the left operand in them, so
    that the interval reaches down to the product alone. Batches of more than one product are not
    among the measurements; their interval is that of the edge.
    """
    work = replace(work, itemsize=_itemsize(precision))
    match = find_table(gpu, Kind.MATRIX_PRODUCT, precision)
    note = "a batch of products counts as the rows of one" if work.batch > 1 else ""
    time = _read(match, work, note)
    if match.table.precision not in _QUANTISED:
        return time
    half = matrix_product(gpu, work, "bfloat16")
    low_s = min(time.low_s, half.low_s * _QUANTISED[match.table.precision])
    basis = f"{time.basis}; with the quantisation of the input, without it in the lower bound"
    return replace(time, low_s=low_s, basis=basis)


def packed_product(
    gpu: Gpu, work: MatrixProduct, packed_bytes: float, precision: str = "bfloat16"
) -> Duration:
    """The time of a product whose second factor is kept in fewer bits than 16.

    Assumes: that of a product in 16 bits less the time of the bytes that are not read; not less
    than its bytes take, nor than its operations at the rate of a large product. At most 1.2 times
    that of a product in 16 bits.

    Args:
        packed_bytes: of the second factor.
        precision: in which it is multiplied.
    """
    plain = matrix_product(gpu, work, "bfloat16")
    packed = memory_bound(gpu, packed_bytes)
    full = memory_bound(gpu, work.batch * work.n * work.k * ITEMSIZES["bfloat16"])
    rate = _LARGE.ops / matrix_product(gpu, _LARGE, precision).s
    likely = max(packed.s, plain.s - (full.s - packed.s), work.ops / rate)
    basis = f"{plain.basis}; unpacked in the kernel"
    low_s, high_s = min(packed.low_s, likely), max(_UNPACKED * plain.high_s, likely)
    return Duration(low_s, likely, high_s, basis)


def attention_forward(gpu: Gpu, work: Attention, precision: str) -> Duration:
    """The time of attention over a whole sequence, as in training and prefill.

    The measured kernels are those of inference engines (FlashAttention 2 on capabilities 8.x and
    12.0, 3 on 9.0, TensorRT-LLM's on 10.x). They are causal, and queries as long as keys; without
    the mask, and for other lengths, their rate per visible pair is taken, with the edge's interval.
    """
    work = replace(work, itemsize=_itemsize(precision))
    match = find_table(gpu, Kind.ATTENTION_FORWARD, precision)
    notes = []
    if not work.is_causal:
        notes.append("the rate of causal attention for that without a mask")
    if work.q_len != work.kv_len:
        notes.append("the rate of equal lengths for others")
    return _read(match, work, "; ".join(notes))


def attention_decode(gpu: Gpu, work: Attention, precision: str) -> Duration:
    """The time of attention of one new token each over a cache.

    More than one query a sequence (speculation) counts as one, with more operations.
    """
    work = replace(work, itemsize=_itemsize(precision))
    match = find_table(gpu, Kind.ATTENTION_DECODE, precision)
    note = "the efficiency of one query for several" if work.q_len > 1 else ""
    return _read(match, work, note)


def collective(gpu: Gpu, work: Collective, link_bytes_per_s: float | None = None) -> Duration:
    """The time of a collective when every GPU has arrived.

    Args:
        link_bytes_per_s: of each GPU to the others, one way; None: as its machine connects it
            (NVLink or PCIe), up to eight GPUs.

    Source: NVIDIA's measurements of NCCL, and of vLLM's custom all-reduce in a CUDA graph, in one
    machine. For a stated link, and for more GPUs, the
    measured share of the link's bandwidth is taken, with the edge's interval.
    """
    if work.num_gpus < 2:
        raise SpecError(f"num_gpus={work.num_gpus}; a collective needs 2 or more")
    match = find_table(gpu, work.kind, "bytes")
    note = ""
    if link_bytes_per_s is not None:
        match = with_roof(match, bytes_per_s=link_bytes_per_s)
        note = "the measured share of the link's bandwidth, on another link"
    return _read(match, work, note)


def memory_bound(gpu: Gpu, num_bytes: float) -> Duration:
    """The time of a kernel that only moves memory, by the bytes that it reads and writes.

    Source: the shares of the stated bandwidth that measured kernels reach which read more than the
    caches hold (decode attention over long caches, products of few rows), and the fastest kernel
    as the start. Not measured: strided and random access, which take longer.
    """
    widths = load_widths()
    slug = slug_of(gpu)
    rate = float(gpu.bandwidth_bytes_per_s)
    if slug in widths.streaming:
        low, likely, high = widths.streaming[slug]
        basis = f"the share of the bandwidth that kernels reach on {slug}"
    else:
        shares = list(widths.streaming.values())
        low = min(share[0] for share in shares)
        likely = statistics.median(share[1] for share in shares)
        high = max(share[2] for share in shares)
        basis = "the share of the bandwidth that kernels reach on other GPUs"
    start = widths.start_s.get(slug, statistics.median(widths.start_s.values()))
    low_s, seconds, high_s = (start + num_bytes / (rate * share) for share in (high, likely, low))
    return Duration(low_s, seconds, high_s, basis)


def _itemsize(precision: str) -> float:
    """Bytes of a number."""
    if precision not in ITEMSIZES:
        raise SpecError(f"precision={precision!r}; expected one of {', '.join(ITEMSIZES)}")
    return ITEMSIZES[precision]


def _read(match: Match, work: MatrixProduct | Attention | Collective, note: str) -> Duration:
    """The prediction of a table, with everything that widens its interval."""
    prediction = match.table.predict(work)
    width = prediction.width
    if note and not prediction.outside:
        width = match.table.edge
    if match.width is not None:
        width = width.joined(match.width)
    notes = [f"NVIDIA's measurements ({match.table.kernel})", match.note, note]
    if prediction.outside:
        notes.append(f"{prediction.outside:.1f} octaves outside of the measured shapes")
    seconds = roofline(work, match.roof) * prediction.quotient
    return around(seconds, width, "; ".join(text for text in notes if text))
