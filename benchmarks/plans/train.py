"""Train a model with random weights for a few steps: `train.py MODEL BATCH`.

gpt2, llama-1b, t5-base, mixtral-small (transformers); vit-large, resnet152 (timm). Plain loops with
bf16 autocast and AdamW, as users write them; nothing here knows of ullage.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch

STEPS, TOKENS, IMAGE = 3, 1024, 224


def language_model(name: str) -> tuple[Any, int]:
    """A model of transformers that gives its loss, and its vocabulary."""
    import transformers as hf

    if name == "gpt2":
        config = hf.GPT2Config()
        return hf.GPT2LMHeadModel(config), config.vocab_size
    if name == "llama-1b":
        config = hf.LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=16,
            num_attention_heads=32, num_key_value_heads=8, vocab_size=128256,
            tie_word_embeddings=True,
        )  # fmt: skip
        return hf.LlamaForCausalLM(config), config.vocab_size
    if name == "t5-base":
        config = hf.T5Config(d_model=768, d_ff=3072, num_layers=12, num_heads=12)
        return hf.T5ForConditionalGeneration(config), config.vocab_size
    config = hf.MixtralConfig(
        hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, num_local_experts=4, vocab_size=32000,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config), config.vocab_size


def image_model(name: str) -> Any:
    """A model of timm."""
    import timm

    return timm.create_model({"vit-large": "vit_large_patch16_224"}.get(name, name))


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("batch", type=int)
    args = parser.parse_args()
    torch.manual_seed(0)
    is_image = args.model in {"vit-large", "resnet152"}
    model, size = (image_model(args.model), 1000) if is_image else language_model(args.model)
    model = model.to("cuda").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            if is_image:
                images = torch.randn(args.batch, 3, IMAGE, IMAGE, device="cuda")
                labels = torch.randint(0, size, (args.batch,), device="cuda")
                loss = torch.nn.functional.cross_entropy(model(images), labels)
            else:
                ids = torch.randint(0, size, (args.batch, TOKENS), device="cuda")
                loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
