"""Answers requests with a small transformer whose KV cache grows: chats, streams, audio chunks."""

import asyncio
import threading

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS = 512, 8, 4
FRAMES_PER_S = 50


class Block(nn.Module):
    """Attention over what came before, and an MLP."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, cache):
        """`cache` holds the keys and values of this layer, which grow."""
        heads = (one.unflatten(-1, (HEADS, -1)).transpose(1, 2) for one in self.qkv(x).chunk(3, -1))
        query, key, value = heads
        if cache:
            key, value = torch.cat([cache[0], key], 2), torch.cat([cache[1], value], 2)
        cache[:] = [key, value]
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """Its layers; `caches` has a list for each."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))

    def forward(self, x, caches):
        """The states after the last layer."""
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cache)
        return x


model = Model().half().cuda().eval()
kept = []
lock = threading.Lock()


@torch.inference_mode()
def chat(request):
    """Reads a prompt of `input_length`, and makes `output_length` tokens."""
    caches = [[] for _ in model.blocks]
    x = torch.zeros(1, request["input_length"], WIDTH, device="cuda", dtype=torch.half)
    for _ in range(request["output_length"]):
        x = model(x, caches)[:, -1:]
    return x


def chat_and_keep(request):
    """The same, with a leak of 64 KiB for each request."""
    kept.append(torch.zeros(64 << 10, dtype=torch.uint8, device="cuda"))
    return chat(request)


def chat_one_by_one(request):
    """The same behind a lock."""
    with lock:
        return chat(request)


def chat_or_fail(request):
    """The same, where a prompt of 300 tokens is an error."""
    if request["input_length"] == 300:
        raise ValueError("300 tokens are not allowed")
    return chat(request)


def stream(request):
    """The same, token by token."""
    for _ in range(3):
        yield chat(request)


async def chat_later(request):
    """The same as one of asyncio's."""
    states = chat(request)
    await asyncio.sleep(0)
    return states


async def stream_later(request):
    """The same, token by token."""
    for _ in range(2):
        yield chat(request)


@torch.inference_mode()
def listen(request):
    """Audio of `audio_s` seconds in chunks of two, whose frames join the cache."""
    caches = [[] for _ in model.blocks]
    num_frames = int(request["audio_s"] * FRAMES_PER_S)
    for begin in range(0, num_frames, 2 * FRAMES_PER_S):
        count = min(2 * FRAMES_PER_S, num_frames - begin)
        model(torch.zeros(1, count, WIDTH, device="cuda", dtype=torch.half), caches)


not_callable = 3
