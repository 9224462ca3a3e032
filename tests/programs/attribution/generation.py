"""Generation by a Llama of transformers, from a configuration: a prompt, then token by token."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache
from truth import Truth


def main() -> None:
    """Two prompts, thirty-two tokens."""
    config = LlamaConfig(
        vocab_size=8192, hidden_size=512, intermediate_size=1408, num_hidden_layers=6,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=2048,
    )  # fmt: skip
    with Truth() as truth, torch.no_grad():
        model = truth.owner(LlamaForCausalLM(config).to("cuda", torch.bfloat16).eval())
        ids = truth.input(torch.randint(8192, (16, 512)).cuda())
        cache = DynamicCache(config=config)
        for _ in range(32):
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            truth.say("kv_cache", [[layer.keys, layer.values] for layer in cache.layers])
            ids = truth.input(logits[:, -1:].argmax(-1))


if __name__ == "__main__":
    main()
