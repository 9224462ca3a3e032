"""What the programs share: a Llama of random weights, random tokens."""

import torch
from torch import Tensor
from transformers import LlamaConfig

VOCABULARY = 32000


def small_llama(**changes: object) -> LlamaConfig:
    """The configuration of a Llama of about 200 million parameters."""
    shape = {
        "vocab_size": VOCABULARY,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "max_position_embeddings": 2048,
        "use_cache": False,
    }
    return LlamaConfig(**(shape | changes))


def served_llama() -> LlamaConfig:
    """The configuration of a Llama of 1.2 billion parameters, as an engine serves it."""
    return small_llama(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        use_cache=True,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
    )


class Tokens(torch.utils.data.Dataset):
    """Sequences of random tokens, each its own label."""

    def __init__(self, num_sequences: int, seq_len: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (num_sequences, seq_len)
        self.tokens = torch.randint(VOCABULARY, shape, generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def tokens_file_like(num_texts: int, seq_len: int) -> list[dict[str, list[int]]]:
    """Random texts of several lengths, as a tokenizer would have left them."""
    tokens = Tokens(num_texts, seq_len).tokens.tolist()
    return [{"input_ids": row[: seq_len - 7 * index]} for index, row in enumerate(tokens)]
