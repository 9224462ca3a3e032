"""Greedy generation with a KV cache; prints how many tokens came out: nothing stops it, so 32."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Two prompts of 64 tokens, 32 new tokens each."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval()
    ids = torch.randint(1, config.vocab_size, (2, 64), device="cuda")
    mask = torch.ones_like(ids)
    out = model.generate(ids, attention_mask=mask, max_new_tokens=32, do_sample=False)
    print(out.shape[1] - ids.shape[1])


if __name__ == "__main__":
    main()
