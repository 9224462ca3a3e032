"""A GPT trained as nanoGPT does: losses are estimated before the first step, fp16 gradients scaled.

After the README of github.com/karpathy/nanoGPT; --compile is its option of that name.
"""

import argparse
import math
from contextlib import nullcontext

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x):
        batch, length, width = x.shape
        parts = self.qkv(self.ln_1(x)).chunk(3, dim=-1)
        q, k, v = (p.view(batch, length, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self, vocab, length, layers, heads, width):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocab, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, ids, targets=None):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits[:, [-1]], None
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


@torch.no_grad()
def estimate_loss(model, get_batch, eval_iters):
    losses = {}
    model.eval()
    for split in ("train", "val"):
        values = torch.zeros(eval_iters)
        for k in range(eval_iters):
            _, loss = model(*get_batch(split))
            values[k] = loss.item()
        losses[split] = values.mean()
    model.train()
    return losses


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batch-size", type=int, default=8)
    args = parser.parse_args()
    torch.manual_seed(1337)
    device, length, max_iters, eval_interval = "cuda", 256, 6, 3
    data = {name: torch.randint(0, 65, (20_000,)) for name in ("train", "val")}

    def get_batch(split):
        starts = torch.randint(len(data[split]) - length, (args.batch_size,))
        x = torch.stack([data[split][i : i + length] for i in starts])
        y = torch.stack([data[split][i + 1 : i + 1 + length] for i in starts])
        x, y = x.pin_memory(), y.pin_memory()
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    model = GPT(65, length, 6, 6, 384).to(device)
    ctx = torch.amp.autocast("cuda", dtype=getattr(torch, args.dtype)) if device else nullcontext()
    scaler = torch.amp.GradScaler("cuda", enabled=args.dtype == "float16")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99), fused=True)
    if args.compile:
        model = torch.compile(model)
    best_val_loss = 1e9
    x, y = get_batch("train")
    for iteration in range(max_iters + 1):
        lr = 1e-3 * 0.5 * (1 + math.cos(math.pi * iteration / max_iters))
        for group in optimizer.param_groups:
            group["lr"] = lr
        if iteration % eval_interval == 0:
            losses = estimate_loss(model, get_batch, 4)
            print(f"step {iteration}: train {losses['train']:.4f}, val {losses['val']:.4f}")
            if losses["val"] < best_val_loss:
                best_val_loss = losses["val"]
        for _ in range(2):
            with ctx:
                _, loss = model(x, y)
                loss = loss / 2
            x, y = get_batch("train")
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        print(f"iter {iteration}: loss {loss.item() * 2:.4f}, scale {scaler.get_scale():.0f}")


main()
