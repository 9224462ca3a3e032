"""Train a language model with random weights for a few steps: `text.py MODEL BATCH [TOKENS]`.

Models of transformers: GPT-2 from small to XL, Llama, T5, a mixture of experts, Mamba 2; the Llama
with adapters is that of peft. Plain loops with AdamW, as users write them, in bf16 autocast, or in
bf16 throughout where the weights are.
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
import transformers as hf

STEPS = 3
# Width, layers and heads of each GPT-2.
GPT2 = {
    "": (768, 12, 12),
    "-medium": (1024, 24, 16),
    "-large": (1280, 36, 20),
    "-xl": (1600, 48, 25),
}


def gpt2(size: str) -> Any:
    """GPT-2 of one of its sizes."""
    width, layers, heads = GPT2[size]
    return hf.GPT2LMHeadModel(hf.GPT2Config(n_embd=width, n_layer=layers, n_head=heads))


def llama_1b() -> Any:
    """The shape of Llama 3.2 1B."""
    config = hf.LlamaConfig(
        hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config)


def llama_8b() -> Any:
    """The shape of Llama 3.1 8B, in bf16."""
    config = hf.LlamaConfig(
        hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, vocab_size=128256, dtype=torch.bfloat16,
    )  # fmt: skip
    return hf.AutoModelForCausalLM.from_config(config)


def llama_8b_lora() -> Any:
    """It with adapters of rank 16, which alone are trained."""
    from peft import LoraConfig, get_peft_model

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    adapters = LoraConfig(r=16, lora_alpha=32, target_modules=targets, task_type="CAUSAL_LM")
    return get_peft_model(llama_8b(), adapters)


def t5_base() -> Any:
    """The shape of T5 base: an encoder and a decoder."""
    config = hf.T5Config(
        d_model=768, d_ff=3072, num_layers=12, num_heads=12, decoder_start_token_id=0
    )  # fmt: skip
    return hf.T5ForConditionalGeneration(config)


def mixtral_small() -> Any:
    """A mixture of four experts, two of which see each token."""
    config = hf.MixtralConfig(
        hidden_size=1024, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=16,
        num_key_value_heads=4, num_local_experts=4, vocab_size=32000,
    )  # fmt: skip
    return hf.MixtralForCausalLM(config)


def mamba2_130m() -> Any:
    """The shape of Mamba 2 130M, as PyTorch alone computes it, in chunks of 64 tokens."""
    config = hf.Mamba2Config(
        hidden_size=768, num_hidden_layers=24, num_heads=24, n_groups=1, vocab_size=50288,
        chunk_size=64, tie_word_embeddings=True,
    )  # fmt: skip
    return hf.Mamba2ForCausalLM(config)


MODELS = {f"gpt2{size}": lambda size=size: gpt2(size) for size in GPT2} | {
    "llama-1b": llama_1b,
    "llama-8b": llama_8b,
    "llama-8b-lora": llama_8b_lora,
    "t5-base": t5_base,
    "mixtral-small": mixtral_small,
    "mamba2-130m": mamba2_130m,
}


def main() -> None:
    """A few steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("batch", type=int)
    parser.add_argument("tokens", type=int, nargs="?", default=1024)
    args = parser.parse_args()
    torch.manual_seed(0)
    model = MODELS[args.model]().to("cuda").train()
    size = model.config.vocab_size
    is_mixed = model.dtype is torch.float32
    optimizer = torch.optim.AdamW((one for one in model.parameters() if one.requires_grad), lr=1e-4)
    for _ in range(STEPS):
        ids = torch.randint(0, size, (args.batch, args.tokens), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=is_mixed):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
