"""A small Llama that transformers' Trainer trains, as Accelerate's configuration says."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LENGTH, VOCABULARY = 2048, 8192


class Rows(Dataset):
    """Texts of one word."""

    def __len__(self):
        return 16

    def __getitem__(self, number):
        tokens = torch.full((LENGTH,), number)
        return {"input_ids": tokens, "labels": tokens}


config = LlamaConfig(
    hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=8,
    num_key_value_heads=8, vocab_size=VOCABULARY,
)  # fmt: skip
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, max_steps=3, bf16=True, report_to=[], save_strategy="no"
)
Trainer(LlamaForCausalLM(config), arguments, train_dataset=Rows()).train()
