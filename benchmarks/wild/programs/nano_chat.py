"""A small chat model trained as nanochat does: projections that start at zero, Muon beside AdamW.

After the README of github.com/karpathy/nanochat and the description of Muon by Keller Jordan.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.down.weight)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        h = F.rms_norm(x, (width,))
        q, k, v = (f(h).view(batch, length, self.heads, -1) for f in (self.q, self.k, self.v))
        q, k = (F.rms_norm(rotate(t, cos, sin), (t.shape[-1],)) for t in (q, k))
        y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(F.rms_norm(x, (width,)))).square())


def rotate(x, cos, sin):
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos + second * sin, second * cos - first * sin), dim=-1)


class GPT(nn.Module):
    def __init__(self, vocab=8192, length=256, width=512, heads=4, layers=6):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocab, bias=False)
        nn.init.zeros_(self.head.weight)
        half = width // heads // 2
        angles = torch.outer(torch.arange(length), 10_000 ** -(torch.arange(half) / half))
        self.register_buffer("cos", angles.cos()[None, :, None], persistent=False)
        self.register_buffer("sin", angles.sin()[None, :, None], persistent=False)

    def forward(self, ids, targets):
        x = F.rms_norm(self.embed(ids), (self.embed.embedding_dim,))
        cos, sin = self.cos[:, : ids.shape[1]], self.sin[:, : ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        logits = 15 * torch.tanh(self.head(F.rms_norm(x, (x.shape[-1],))).float() / 15)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


class Muon(torch.optim.Optimizer):
    def __init__(self, params, lr=0.02, momentum=0.95):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if "buffer" not in state:
                    state["buffer"] = torch.zeros_like(p)
                buffer = state["buffer"].lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(buffer, group["momentum"]))
                p.add_(update, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def orthogonal(g, steps=5):
    x = g.bfloat16()
    if g.shape[0] > g.shape[1]:
        x = x.T
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * a @ a) @ x
    return (x.T if g.shape[0] > g.shape[1] else x).to(g.dtype)


def bits_per_byte(model, batches):
    total, count = torch.zeros((), device="cuda"), 0
    with torch.no_grad():
        for ids in batches:
            with torch.autocast("cuda", torch.bfloat16):
                total += model(ids[:, :-1], ids[:, 1:])
            count += 1
    return total.item() / count


def main():
    torch.manual_seed(42)
    torch.set_float32_matmul_precision("high")
    model = GPT().cuda()
    matrices = list(model.blocks.parameters())
    rest = [*model.embed.parameters(), *model.head.parameters()]
    optimizers = [torch.optim.AdamW(rest, lr=0.1, fused=True), Muon(matrices)]
    data = [torch.randint(0, 8192, (8, 257)).cuda() for _ in range(4)]
    smooth = 0.0
    for step in range(6):
        if step % 3 == 0:
            print(f"step {step} validation {bits_per_byte(model, data):.4f}")
        for ids in data[:2]:
            with torch.autocast("cuda", torch.bfloat16):
                loss = model(ids[:, :-1], ids[:, 1:])
            (loss / 2).backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad(set_to_none=True)
        smooth = 0.9 * smooth + 0.1 * loss.item()
        print(f"step {step} loss {smooth / (1 - 0.9 ** (step + 1)):.4f}")


main()
