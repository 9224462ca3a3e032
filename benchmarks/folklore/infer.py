"""Reads a prompt with a decoder in bfloat16; prints what its weights, keys and values take."""

import argparse
import json

import torch
from decoder import SHAPES, build

PARSER = argparse.ArgumentParser(description=__doc__)
PARSER.add_argument("shape", choices=SHAPES)
PARSER.add_argument("--batch-size", type=int, default=1)
PARSER.add_argument("--length", type=int, default=2048)
ARGS = PARSER.parse_args()


@torch.inference_mode()
def main() -> None:
    shape = SHAPES[ARGS.shape]
    model = build(ARGS.shape, torch.bfloat16)
    weights = sum(weight.nbytes for weight in model.parameters())
    keys = (2, ARGS.batch_size, shape.kv_heads, ARGS.length, shape.width // shape.heads)
    cache = [torch.zeros(keys, device="cuda", dtype=torch.bfloat16) for _ in range(shape.layers)]
    tokens = torch.zeros(ARGS.batch_size, ARGS.length, dtype=torch.long, device="cuda")
    logits = model(tokens)
    cached = sum(layer.nbytes for layer in cache)
    said = {"weight_bytes": weights, "cache_bytes": cached, "logit_bytes": logits.nbytes}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
