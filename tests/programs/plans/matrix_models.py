"""Small models of as many kinds as there are ways for a plan to be wrong, in float64 on the CPU.

made = KINDS["causal"](random.Random(1))
loss = made.loss(made.model, made.batch())
"""

import random

import torch
from made import Made
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Heads that see each other, written out or fused, causal or not."""

    def __init__(self, width, *, is_causal, is_fused=True):
        super().__init__()
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.is_causal, self.is_fused = is_causal, is_fused

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, 2, width // 2).permute(2, 0, 3, 1, 4)
        if self.is_fused:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=self.is_causal)
        else:
            scores = q @ k.mT / (width // 2) ** 0.5
            if self.is_causal:
                later = torch.ones(length, length, dtype=torch.bool).triu(1)
                scores = scores.masked_fill(later, float("-inf"))
            y = scores.softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))


class Gated(nn.Module):
    """A gated feed-forward part with its norm."""

    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.gate = nn.Linear(width, 2 * width, bias=False), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x):
        y = self.norm(x)
        return self.down(F.silu(self.gate(y)) * self.up(y))


def plain_mlp(width):
    return nn.Sequential(nn.Linear(width, 3 * width), nn.GELU(), nn.Linear(3 * width, width))


class Block(nn.Module):
    """Something that mixes positions, and something that does not."""

    def __init__(self, width, mixer, mlp, drop=0.0):
        super().__init__()
        self.norm, self.mixer, self.mlp = nn.LayerNorm(width), mixer, mlp
        self.drop = nn.Dropout(drop)

    def forward(self, x):
        x = x + self.drop(self.mixer(self.norm(x)))
        return x + self.drop(self.mlp(x))


class InPlaceBlock(Block):
    """Residuals that are added in place, as to a tensor of its own."""

    def forward(self, x):
        y = self.mixer(self.norm(x))
        y += x
        z = self.mlp(y)
        z += y
        return z


class Convolution(nn.Module):
    """A causal convolution by channel."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv1d(width, width, 3, padding=2, groups=width)

    def forward(self, x):
        return F.silu(self.conv(x.mT)[..., :-2].mT)


class Scan(nn.Module):
    """A selective state space, scanned one position after another."""

    def __init__(self, width):
        super().__init__()
        self.steps, self.inputs = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        decay, given = torch.sigmoid(self.steps(x)), self.inputs(x)
        state, states = torch.zeros_like(given[:, 0]), []
        for place in range(x.shape[1]):
            state = decay[:, place] * state + (1 - decay[:, place]) * given[:, place]
            states.append(state)
        return torch.stack(states, 1)


class Statistics(nn.Module):
    """Subtracts what all positions have in common, and sums up what came before."""

    def forward(self, x):
        return 0.3 * (x - x.mean(1, keepdim=True)) + 0.1 * x.cumsum(1)


class Positions(nn.Module):
    """Adds a table of positions."""

    def __init__(self, width):
        super().__init__()
        self.register_buffer("table", torch.zeros(64, width))

    def forward(self, x):
        return x + self.table[: x.shape[1]]


class Mixture(nn.Module):
    """Two of several experts for each position; the router's loss is left on the module."""

    def __init__(self, width):
        super().__init__()
        self.router = nn.Linear(width, 4)
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.aux_loss = None

    def forward(self, x):
        shares, chosen = self.router(x).softmax(-1).topk(2, -1)
        self.aux_loss = self.router(x).logsumexp(-1).square().mean()
        result = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            share = (shares * (chosen == number)).sum(-1, keepdim=True)
            result = result + share * expert(x)
        return result


class Counting(nn.Module):
    """Does something else at every second call, and now and then nothing at all."""

    def __init__(self, width):
        super().__init__()
        self.layer, self.calls, self.seen = nn.Linear(width, width), 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        y = torch.tanh(self.layer(x)) if len(self.seen) % 2 else self.layer(x)
        return y if random.random() < 0.7 else 0.5 * y


class Given(nn.Module):
    """Reads what the model has put on it before the call."""

    def __init__(self, width):
        super().__init__()
        self.layer, self.context = nn.Linear(width, width), None

    def forward(self, x):
        return self.layer(x) * self.context


class Language(nn.Module):
    """Embedding, blocks and a head."""

    def __init__(self, words, width, blocks, is_tied, calls=1):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(blocks)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        if is_tied:
            self.head.weight = self.words.weight
        self.calls = calls

    def forward(self, tokens):
        x = self.words(tokens)
        for number in range(self.calls):
            for block in self.blocks:
                if isinstance(block.mixer, Given):
                    block.mixer.context = x.detach().mean() + number
                x = block(x)
        return self.head(self.norm(x))


