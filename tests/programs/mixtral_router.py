"""Two steps of a small Mixtral: the device decides which expert sees how many tokens.

With the argument "eager" the host asks for the experts, one after another, as older versions do.
"""

import sys

import torch
from transformers import MixtralConfig, MixtralForCausalLM


def main() -> None:
    """One line per step."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        num_local_experts=8,
        num_experts_per_tok=2,
        output_router_logits=True,
    )
    if sys.argv[1:] == ["eager"]:
        config._experts_implementation = "eager"
    model = MixtralForCausalLM(config).to("cuda", torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(2):
        ids = torch.randint(0, config.vocab_size, (2, 128), device="cuda")
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}  loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
