"""Whisper of transformers, fine-tuned; the evaluation generates and counts wrong words."""

import numpy as np
import torch
from tiny import sentences, tokenizer
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
    set_seed,
)

set_seed(0)
words = tokenizer()
texts = sentences(24, 4, 10)


class Speech(torch.utils.data.Dataset):
    def __len__(self):
        return len(texts)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        features = torch.randn(80, 3000, generator=generator)
        return {"input_features": features, "labels": words(texts[index])["input_ids"]}


def collate(rows):
    length = max(len(row["labels"]) for row in rows)
    labels = [row["labels"] + [-100] * (length - len(row["labels"])) for row in rows]
    features = torch.stack([row["input_features"] for row in rows])
    return {"input_features": features, "labels": torch.tensor(labels)}


def compute_metrics(evaluated):
    labels = np.where(evaluated.label_ids < 0, 0, evaluated.label_ids)
    predicted = np.where(evaluated.predictions < 0, 0, evaluated.predictions)
    pairs = zip(words.batch_decode(predicted), words.batch_decode(labels), strict=True)
    return {"wrong": float(np.mean([a.split() != b.split() for a, b in pairs]))}


config = WhisperConfig(
    vocab_size=len(words), d_model=128, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=256,
    decoder_ffn_dim=256, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1, begin_suppress_tokens=None, suppress_tokens=None,
)  # fmt: skip
trainer = Seq2SeqTrainer(
    model=WhisperForConditionalGeneration(config),
    args=Seq2SeqTrainingArguments(
        "out",
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        max_steps=4,
        fp16=True,
        predict_with_generate=True,
        generation_max_length=12,
        eval_strategy="steps",
        eval_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=Speech(),
    eval_dataset=Speech(),
    data_collator=collate,
    compute_metrics=compute_metrics,
)
trainer.train()
