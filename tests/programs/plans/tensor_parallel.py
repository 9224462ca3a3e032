"""Trains a small language model as a script for one GPU would.

tensor_parallel.py DIRECTORY KIND HOW

Each process writes what it has in the end to DIRECTORY. HOW: "plain", "clips" clips gradients,
"loads" goes on from what it has saved, "apart" reads other rows on each rank, "copies" copies the
model.
"""

import copy
import os
import sys

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

STEPS, BATCH, LENGTH, VOCABULARY = 4, 2, 16, 64
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
}  # fmt: skip
KINDS = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "tied": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)),
    "biased": lambda: Qwen2ForCausalLM(Qwen2Config(**SIZES)),
    "normed": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
    "one_head": lambda: LlamaForCausalLM(LlamaConfig(**{**SIZES, "num_key_value_heads": 1})),
    "dropout": lambda: LlamaForCausalLM(LlamaConfig(**SIZES, attention_dropout=0.1)),
}


def main():
    """Trains."""
    directory, kind, how = sys.argv[1:]
    torch.set_num_threads(1)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = KINDS[kind]().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if how == "apart":
        torch.manual_seed(int(os.environ.get("RANK", "0")))
    losses, norms = [], []
    for step in range(STEPS):
        rows = torch.randint(VOCABULARY, (BATCH, LENGTH)).to(device)
        loss = model(input_ids=rows, labels=rows).loss
        loss.backward()
        if how == "clips":
            norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5).item())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if how == "copies":
            copy.deepcopy(model)
        if how == "loads" and step == 1:
            model.load_state_dict(model.state_dict())
            optimizer.load_state_dict(optimizer.state_dict())
    loss = model(input_ids=rows, labels=rows).loss
    loss.backward()
    made = {
        "losses": [*losses, loss.item()],
        "norms": norms,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict()["state"],
        "drawn": torch.rand(1).item(),
        "held": sum(one.numel() for one in model.parameters()),
    }
    torch.save(made, os.path.join(directory, f"rank{os.environ.get('RANK', '0')}.pt"))


if __name__ == "__main__":
    main()
