"""TRL's GRPOTrainer: the model writes, a function rewards many different words."""

from datasets import Dataset
from llama import llama
from tiny import sentences, tokenizer
from transformers import set_seed
from trl import GRPOConfig, GRPOTrainer

set_seed(0)
words = tokenizer()


def variety(completions, **_unused):
    return [float(len(set(completion.split()))) for completion in completions]


trainer = GRPOTrainer(
    model=llama(words),
    reward_funcs=variety,
    args=GRPOConfig(
        "out",
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=12,
        max_steps=2,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        bf16=True,
    ),
    train_dataset=Dataset.from_dict({"prompt": sentences(8, 4, 8)}),
    processing_class=words,
)
trainer.train()
print(trainer.state.log_history[0])
