"""Prints which implementation torch chooses for calls of scaled_dot_product_attention."""

import json

import torch

NAMES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn"}
LENGTH = 128
CALLS = {
    "plain": {}, "width 60": {"width": 60}, "width 65": {"width": 65}, "width 512": {"width": 512},
    "values of 128": {"value_width": 128}, "mask": {"mask": torch.bool},
    "mask with gradients": {"mask": True}, "dropout": {"dropout": 0.1},
    "fewer heads of keys": {"key_heads": 2},
    "grouped": {"key_heads": 2, "enable_gqa": True}, "not contiguous": {"is_strided": True},
}  # fmt: skip


def choose(dtype, width=64, value_width=None, mask=None, dropout=0.0, key_heads=4,
           enable_gqa=False, is_strided=False):  # fmt: skip
    """What is chosen of one call."""
    make = {"dtype": dtype, "device": "cuda", "requires_grad": True}
    query = torch.empty(2, 4, LENGTH, width, **make)
    if is_strided:
        query = torch.empty(2, 4, width, LENGTH, **make).transpose(-1, -2)
    key = torch.empty(2, key_heads, LENGTH, width, **make)
    value = torch.empty(2, key_heads, LENGTH, value_width or width, **make)
    bias = None
    if mask is not None:
        kind = {"requires_grad": True, "dtype": dtype} if mask is True else {"dtype": mask}
        bias = torch.empty(2, 4, LENGTH, LENGTH, device="cuda", **kind)
    chosen = torch._fused_sdp_choice(query, key, value, bias, dropout, False, enable_gqa=enable_gqa)
    return NAMES[chosen]


print(json.dumps({
    str(dtype).removeprefix("torch."): {name: choose(dtype, **call) for name, call in CALLS.items()}
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}))  # fmt: skip
