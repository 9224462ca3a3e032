"""A Hugging Face Llama of 1.2 billion parameters, trained by transformers.Trainer."""

import argparse
import tempfile

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


class RandomTokens(Dataset[dict[str, Tensor]]):
    """Made-up text: sequences of random tokens."""

    def __init__(self, num_sequences: int, seq_len: int, vocab_size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (num_sequences, seq_len)
        self.tokens = torch.randint(0, vocab_size, shape, generator=generator)

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-5)
    args = parser.parse_args()

    # The shape of Llama 3.2 1B
    config = LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=16,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_theta=500000.0,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    dataset = RandomTokens(args.steps * args.batch_size, args.seq_len, config.vocab_size)
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = TrainingArguments(
            output_dir=output_dir,
            max_steps=args.steps,
            per_device_train_batch_size=args.batch_size,
            learning_rate=args.lr,
            bf16=True,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
        )
        Trainer(model=model, args=arguments, train_dataset=dataset).train()


if __name__ == "__main__":
    main()
