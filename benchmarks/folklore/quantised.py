"""Quantises the linear layers of a 7B decoder one by one, and prints what is kept of them."""

import json
import sys

import torch
from decoder import SHAPES, Block
from torch import Tensor, nn


def quantise(weight: Tensor, how: str) -> object:
    """What is kept of a weight in bfloat16."""
    if how == "bfloat16":
        return weight
    if how == "int8":  # a scale for each row
        scale = weight.abs().amax(1, keepdim=True) / 127
        return (weight / scale).to(torch.int8), scale
    if how in ("int4", "int4-unpacked"):  # a scale for each 128 numbers
        groups = weight.unflatten(1, (-1, 128))
        scale = groups.abs().amax(2, keepdim=True) / 7
        numbers = (groups / scale).to(torch.int8)
        is_packed = how == "int4"  # two in a byte
        return numbers[..., ::2] << 4 | numbers[..., 1::2] & 15 if is_packed else numbers, scale
    from bitsandbytes.functional import quantize_4bit

    return quantize_4bit(weight, compress_statistics=how == "nf4-double", quant_type="nf4")


def main() -> None:
    how = sys.argv[1]
    with torch.device("meta"):
        block = Block(SHAPES["7b"])
    linear = [child for child in block.children() if isinstance(child, nn.Linear)]
    shapes = [layer.weight.shape for layer in linear]
    numbers, kept = 0, []
    for shape in shapes * SHAPES["7b"].layers:
        weight = torch.empty(shape, dtype=torch.bfloat16, device="cuda")
        numbers += weight.numel()
        kept.append(quantise(weight, how))
        del weight
    asked = torch.cuda.memory_stats()["requested_bytes.all.current"]
    print(json.dumps({"numbers": numbers, "bytes": asked}))


if __name__ == "__main__":
    main()
