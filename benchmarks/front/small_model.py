"""Makes a small Llama with random weights, and a tokenizer of one token for each character.

    PYTHON_OF_THE_ENGINE -m benchmarks.front.small_model FOLDER

It needs transformers and torch. What it answers has no meaning; what its cache takes and when, has.
"""

from __future__ import annotations

import argparse
from pathlib import Path

CHARACTERS = [chr(code) for code in range(32, 127)]
MAX_TOKENS = 4096


def make_model(folder: Path, num_layers: int, hidden_size: int) -> None:
    """Writes the configuration, weights and tokenizer.

    Args:
        folder: where they go.
        num_layers: of the model.
        hidden_size: of the model.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<s>", "</s>", "<unk>", *CHARACTERS]
    tokenizer = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="<unk>",
    )  # fmt: skip
    fast.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    fast.save_pretrained(folder)
    torch.manual_seed(0)
    heads = hidden_size // 64
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=hidden_size, intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers, num_attention_heads=heads, num_key_value_heads=heads,
        max_position_embeddings=MAX_TOKENS, bos_token_id=0, eos_token_id=1, torch_dtype="bfloat16",
    )  # fmt: skip
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def main() -> None:
    """Reads the options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--hidden", type=int, default=128)
    options = parser.parse_args()
    make_model(options.folder, options.layers, options.hidden)


if __name__ == "__main__":
    main()
