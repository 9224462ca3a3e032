"""Answers requests: each generates with a cache that a call of the model makes longer.

python answers.py TOKENS...     (of each request)
python answers.py transformers  (one request, by generate() on the CPU; the GPU is only touched)
"""

from __future__ import annotations

import sys

import torch
from torch import nn

import ullage

WIDTH = 256


class Decoder(nn.Module):
    """One more row of the cache for each call: 2 MiB."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, cache: list[torch.Tensor]) -> None:
        """Makes the next row."""
        cache.append(self.linear(torch.ones(2048, WIDTH, device="cuda")))


def answer(model: Decoder, num_tokens: int) -> None:
    """A request that may fail as the program's own do."""
    with ullage.record.request("chat") as request, torch.no_grad():
        cache: list[torch.Tensor] = []
        for _ in range(num_tokens):
            model(cache)
        request.num_tokens = num_tokens


def generate() -> None:
    """Two prompts of five tokens, and three tokens more of each."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    ids = torch.ones(2, 5, dtype=torch.long)
    model.generate(ids, max_new_tokens=3, do_sample=False, eos_token_id=None, pad_token_id=0)


def main() -> None:
    """Answers, or generates; and one request fails."""
    model = Decoder().cuda()
    if sys.argv[1] == "transformers":
        generate()
        return
    for words in sys.argv[1:]:
        answer(model, int(words))
    try:
        with ullage.record.request("fails"):
            raise ValueError("the program's own")
    except ValueError:
        print("passed through")


main()
