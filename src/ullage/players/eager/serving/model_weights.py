"""Bytes of a model's weights as an engine loads them, by quantisation, on one rank.

weight_bytes(model, "int4", tensor_parallel=2)
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from ullage.facts.families.config import Config
from ullage.facts.families.layers import Model, Part, Weight
from ullage.ground.errors import SpecError

_PLAIN_BYTES: Final = 2
VOCAB_MULTIPLE: Final = 64
"""vLLM pads the vocabulary to a multiple of this (vocab_parallel_embedding.py)."""


@dataclass(frozen=True, slots=True)
class Format:
    """How the matrices of linear layers are stored; all other weights take `plain_bytes`.

    Attributes:
        bits: bits of a weight.
        group: weights along a row that share a scale; 0: none do.
        group_bits: bits of that scale, with a zero point where there is one.
        row_bytes: bytes of the scales of a whole row.
        matrix_bytes: bytes of the scales of a whole matrix.
        tile: rows and columns of a square that shares a scale of 4 bytes; 0: there are no tiles.
        is_experts_only: only the experts' matrices are in this format.
        plain_bytes: bytes of an element of all other weights.
        what: the format in words.
        source: where the format is defined.
    """

    bits: int
    group: int = 0
    group_bits: int = 0
    row_bytes: int = 0
    matrix_bytes: int = 0
    tile: int = 0
    is_experts_only: bool = False
    plain_bytes: int = _PLAIN_BYTES
    what: str = ""
    source: str = ""

    def matrix_size(self, out: int, into: int) -> int:
        """Bytes of one matrix with its scales."""
        groups = out * ceil(into / self.group) if self.group else 0
        bits = out * into * self.bits + groups * self.group_bits
        tiles = ceil(out / self.tile) * ceil(into / self.tile) if self.tile else 0
        return ceil(bits / 8) + out * self.row_bytes + self.matrix_bytes + 4 * tiles


_INT4: Final = Format(
    4, group=128, group_bits=20, what="int4, groups of 128: an fp16 scale and a 4-bit zero point",
    source="Frantar et al. 2022, arXiv:2210.17323; Lin et al. 2023, arXiv:2306.00978",
)  # fmt: skip
FORMATS: Final = {
    "fp32": Format(32, plain_bytes=4, what="32-bit floats"),
    "bf16": Format(16, what="16-bit floats"),
    "fp16": Format(16, what="16-bit floats"),
    "fp8": Format(8, matrix_bytes=4, what="fp8, one scale for each matrix",
                  source="vLLM 0.32, layers/quantization/fp8.py"),
    "fp8-block": Format(8, tile=128, what="fp8, an fp32 scale for 128 x 128 weights",
                        source="DeepSeek-V3, arXiv:2412.19437, section 3.3"),
    "int8": Format(8, row_bytes=4, what="int8, an fp32 scale for each row",
                   source="vLLM 0.32, compressed_tensors_w8a8_int8.py"),
    "int4": _INT4,
    "gptq": _INT4,
    "awq": _INT4,
    "nf4": Format(4, group=64, group_bits=32, what="NF4, an fp32 scale for 64 weights",
                  source="Dettmers et al. 2023, arXiv:2305.14314, section 3"),
    "nf4-double": Format(4, group=64, group_bits=8,
                         what="NF4, 8-bit scales for 64 weights that are themselves scaled",
                         source="Dettmers et al. 2023, arXiv:2305.14314, section 3"),
    "mxfp4": Format(4, group=32, group_bits=8, is_experts_only=True,
                    what="experts in MXFP4, an 8-bit scale for 32 weights; the rest 16 bits",
                    source="OCP Microscaling Formats 1.0; gpt-oss's checkpoints"),
    "nvfp4": Format(4, group=16, group_bits=8, matrix_bytes=4,
                    what="NVFP4, an fp8 scale for 16 weights", source="vLLM 0.32, modelopt.py"),
}  # fmt: skip
"""By the name that a plan gives them."""


def find_format(config: Config) -> str:
    """The format of a checkpoint, as its quantization_config says; "bf16" where there is none.

    Raises:
        SpecError: it says something that is not known here.
    """
    if not config.has("quantization_config"):
        return "bf16"
    quantisation = config.part("quantization_config")
    method: str = quantisation.text("quant_method")
    bits = quantisation.number("bits", default=4)
    if (
        method in ("gptq", "awq")
        and bits == 4
        and quantisation.number("group_size", default=128) == 128
    ):
        return method
    if method == "fp8":
        return "fp8-block" if quantisation.has("weight_block_size") else "fp8"
    if method == "mxfp4":
        return method
    if method == "bitsandbytes" and quantisation.flag("load_in_8bit", default=False):
        return "int8"
    if method == "bitsandbytes":
        has_double = quantisation.flag("bnb_4bit_use_double_quant", default=False)
        return "nf4-double" if has_double else "nf4"
    raise quantisation.wrong(
        "quant_method", f"found {method!r} in this form, which is not known; name the format of "
        f"the weights: {', '.join(FORMATS)}",
    )  # fmt: skip


def weight_bytes(
    model: Model, quantisation: str = "bf16", tensor_parallel: int = 1
) -> dict[Part, int]:
    """Bytes of the weights on one rank, by what they are for.

    Counts: every parameter that transformers makes for the configuration; matrices of linear
    layers in the format, embeddings, the output head, routers, norms and convolutions in 16 bits;
    the vocabulary padded to 64.
    Ignores: matrices that a checkpoint leaves unquantised by name; what vLLM's kernels hold beyond
    the checkpoint (padding_bytes, zero_point_bytes); buffers such as rotary tables (below 1 MiB);
    adapters; nf4-double's second scales (0.002 bits a weight); gptq's order of columns (desc_act
    alone has it).
    Error: none for 16 and 32 bits, where a test compares with transformers; a quantised checkpoint
    may differ by what it leaves out.
    Source: transformers 5.23's models; of a format, its `source` in FORMATS.
    Raises: SpecError: no such format, or heads cannot be cut over the ranks.
    """
    form = FORMATS.get(quantisation)
    if form is None:
        raise SpecError(
            f"weights={quantisation!r} is not a format; expected one of {', '.join(FORMATS)}"
        )
    model.check_tensor_parallel(tensor_parallel)
    sizes: dict[Part, int] = {}
    for weight in model.weights:
        size = _bytes_of(weight, form, tensor_parallel, model.vocab)
        sizes[weight.part] = sizes.get(weight.part, 0) + size
    return sizes


def padding_bytes(
    model: Model, quantisation: str, tensor_parallel: int, capability: tuple[int, int]
) -> tuple[int, int]:
    """The bytes that vLLM's MXFP4 kernels add to experts of odd sizes, on a rank: likely, at most.

    Counts: the hidden size rounded up to 256, the experts' to 128 a rank (Marlin), on Blackwell to
    256 at most. Likely none on Hopper, whose Triton kernels take 2,880.
    Ignores: kernels that are asked for by environment variables.
    Error: none for gpt-oss-120b as one start prints it (65.97 GiB).
    Source: vLLM 0.10 to 0.33, quantization/mxfp4.py, fused_moe/oracle/mxfp4.py.
    """
    if quantisation != "mxfp4":
        return 0, 0
    form, exact, marlin, most = FORMATS[quantisation], 0, 0, 0
    for weight in model.weights:
        if weight.part is not Part.EXPERTS or not weight.is_linear:
            continue
        is_down = weight.out == model.hidden
        width = ceil((weight.into if is_down else weight.out) / tensor_parallel)
        for hidden, inner, which in ((1, 1, 0), (256, 128, 1), (256, 256, 2)):
            sides = (_round_up(model.hidden, hidden), _round_up(width, inner))
            size = weight.count * form.matrix_size(*(sides if is_down else sides[::-1]))
            exact, marlin, most = (
                total + size * (which == index) for index, total in enumerate((exact, marlin, most))
            )
    likely = 0 if capability[0] == _HOPPER else marlin - exact
    return likely, (most if capability[0] > _HOPPER else marlin) - exact


_HOPPER: Final = 9
_ZERO_POINT_BITS: Final = 12


def zero_point_bytes(model: Model, quantisation: str, tensor_parallel: int) -> int:
    """The bytes that vLLM holds of AWQ's zero points beyond the checkpoint's 4 bits, on one rank.

    Counts: 12 bits for each group of 128 weights.
    Ignores: other formats, which have none.
    Error: vLLM 0.28 holds 9.44 GiB of Qwen3-14B-AWQ on a GPU and on the phantom; with this, 9.43.
    Source: vLLM 0.28, quantization/auto_awq.py, and these starts (benchmarks/serving/starts.toml).
    """
    if quantisation != "awq":
        return 0
    bits = 0
    for weight in model.weights:
        if weight.is_linear:
            ranks = min(tensor_parallel, weight.most_shards or tensor_parallel)
            bits += weight.count * ceil(weight.out / ranks) * ceil(weight.into / 128)
    return bits * _ZERO_POINT_BITS // 8


def _round_up(size: int, multiple: int) -> int:
    return ceil(size / multiple) * multiple


def _bytes_of(weight: Weight, form: Format, ranks: int, vocab: int) -> int:
    shards = ranks if weight.most_shards is None else min(ranks, weight.most_shards)
    out = weight.out
    if weight.part in (Part.EMBEDDING, Part.HEAD) and out == vocab:
        out = ceil(out / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    is_packed = weight.part is Part.EXPERTS or not form.is_experts_only
    if weight.is_linear and is_packed:
        return form.matrix_size(ceil(out / shards), weight.into) * weight.count
    return ceil(out / shards) * weight.into * weight.count * form.plain_bytes
