"""A matrix product that is chosen by timing; its last line is JSON: torch's account of memory."""

import json

import torch


def main() -> None:
    """Inference, so that one product alone is chosen."""
    layer = torch.nn.Linear(64, 64).to("cuda", torch.bfloat16)
    layer = torch.compile(layer, mode="max-autotune-no-cudagraphs")
    with torch.no_grad():
        for _ in range(2):
            out = layer(torch.zeros(16, 64, device="cuda", dtype=torch.bfloat16))
    peak = torch.cuda.max_memory_allocated()
    print(json.dumps({"shape": list(out.shape), "peak_allocated_bytes": peak}))


if __name__ == "__main__":
    main()
