"""A selective state-space model in plain PyTorch: an associative scan, trained and then stepped.

After the paper (arXiv:2312.00752) and the README of github.com/state-spaces/mamba.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


def scan(a, b):
    """h[t] = a[t] h[t-1] + b[t] along dim 1, in log2(length) rounds."""
    shift = 1
    while shift < a.shape[1]:
        b = torch.cat((b[:, :shift], b[:, shift:] + a[:, shift:] * b[:, :-shift]), dim=1)
        a = torch.cat((a[:, :shift], a[:, shift:] * a[:, :-shift]), dim=1)
        shift *= 2
    return b


class Mixer(nn.Module):
    def __init__(self, width, state=8, kernel=4):
        super().__init__()
        inner, self.rank, self.state = 2 * width, math.ceil(width / 16), state
        self.inputs = nn.Linear(width, 2 * inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, kernel, groups=inner, padding=kernel - 1)
        self.select = nn.Linear(inner, self.rank + 2 * state, bias=False)
        self.dt = nn.Linear(self.rank, inner)
        rates = torch.arange(1, state + 1, dtype=torch.float32).repeat(inner, 1)
        self.a_log, self.skip = nn.Parameter(rates.log()), nn.Parameter(torch.ones(inner))
        self.out = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        length = x.shape[1]
        u, gate = self.inputs(x).chunk(2, dim=-1)
        u = F.silu(self.conv(u.transpose(1, 2))[..., :length].transpose(1, 2))
        dt, b, c = self.select(u).split((self.rank, self.state, self.state), dim=-1)
        dt = F.softplus(self.dt(dt))
        decay = torch.exp(dt[..., None] * -torch.exp(self.a_log.float()))
        states = scan(decay, (dt * u)[..., None] * b[:, :, None])
        y = (states * c[:, :, None]).sum(-1) + u * self.skip
        return self.out(y * F.silu(gate))


class Mamba(nn.Module):
    def __init__(self, vocab=512, width=192, layers=3):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.mixers = nn.ModuleList(Mixer(width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(layers + 1))
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for norm, mixer in zip(self.norms, self.mixers, strict=False):
            x = x + mixer(norm(x))
        return self.head(self.norms[-1](x))


def main():
    torch.manual_seed(0)
    model = Mamba().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95))
    for step in range(4):
        ids = torch.randint(0, 512, (4, 129)).cuda()
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if not torch.isfinite(norm):
            raise RuntimeError(f"gradients of norm {norm.item()}")
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        print(f"step {step} loss {loss.item():.4f} perplexity {math.exp(loss.item()):.1f}")
    ids = torch.zeros(1, 1, dtype=torch.long, device="cuda")
    with torch.inference_mode():
        while ids.shape[1] < 12:
            ids = torch.cat((ids, model(ids)[:, -1].argmax(-1, keepdim=True)), dim=1)
    print(ids.shape)


main()
