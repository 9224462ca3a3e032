"""Accelerate: a loop of one's own, mixed precision, gradient accumulation and clipping."""

import torch
from accelerate import Accelerator
from figures import print_figures
from made_up import Tokens, small_llama
from torch.utils.data import DataLoader
from transformers import LlamaForCausalLM

STEPS, MICRO_BATCHES = 3, 2


def main() -> None:
    """Three steps of two micro-batches."""
    accelerator = Accelerator(mixed_precision="bf16", gradient_accumulation_steps=MICRO_BATCHES)
    model = LlamaForCausalLM(small_llama())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Tokens(4 * STEPS * MICRO_BATCHES, 512), batch_size=4, shuffle=True)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    print_figures(model, optimizer.optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
