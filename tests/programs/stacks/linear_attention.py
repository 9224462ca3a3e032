"""flash-linear-attention: a gated linear attention model, whose layers are Triton kernels."""

import torch
from figures import print_figures
from fla.models import GLAConfig, GLAForCausalLM
from made_up import VOCABULARY, Tokens

STEPS = 3


def main() -> None:
    """Three steps."""
    config = GLAConfig(
        hidden_size=1024, num_hidden_layers=8, num_heads=4, vocab_size=VOCABULARY, use_cache=False
    )
    model = GLAForCausalLM(config).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in Tokens(4 * STEPS, 1024).tokens.split(4):
        ids = batch.to("cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print_figures(model, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
