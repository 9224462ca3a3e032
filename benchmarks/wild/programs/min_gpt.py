"""A sorting transformer and a trainer with callbacks, as minGPT has them.

After the README of github.com/karpathy/minGPT: it learns to sort digits, then is asked to.
"""

from collections import defaultdict

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler


class SortDataset(Dataset):
    def __init__(self, length=6, num_digits=3):
        self.length, self.num_digits = length, num_digits

    def __len__(self):
        return 10_000

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        digits = torch.randint(self.num_digits, (self.length,), generator=generator)
        both = torch.cat((digits, digits.sort().values))
        x, y = both[:-1].clone(), both[1:].clone()
        y[: self.length - 1] = -1
        return x, y


class GPT(nn.Module):
    def __init__(self, vocab, length, width=192, heads=6, layers=6):
        super().__init__()
        self.length = length
        self.tok, self.pos = nn.Embedding(vocab, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, heads, 4 * width, 0.1, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab, bias=False)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, ids, targets=None):
        length = ids.shape[1]
        x = self.tok(ids) + self.pos(torch.arange(length, device=ids.device))
        logits = self.head(self.blocks(x, mask=self.mask[:length, :length], is_causal=True))
        if targets is None:
            return logits, None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)

    @torch.no_grad()
    def generate(self, ids, count, do_sample=False, top_k=None):
        for _ in range(count):
            logits = self(ids[:, -self.length :])[0][:, -1]
            if top_k is not None:
                values, _ = torch.topk(logits, top_k)
                logits[logits < values[:, [-1]]] = -float("inf")
            probs = F.softmax(logits, dim=-1)
            best = torch.multinomial(probs, 1) if do_sample else probs.topk(1).indices
            ids = torch.cat((ids, best), dim=1)
        return ids


class Trainer:
    def __init__(self, model, dataset, max_iters):
        self.model, self.dataset, self.max_iters = model.to("cuda"), dataset, max_iters
        self.callbacks = defaultdict(list)
        self.loss, self.iter_num = None, 0

    def run(self):
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=5e-4, weight_decay=0.1)
        sampler = RandomSampler(self.dataset, replacement=True, num_samples=10_000)
        loader = DataLoader(self.dataset, 64, sampler=sampler, pin_memory=True)
        self.model.train()
        for batch in loader:
            x, y = (part.to("cuda") for part in batch)
            _, self.loss = self.model(x, y)
            self.model.zero_grad(set_to_none=True)
            self.loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            for callback in self.callbacks["on_batch_end"]:
                callback(self)
            self.iter_num += 1
            if self.iter_num >= self.max_iters:
                break


def main():
    torch.manual_seed(3407)
    dataset = SortDataset()
    trainer = Trainer(GPT(3, 2 * dataset.length - 1), dataset, 20)

    def report(trainer):
        if trainer.iter_num % 10 == 0:
            print(f"iter {trainer.iter_num}: train loss {trainer.loss.item():.5f}")

    trainer.callbacks["on_batch_end"].append(report)
    trainer.run()
    model = trainer.model.eval()
    start = torch.tensor([[0, 0, 2, 1, 0, 1]], device="cuda")
    with torch.no_grad():
        print(model.generate(start, 6)[0, 6:].tolist())
        print(model.generate(start, 6, do_sample=True, top_k=2)[0, 6:].tolist())
    rights = []
    for x, y in DataLoader(dataset, 100):
        out = model.generate(x[:, :6].to("cuda"), 6)
        rights.append((out[:, 6:].cpu() == y[:, 5:]).all(1))
        if len(rights) == 5:
            break
    print(f"{torch.cat(rights).float().mean():.2%} sorted")


main()
