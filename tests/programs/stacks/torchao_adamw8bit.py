"""torchao's AdamW with states in 8 bits."""

import torch
from figures import print_figures
from made_up import Tokens, small_llama
from torchao.optim import AdamW8bit
from transformers import LlamaForCausalLM

STEPS = 3


def main() -> None:
    """Three steps."""
    model = LlamaForCausalLM(small_llama()).to("cuda", torch.bfloat16)
    optimizer = AdamW8bit(model.parameters(), lr=1e-4)
    tokens = Tokens(4 * STEPS, 512).tokens
    for batch in tokens.split(4):
        ids = batch.to("cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print_figures(model, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
