"""A Hugging Face Llama of 1.2 billion parameters in bf16, batch 4 x 4096; milliseconds per step."""

import time

import torch
from transformers import LlamaConfig, LlamaForCausalLM


def main() -> None:
    """Five steps; the first also starts libraries up."""
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to("cuda", torch.bfloat16).train()
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(5):
        started = time.perf_counter()
        ids = torch.randint(0, config.vocab_size, (4, 4096), device="cuda")
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        print(f"step {step}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
