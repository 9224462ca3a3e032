"""The networks that the workloads define themselves, rather than take from transformers or timm."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    """A transformer layer with dropout."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (B, T, C)."""
        B, T, C = x.shape
        qkv = self.qkv(self.norm1(x)).view(B, T, 3, self.heads, C // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.drop(self.proj(y))
        return x + self.drop(self.down(F.gelu(self.up(self.norm2(x)))))


class GPT(nn.Module):
    """GPT-2 with an output layer of its own (not tied)."""

    def __init__(
        self, *, layers: int = 12, dim: int = 768, heads: int = 12, checkpoint: bool = False
    ) -> None:
        super().__init__()
        self.checkpoint = checkpoint
        self.tok, self.pos = nn.Embedding(50304, dim), nn.Embedding(1024, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 50304, bias=False)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy. ids and labels are (batch, tokens)."""
        x = self.tok(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoint else block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


class LSTMTagger(nn.Module):
    """An embedding, two LSTM layers and a label per token."""

    def __init__(self) -> None:
        super().__init__()
        self.emb = nn.Embedding(20000, 512)
        self.rnn = nn.LSTM(512, 1024, 2, batch_first=True, dropout=0.1)
        self.out = nn.Linear(1024, 50)

    def forward(self, x: Tensor) -> Tensor:
        """Scores of (batch, tokens, 50). x is (batch, tokens)."""
        return self.out(self.rnn(self.emb(x))[0])


def double_conv(num_in: int, num_out: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with group norm and SiLU."""
    return nn.Sequential(
        nn.Conv2d(num_in, num_out, 3, padding=1),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
        nn.Conv2d(num_out, num_out, 3, padding=1),
        nn.GroupNorm(8, num_out),
        nn.SiLU(),
    )


class UNet(nn.Module):
    """Four levels down, three up, with skip connections."""

    def __init__(self, base: int = 64) -> None:
        super().__init__()
        c = [base, 2 * base, 4 * base, 8 * base]
        self.down = nn.ModuleList(
            [
                double_conv(3, c[0]),
                double_conv(c[0], c[1]),
                double_conv(c[1], c[2]),
                double_conv(c[2], c[3]),
            ]
        )
        self.up = nn.ModuleList(
            [
                double_conv(c[3] + c[2], c[2]),
                double_conv(c[2] + c[1], c[1]),
                double_conv(c[1] + c[0], c[0]),
            ]
        )
        self.out = nn.Conv2d(base, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, 3, height, width)."""
        skips = []
        for index, block in enumerate(self.down):
            x = block(x)
            if index < 3:
                skips.append(x)
                x = F.avg_pool2d(x, 2)
        for block in self.up:
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return self.out(x)
