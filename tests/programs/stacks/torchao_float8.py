"""torchao's float8 training: the linear layers compute in float8, scaled per tensor."""

import torch
from figures import print_figures
from made_up import Tokens, small_llama
from torch import nn
from torchao.float8 import convert_to_float8_training
from transformers import LlamaForCausalLM

STEPS = 3


def is_wide(module: nn.Module, name: str) -> bool:
    """All linear layers but the last."""
    return isinstance(module, nn.Linear) and name != "lm_head"


def main() -> None:
    """Three steps."""
    model = LlamaForCausalLM(small_llama()).to("cuda", torch.bfloat16)
    convert_to_float8_training(model, module_filter_fn=is_wide)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in Tokens(4 * STEPS, 512).tokens.split(4):
        ids = batch.to("cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print_figures(model, optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
