"""A small Llama, for programs that fine-tune one."""

from transformers import LlamaConfig, LlamaForCausalLM


def llama(words, dtype="float32"):
    """Random weights, of the tokenizer's vocabulary."""
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=256, intermediate_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
        pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    config.dtype = dtype
    return LlamaForCausalLM(config)
