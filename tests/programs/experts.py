"""One training step of a Mixtral whose experts are called one by one; prints its peak."""

import json
import sys

import torch
from transformers import MixtralConfig, MixtralForCausalLM

config = MixtralConfig(
    hidden_size=512, intermediate_size=3584, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=8, vocab_size=4000, num_local_experts=16,
)  # fmt: skip
config._experts_implementation = "eager"
model = MixtralForCausalLM(config).to("cuda", torch.bfloat16)
ids = torch.randint(0, 4000, (1, int(sys.argv[1])), device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
print(json.dumps({"peak": torch.cuda.max_memory_allocated()}))
