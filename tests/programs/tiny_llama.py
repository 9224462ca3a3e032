"""Three training steps of a small Hugging Face Llama."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """One line per step."""
    config = LlamaConfig(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=8,
        num_key_value_heads=2,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(3):
        ids = torch.randint(0, config.vocab_size, (4, 96), device="cuda")
        mask = torch.ones_like(ids)
        mask[0, :32] = 0
        loss = model(input_ids=ids, attention_mask=mask, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
