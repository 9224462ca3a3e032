"""A Llama that Accelerate spreads over the devices; its last line is JSON: the parameters of each
device, the shape of what was generated, and how many parts each device has.

The end of a text is a token that nobody computes, so the greatest length ends the generation.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Loads, generates, and runs a forward and a backward."""
    config = LlamaConfig(
        vocab_size=8192,
        hidden_size=1024,
        intermediate_size=2048,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        pad_token_id=0,
    )
    place = Path("weights")
    config.save_pretrained(place)
    model = LlamaForCausalLM.from_pretrained(place, device_map=sys.argv[1], dtype=torch.bfloat16)
    ids = torch.ones(2, 64, dtype=torch.long, device="cuda:0")
    text = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=4)
    model(ids, labels=ids).loss.backward()
    owned = [0] * torch.cuda.device_count()
    for parameter in model.parameters():
        owned[parameter.device.index] += parameter.numel() * parameter.element_size()
    parts = [list(model.hf_device_map.values()).count(i) for i in range(len(owned))]
    print(json.dumps({"owned": owned, "shape": list(text.shape), "parts": parts}))


if __name__ == "__main__":
    main()
