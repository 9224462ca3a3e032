"""BERT fine-tuned for classification by transformers' Trainer, accuracy and F1 at each evaluation.

In the way of the course and example scripts of github.com/huggingface/transformers.
"""

import random

import numpy as np
from datasets import Dataset
from tiny import sentences, tokenizer
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
words = tokenizer()
texts = sentences(64)
rows = Dataset.from_dict({"text": texts, "label": [random.randint(0, 1) for _ in texts]})
rows = rows.map(lambda row: words(row["text"], truncation=True), batched=True)
parts = rows.train_test_split(0.25, seed=0)
config = BertConfig(
    vocab_size=len(words), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
    intermediate_size=1024, num_labels=2,
)  # fmt: skip


def compute_metrics(evaluated):
    predicted = np.argmax(evaluated.predictions, axis=-1)
    true = ((predicted == 1) & (evaluated.label_ids == 1)).sum()
    precision = true / max((predicted == 1).sum(), 1)
    recall = true / max((evaluated.label_ids == 1).sum(), 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    return {"accuracy": (predicted == evaluated.label_ids).mean(), "f1": f1}


trainer = Trainer(
    model=BertForSequenceClassification(config),
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        num_train_epochs=1,
        eval_strategy="steps",
        eval_steps=3,
        logging_steps=1,
        save_strategy="steps",
        save_steps=3,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        fp16=True,
        report_to=[],
        dataloader_num_workers=0,
    ),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    data_collator=DataCollatorWithPadding(words),
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
