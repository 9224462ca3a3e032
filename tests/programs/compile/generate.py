"""Generates text with a compiled model and a cache of fixed size, by transformers' own means.

Its last line is JSON: torch's own account of memory.
"""

import json

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONFIG = LlamaConfig(
    vocab_size=2000, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
    num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256, eos_token_id=None,
    pad_token_id=0,
)  # fmt: skip


def main() -> None:
    """Twelve tokens after eight; the step of one token is compiled, and made a CUDA graph."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(1, 2000, (2, 8), device="cuda")
    out = model.generate(ids, max_new_tokens=12, do_sample=False, cache_implementation="static")
    stats = torch.cuda.memory_stats()
    segments = torch.cuda.memory_snapshot()
    found = {
        f"peak_{kind}_bytes": stats[f"{kind}_bytes.all.peak"] for kind in ("allocated", "reserved")
    }
    found["private"] = sum(s["total_size"] for s in segments if s["segment_pool_id"] != (0, 0))
    print(json.dumps(found | {"shape": list(out.shape)}))


if __name__ == "__main__":
    main()
