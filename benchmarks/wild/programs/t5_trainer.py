"""T5 trained to translate by Seq2SeqTrainer, whose evaluation generates with beams."""

import numpy as np
from datasets import Dataset
from tiny import sentences, tokenizer
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
    set_seed,
)

set_seed(0)
words = tokenizer()
sources, targets = sentences(40), sentences(40, 5, 15, seed=1)
rows = Dataset.from_dict(dict(words(sources)) | {"labels": words(targets)["input_ids"]})
parts = rows.train_test_split(0.2, seed=0)
config = T5Config(
    vocab_size=len(words), d_model=256, d_kv=64, d_ff=512, num_layers=2, num_heads=4,
    pad_token_id=0, eos_token_id=2, decoder_start_token_id=0,
)  # fmt: skip
model = T5ForConditionalGeneration(config)


def compute_metrics(evaluated):
    predicted, labels = evaluated.predictions, evaluated.label_ids
    predicted = np.where(predicted < 0, 0, predicted)
    texts = words.batch_decode(predicted, skip_special_tokens=True)
    labels = words.batch_decode(np.where(labels < 0, 0, labels), skip_special_tokens=True)
    same = [set(a.split()) & set(b.split()) for a, b in zip(texts, labels, strict=True)]
    return {"overlap": float(np.mean([len(s) for s in same])), "length": len(texts[0].split())}


trainer = Seq2SeqTrainer(
    model=model,
    args=Seq2SeqTrainingArguments(
        "out",
        per_device_train_batch_size=8,
        per_device_eval_batch_size=8,
        max_steps=4,
        predict_with_generate=True,
        generation_max_length=16,
        generation_num_beams=2,
        logging_steps=2,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        optim="adafactor",
    ),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    data_collator=DataCollatorForSeq2Seq(words, model=model),
    compute_metrics=compute_metrics,
)
trainer.train()
print(trainer.evaluate())
