"""TRL's SFTTrainer on conversations, with an evaluation."""

from datasets import Dataset
from llama import llama
from tiny import sentences, tokenizer
from transformers import set_seed
from trl import SFTConfig, SFTTrainer

set_seed(0)
words = tokenizer()
rows = [
    [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]
    for ask, answer in zip(sentences(32), sentences(32, seed=1), strict=True)
]
data = Dataset.from_dict({"messages": rows}).train_test_split(0.25, seed=0)
trainer = SFTTrainer(
    model=llama(words),
    args=SFTConfig(
        "out",
        per_device_train_batch_size=4,
        max_steps=4,
        max_length=128,
        logging_steps=1,
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="no",
        report_to=[],
        bf16=True,
    ),
    train_dataset=data["train"],
    eval_dataset=data["test"],
    processing_class=words,
)
trainer.train()
print(trainer.evaluate())