class Images(nn.Module):
    """Convolutions with batch statistics, in a chain."""

    def __init__(self, channels, depth):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        parts = [
            nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1, bias=False),
                nn.BatchNorm2d(channels),
                nn.ReLU(inplace=True),
            )
            for _ in range(depth)
        ]
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(channels, 5)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


LOSSES = {
    "mean": lambda logits, words: F.cross_entropy(logits.flatten(0, -2), words.flatten()),
    "sum": lambda logits, words: F.cross_entropy(
        logits.flatten(0, -2), words.flatten(), reduction="sum", ignore_index=3
    ),
    "smoothed": lambda logits, words: F.cross_entropy(
        logits.flatten(0, -2), words.flatten(), label_smoothing=0.1
    ),
    "capped": lambda logits, words: F.cross_entropy(
        3 * torch.tanh(logits / 3).flatten(0, -2), words.flatten()
    ),
    "z loss": lambda logits, words: (
        F.cross_entropy(logits.flatten(0, -2), words.flatten())
        + 1e-2 * logits.logsumexp(-1).square().mean()
    ),
}


def _language(draw, mixer, *, mlp=None, kind=Block, is_tied=False, calls=1, drop=0.0, loss="mean"):
    """A language model of some sizes."""
    words, width = draw.choice((17, 24)), draw.choice((8, 12))
    rows, length, depth = draw.randint(1, 3), draw.randint(4, 11), draw.randint(2, 3)
    parts = mlp or draw.choice((plain_mlp, Gated))
    blocks = [kind(width, mixer(width), parts(width), drop) for _ in range(depth)]
    model = Language(words, width, blocks, is_tied, calls)
    drawn = loss if draw.random() < 0.6 else draw.choice(list(LOSSES))
    loss_of = LOSSES[getattr(draw, "loss", drawn)]

    def whole_loss(model, tokens):
        found = loss_of(model(tokens)[:, :-1], tokens[:, 1:])
        aux = [one.aux_loss for one in model.modules() if isinstance(one, Mixture)]
        return found + 0.1 * sum(aux) if aux else found

    names = tuple(f"blocks.{number}" for number in range(depth))
    mlps = tuple(f"{name}.mlp" for name in names)
    chains = mlps if isinstance(blocks[0].mlp, nn.Sequential) else ()
    return Made(
        model, lambda: torch.randint(words, (rows, length)), whole_loss, names, mlps, chains, 1e-2
    )


def _attention(draw, *, is_causal):
    is_fused = draw.random() < 0.5
    return lambda width: Attention(width, is_causal=is_causal, is_fused=is_fused)


def causal(draw):
    return _language(draw, _attention(draw, is_causal=True))


def bidirectional(draw):
    return _language(draw, _attention(draw, is_causal=False))


def convolution(draw):
    return _language(draw, Convolution)


def batch_norm(draw):
    channels, depth, size = draw.choice((4, 6)), draw.randint(2, 4), draw.randint(4, 6)
    rows = draw.randint(2, 3)

    def loss(model, images):
        return F.cross_entropy(model(images), torch.arange(rows) % 5)

    return Made(
        Images(channels, depth),
        lambda: torch.randn(rows, 3, size, size),
        loss,
        tuple(f"blocks.{number}" for number in range(depth)),
        tuple(f"blocks.{number}.2" for number in range(depth)),
        ("blocks",),
        1e-2,
    )


def state_space(draw):
    return _language(draw, Scan)


def mixture(draw):
    return _language(draw, _attention(draw, is_causal=True), mlp=Mixture)


def zero_projections(draw):
    """Whatever a block adds is zero at the start, so that positions seem not to meet."""
    made = _language(draw, _attention(draw, is_causal=True))
    with torch.no_grad():
        for name, one in made.model.named_parameters():
            if any(part in name for part in ("proj", "down", "mlp.2")):
                one.zero_()
    return made


def tied(draw):
    return _language(draw, _attention(draw, is_causal=True), is_tied=True)


def dropout(draw):
    return _language(draw, _attention(draw, is_causal=True), drop=0.2)


def in_place(draw):
    return _language(draw, _attention(draw, is_causal=True), kind=InPlaceBlock)


def called_twice(draw):
    return _language(draw, _attention(draw, is_causal=True), calls=2)


def statistics(draw):
    return _language(draw, lambda width: nn.Sequential(Statistics(), Positions(width)))


def counting(draw):
    return _language(draw, Counting)


def given(draw):
    return _language(draw, Given, calls=2)


KINDS = {
    one.__name__: one
    for one in (
        causal, bidirectional, convolution, batch_norm, state_space, mixture, zero_projections,
        tied, dropout, in_place, called_twice, statistics, counting, given,
    )
}  # fmt: skip
