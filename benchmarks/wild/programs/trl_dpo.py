"""TRL's DPOTrainer on preferences, with a reference model."""

from datasets import Dataset
from llama import llama
from tiny import sentences, tokenizer
from transformers import set_seed
from trl import DPOConfig, DPOTrainer

set_seed(0)
words = tokenizer()
data = Dataset.from_dict(
    {
        "prompt": sentences(16, 4, 8), "chosen": sentences(16, 8, 16, seed=1),
        "rejected": sentences(16, 8, 16, seed=2),
    }
)  # fmt: skip
trainer = DPOTrainer(
    model=llama(words),
    ref_model=llama(words),
    args=DPOConfig(
        "out",
        per_device_train_batch_size=4,
        max_steps=3,
        beta=0.1,
        max_length=64,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=True,
    ),
    train_dataset=data,
    processing_class=words,
)
trainer.train()
print(trainer.state.log_history[-1])
