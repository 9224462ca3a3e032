"""A decoder in plain operators of PyTorch, as the course CS336 has it (stanford-cs336/
assignment1-basics, cs336_basics/model.py and nn_utils.py), its blocks checkpointed.

    python train_plain.py config.json '{"batch": 4, "length": 1024, "checkpointing": "full"}'
"""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Norm(nn.Module):
    """RMSNorm: all in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        before = x.dtype
        x = x.to(torch.float32)
        rms = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        x = x * rms
        return (self.weight * x).to(before)


def softmax(x: Tensor) -> Tensor:
    """By hand, over the last dimension."""
    rescaled = x - torch.max(x, dim=-1, keepdim=True)[0]
    exponentiated = torch.exp(rescaled)
    return exponentiated / torch.sum(exponentiated, dim=-1, keepdim=True)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
    """scaled_dot_product_attention."""
    scores = query @ key.transpose(-1, -2) / math.sqrt(key.shape[-1])
    scores = torch.where(mask, scores, float("-inf"))
    return softmax(scores) @ value


class Block(nn.Module):
    """TransformerBlock."""

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__()
        width, inner = fields["hidden_size"], fields["intermediate_size"]
        self.heads = fields["num_attention_heads"]
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.w1, self.w3 = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.w2 = nn.Linear(inner, width, bias=False)
        self.ln1, self.ln2 = Norm(width), Norm(width)

    def attention(self, x: Tensor, table: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        query, key = turn(query, table), turn(key, table)
        places = torch.arange(length, device=x.device)
        mask = places[None, None, :, None] >= places[None, None, None, :]
        out = attend(query, key, value, mask)
        out = out.transpose(1, 2).contiguous().view(batch, length, width)
        return self.o(out)

    def forward(self, x: Tensor, table: Tensor) -> Tensor:
        attended = self.attention(self.ln1(x), table)
        x = x + attended
        normed = self.ln2(x)
        gate = self.w1(normed)
        return x + self.w2(gate * torch.sigmoid(gate) * self.w3(normed))


def turn(x: Tensor, table: Tensor) -> Tensor:
    """RotaryEmbedding."""
    cos, sin = table
    first, second = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return torch.cat((cos * first - sin * second, sin * first + cos * second), dim=-1)


class Model(nn.Module):
    """BasicsTransformerLM."""

    def __init__(self, fields: dict[str, Any], length: int, *, is_checkpointed: bool) -> None:
        super().__init__()
        width, self.is_checkpointed = fields["hidden_size"], is_checkpointed
        self.words = nn.Embedding(fields["vocab_size"], width)
        self.layers = nn.ModuleList(Block(fields) for _ in range(fields["num_hidden_layers"]))
        self.norm, self.head = Norm(width), nn.Linear(width, fields["vocab_size"], bias=False)
        shape = (2, length, width // fields["num_attention_heads"] // 2)
        self.register_buffer("table", torch.randn(shape), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            if self.is_checkpointed:
                x = checkpoint(layer, x, self.table, use_reentrant=False)
            else:
                x = layer(x, self.table)
        return self.head(self.norm(x))


def main(path: str, recipe: dict[str, Any]) -> None:
    """Three steps."""
    fields, shape = json.loads(Path(path).read_text()), (recipe.get("batch", 1), recipe["length"])
    with torch.device("cuda"):
        is_checkpointed = recipe.get("checkpointing") == "full"
        model = Model(fields, shape[1], is_checkpointed=is_checkpointed).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for _ in range(3):
        tokens = torch.randint(0, fields["vocab_size"], shape, device="cuda")
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1))
        del logits
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
