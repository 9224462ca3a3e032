"""Builds a model of some GiB on the CPU in the way that is named, and moves it to the GPU."""

import json
import sys
from pathlib import Path

import torch
from torch import nn


def resident_peak():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def llama(**options):
    from transformers import AutoModelForCausalLM, LlamaConfig

    config = LlamaConfig(
        hidden_size=2048, intermediate_size=5504, num_hidden_layers=10, num_attention_heads=16
    )
    return AutoModelForCausalLM.from_config(config, **options)


def stack():
    return nn.Sequential(*[nn.Linear(4096, 4096) for _ in range(32)])


def encoder():
    # Copies its layer, and takes truncated normal numbers.
    layer = nn.TransformerEncoderLayer(2048, 8, 8192, batch_first=True)
    model = nn.TransformerEncoder(layer, 12)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.trunc_normal_(parameter, std=0.02)
    return model


MODELS = {
    "stack": lambda: stack().to("cuda"),
    "stack.cuda": lambda: stack().cuda(),
    "stack.half": lambda: stack().half().to("cuda"),
    "stack to bfloat16": lambda: stack().to("cuda", torch.bfloat16),
    "encoder": lambda: encoder().to("cuda"),
    "llama": lambda: llama().to("cuda"),
}

torch.zeros(1, device="cuda")
if sys.argv[1] == "llama":  # what its import takes is not weights
    from transformers.models.llama import modeling_llama  # noqa: F401
before = resident_peak()
model = MODELS[sys.argv[1]]()
after = resident_peak()
held = sum(p.numel() * p.element_size() for p in model.parameters())
numbers = sum(p.numel() for p in model.parameters())
print(json.dumps({"grown": after - before, "device_bytes": held, "fp32_bytes": 4 * numbers}))
