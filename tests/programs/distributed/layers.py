"""A small transformer, for the programs beside this one."""

import torch
from torch import Tensor, nn

VOCABULARY, WIDTH, HEADS, LENGTH = 1024, 256, 8, 128


class Attention(nn.Module):
    """Causal self-attention; its heads may be split over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH, bias=False)
        self.key = nn.Linear(WIDTH, WIDTH, bias=False)
        self.value = nn.Linear(WIDTH, WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            made.unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2)  # (B, H, T, D)
            for made in (self.query(x), self.key(x), self.value(x))
        )
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.output(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention and a feed-forward part, each with its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Transformer(nn.Module):
    """Embedding, blocks by name, head; a stage of a pipeline has None for what it leaves out."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleDict({str(number): Block() for number in range(num_layers)})
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) if self.embedding is not None else tokens
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x) if self.head is not None else x


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """The cross-entropy of logits with tokens."""
    return nn.functional.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def make_tokens(batch_size: int, device: torch.device) -> Tensor:
    """Random tokens."""
    return torch.randint(VOCABULARY, (batch_size, LENGTH), device=device)
