"""Accelerate's example of a training loop: accumulation, mixed precision, gathered metrics."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from tiny import sentences, tokenizer
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

set_seed(42)
words = tokenizer()
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=2)
rows = [(text, index % 2) for index, text in enumerate(sentences(40))]


def collate(batch):
    texts, labels = zip(*batch, strict=True)
    encoded = words(list(texts), padding="longest", pad_to_multiple_of=8, return_tensors="pt")
    return dict(encoded) | {"labels": torch.tensor(labels)}


train = DataLoader(rows[:32], batch_size=4, shuffle=True, collate_fn=collate)
test = DataLoader(rows[32:], batch_size=4, collate_fn=collate)
config = BertConfig(
    vocab_size=len(words), hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
    intermediate_size=512,
)  # fmt: skip
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
scheduler = get_linear_schedule_with_warmup(optimizer, 2, 8)
model, optimizer, train, test, scheduler = accelerator.prepare(
    model, optimizer, train, test, scheduler
)
best = -1.0
for epoch in range(2):
    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    right, count = 0, 0
    for batch in test:
        with torch.no_grad():
            predicted = model(**batch).logits.argmax(dim=-1)
        predicted, labels = accelerator.gather_for_metrics((predicted, batch["labels"]))
        right, count = right + (predicted == labels).sum().item(), count + len(labels)
    if right / count > best:
        best = right / count
        best_epoch = epoch
    accelerator.print(f"epoch {epoch} loss {loss.item():.4f} accuracy {right / count:.3f}")
print(f"best epoch {best_epoch}")
