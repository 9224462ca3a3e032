"""Text generation with a KV cache: a Hugging Face Llama of 1.2 billion parameters in bf16.

The prompt is read in one pass; each new token then adds one key and one value per layer and KV head
to the cache: 2 x 16 x 8 x 64 numbers of 2 bytes, 32 KiB a sequence. The growing cache is copied for
every token (torch.cat), so a little more than that is needed for a moment.

    python examples/generate/generate.py --batch-size 32 --prompt-len 2048 --new-tokens 256
    ullage run --gpu l4 -- examples/generate/generate.py --batch-size 32 --prompt-len 2048
"""

import argparse

import torch
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig


def cache_bytes(cache: DynamicCache) -> int:
    """Bytes of all keys and values."""
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)


def main() -> None:
    """Generate greedily; one line for the prompt and one per --print-every tokens."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--prompt-len", type=int, default=1024)
    parser.add_argument("--new-tokens", type=int, default=16)
    parser.add_argument("--print-every", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    # The shape of Llama 3.2 1B
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=131072,
        rope_theta=500000.0,
        tie_word_embeddings=True,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).eval()
    ids = torch.randint(0, config.vocab_size, (args.batch_size, args.prompt_len), device="cuda")
    cache = DynamicCache(config=config)
    for num_tokens in range(args.new_tokens):
        with torch.inference_mode():
            logits = model(ids, past_key_values=cache, logits_to_keep=1).logits
            ids = logits[:, -1:].argmax(dim=-1)
        if num_tokens % args.print_every == 0:
            allocated = torch.cuda.memory_allocated()
            size = f"cache {cache_bytes(cache):,}  allocated {allocated:,}"
            print(f"{cache.get_seq_length()} tokens read  {size}", flush=True)
    print(f"peak {torch.cuda.max_memory_allocated():,}")


if __name__ == "__main__":
    main()
