"""Supervised fine-tuning with transformers.Trainer: padded texts, accumulation, checkpointing."""

import tempfile

import torch
from figures import print_figures
from made_up import small_llama, tokens_file_like
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, Trainer, TrainingArguments

STEPS = 3


def collate(texts: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pads to the longest; the prompt, the first 16 tokens, gives no loss."""
    rows = [torch.tensor(text["input_ids"]) for text in texts]
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    labels[:, :16] = -100
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {
        "input_ids": pad_sequence(rows, batch_first=True),
        "attention_mask": mask,
        "labels": labels,
    }


def main() -> None:
    """Three steps of two micro-batches."""
    model = LlamaForCausalLM(small_llama())
    with tempfile.TemporaryDirectory() as output_dir:
        arguments = TrainingArguments(
            output_dir=output_dir,
            max_steps=STEPS,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=2,
            gradient_checkpointing=True,
            bf16=True,
            logging_steps=1,
            disable_tqdm=True,
            save_strategy="no",
            report_to="none",
        )
        texts = tokens_file_like(8 * STEPS, 512)
        trainer = Trainer(model=model, args=arguments, train_dataset=texts, data_collator=collate)
        trainer.train()
    print_figures(model, trainer.optimizer.optimizer, num_steps=STEPS)


if __name__ == "__main__":
    main()
