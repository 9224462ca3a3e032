"""ViT fine-tuned for images by transformers' Trainer in bfloat16."""

import numpy as np
import torch
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

set_seed(0)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 48

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return {"pixel_values": torch.rand(3, 112, 112, generator=generator), "labels": index % 4}


config = ViTConfig(
    hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
    image_size=112, patch_size=16, num_labels=4,
)  # fmt: skip
trainer = Trainer(
    model=ViTForImageClassification(config),
    args=TrainingArguments(
        "out",
        per_device_train_batch_size=16,
        num_train_epochs=2,
        bf16=True,
        logging_steps=1,
        eval_strategy="epoch",
        save_strategy="no",
        report_to=[],
        optim="adamw_torch_fused",
    ),
    train_dataset=Images(),
    eval_dataset=Images(),
    compute_metrics=lambda p: {"accuracy": float((np.argmax(p[0], 1) == p[1]).mean())},
)
trainer.train()
print(trainer.evaluate())
