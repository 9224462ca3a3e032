"""Attention with a mask by rule, compiled; its last line is JSON: torch's own account of memory."""

import json

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

SHAPE, KIND = (2, 4, 512, 64), {"device": "cuda", "dtype": torch.bfloat16}


def main() -> None:
    """One training step."""
    torch.manual_seed(0)
    attend = torch.compile(flex_attention)
    q, k, v = [torch.zeros(SHAPE, **KIND, requires_grad=True) for _ in range(3)]
    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, 512, 512, device="cuda")
    attend(q, k, v, block_mask=mask).sum().backward()
    peak = torch.cuda.max_memory_allocated()
    print(json.dumps({"peak_allocated_bytes": peak, "gradient": list(q.grad.shape)}))


if __name__ == "__main__":
    main()
