"""Fast generation as gpt-fast does it: the compiler's settings, a static cache, int8 weights.

After the blog and README of github.com/pytorch-labs/gpt-fast; --compile is its option of that name.
"""

import argparse
import time

import torch
import torch._dynamo.config
import torch._inductor.config
from torch import nn
from torch.nn import functional as F

torch._inductor.config.coordinate_descent_tuning = True
torch._inductor.config.triton.unique_kernel_names = True
torch._inductor.config.fx_graph_cache = True
torch._dynamo.config.suppress_errors = False


class Int8Linear(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 127, (rows, columns), dtype=torch.int8))
        self.register_buffer("scales", torch.ones(rows, dtype=torch.bfloat16))

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype)) * self.scales


class Cache(nn.Module):
    def __init__(self, batch, length, heads, width):
        super().__init__()
        shape = (batch, heads, length, width)
        self.register_buffer("k", torch.zeros(shape, dtype=torch.bfloat16))
        self.register_buffer("v", torch.zeros(shape, dtype=torch.bfloat16))

    def update(self, positions, k, v):
        self.k[:, :, positions] = k
        self.v[:, :, positions] = v
        return self.k, self.v


class Block(nn.Module):
    def __init__(self, width, heads, groups):
        super().__init__()
        self.heads, self.groups, self.head_width = heads, groups, width // heads
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.wqkv = Int8Linear(width + 2 * groups * self.head_width, width)
        self.wo = Int8Linear(width, width)
        self.w1, self.w3 = Int8Linear(2 * width, width), Int8Linear(2 * width, width)
        self.w2 = Int8Linear(width, 2 * width)
        self.cache = None

    def forward(self, x, positions, mask):
        batch, length, width = x.shape
        sizes = (width, self.groups * self.head_width, self.groups * self.head_width)
        parts = self.wqkv(self.norm_1(x)).split(sizes, dim=-1)
        q, k, v = (p.view(batch, length, -1, self.head_width).transpose(1, 2) for p in parts)
        k, v = self.cache.update(positions, k, v)
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.wo(y.transpose(1, 2).reshape(batch, length, width))
        h = self.norm_2(x)
        return x + self.w2(F.silu(self.w1(h)) * self.w3(h))


class Transformer(nn.Module):
    def __init__(self, vocab=32_000, width=1024, heads=16, groups=8, layers=8):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Block(width, heads, groups) for _ in range(layers))
        self.norm, self.output = nn.RMSNorm(width), Int8Linear(vocab, width)

    def setup_caches(self, batch, length):
        for layer in self.layers:
            layer.cache = Cache(batch, length, layer.groups, layer.head_width)
        mask = torch.tril(torch.ones(length, length, dtype=torch.bool))
        self.register_buffer("mask", mask)

    def forward(self, ids, positions):
        x, mask = self.embed(ids), self.mask[None, None, positions]
        for layer in self.layers:
            x = layer(x, positions, mask)
        return self.output(self.norm(x))


def sample(logits, temperature=0.8, top_k=200):
    logits = logits[0, -1] / max(temperature, 1e-5)
    values, _ = torch.topk(logits, top_k)
    logits = torch.where(logits < values[-1], -float("inf"), logits)
    probs = torch.softmax(logits, dim=-1)
    noise = torch.empty_like(probs).exponential_(1)
    return torch.argmax(probs / noise, dim=-1, keepdim=True).to(torch.int)


@torch.no_grad()
def decode_one_token(model, ids, positions):
    return sample(model(ids, positions))


@torch.no_grad()
def generate(model, prompt, count, decode, callback):
    length = prompt.shape[0]
    sequence = torch.empty(length + count, dtype=prompt.dtype, device="cuda")
    sequence[:length] = prompt
    positions = torch.arange(length, device="cuda")
    token = decode_one_token(model, prompt.view(1, -1), positions)
    sequence[length] = token
    position = torch.tensor([length], device="cuda", dtype=torch.int)
    for i in range(1, count):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            token = decode(model, token.view(1, -1), position).clone()
        position += 1
        sequence[length + i] = token
        callback(token)
    return sequence


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--num-samples", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1234)
    with torch.device("meta"):
        model = Transformer()
    model = model.to_empty(device="cuda").to(torch.bfloat16).eval()
    with torch.device("cuda"):
        model.setup_caches(1, 128)
    decode = decode_one_token
    if args.compile:
        decode = torch.compile(decode_one_token, mode="reduce-overhead", fullgraph=True)
    prompt = torch.randint(0, 32_000, (16,), device="cuda", dtype=torch.int)
    for index in range(args.num_samples):
        tokens = []
        start = time.perf_counter()
        out = generate(model, prompt, 24, decode, lambda t, tokens=tokens: tokens.append(t.item()))
        torch.cuda.synchronize()
        print(f"sample {index}: {len(out)} tokens in {time.perf_counter() - start:.2f} s")
    print(f"memory used: {torch.cuda.max_memory_reserved() / 1e9:.2f} GB")


main()
