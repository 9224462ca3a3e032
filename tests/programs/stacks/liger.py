"""Liger's kernels in a Hugging Face Llama: fused norms, rotations, and a loss without logits."""

import torch
from figures import print_figures
from liger_kernel.transformers import apply_liger_kernel_to_llama
from made_up import Tokens, small_llama
from transformers import LlamaForCausalLM

STEPS = 3


def main() -> None:
    """Three steps."""
    apply_liger_kernel_to_llama()
    model = LlamaForCausalLM(small_llama()).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in Tokens(8 * STEPS, 1024).tokens.split(8):
        ids = batch.to("cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print_figures(model, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
