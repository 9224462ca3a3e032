"""GPT-2 from its config, trained as a language model by transformers' Trainer; then it writes."""

import math

from datasets import Dataset
from tiny import sentences, tokenizer
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    set_seed,
)

set_seed(0)
words = tokenizer()
rows = Dataset.from_dict(dict(words(sentences(64, 60, 120), truncation=True)))
parts = rows.train_test_split(0.25, seed=0)
config = GPT2Config(
    vocab_size=len(words), n_positions=256, n_embd=256, n_layer=4, n_head=4,
    bos_token_id=1, eos_token_id=2,
)  # fmt: skip
model = GPT2LMHeadModel(config)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        max_steps=3,
        gradient_checkpointing=True,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    ),
    train_dataset=parts["train"],
    eval_dataset=parts["test"],
    data_collator=DataCollatorForLanguageModeling(words, mlm=False),
)
trainer.train()
print(f"perplexity {math.exp(trainer.evaluate()['eval_loss']):.2f}")
prompt = words("word1 word2", return_tensors="pt").to(model.device)
prompt.pop("token_type_ids", None)
out = model.generate(**prompt, max_new_tokens=12, do_sample=True, top_k=50, pad_token_id=0)
print(words.decode(out[0]))
