"""GPT-2 124M on made-up tokens: bf16 autocast, scaled_dot_product_attention, AdamW."""

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB_SIZE = 50304  # 50257 rounded up to a multiple of 128


class Block(nn.Module):
    """Attention and MLP, each behind a layer norm and a residual connection."""

    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.mlp_norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 4 * dim)
        self.down = nn.Linear(4 * dim, dim)

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention. x is (batch, tokens, dim)."""
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        q, k, v = (
            part.unflatten(-1, heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """x and the result are (batch, tokens, dim)."""
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2, its token embedding shared with the output layer; the defaults are 124M."""

    def __init__(
        self, *, num_layers: int = 12, dim: int = 768, num_heads: int = 12, max_seq_len: int = 1024
    ) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB_SIZE, dim)
        self.position_embedding = nn.Embedding(max_seq_len, dim)
        self.blocks = nn.ModuleList(Block(dim, num_heads) for _ in range(num_layers))
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, VOCAB_SIZE, bias=False)
        self.apply(self._initialise)
        self.head.weight = self.token_embedding.weight

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the next tokens. ids and targets are (batch, tokens)."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        x = self.token_embedding(ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def make_batch(batch_size: int, seq_len: int) -> tuple[Tensor, Tensor]:
    """Random tokens and the tokens that follow them."""
    tokens = torch.randint(0, VOCAB_SIZE, (batch_size, seq_len + 1))
    tokens = tokens.pin_memory().to("cuda", non_blocking=True)
    return tokens[:, :-1], tokens[:, 1:]


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--lr", type=float, default=6e-4)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = GPT(max_seq_len=args.seq_len).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))
    for step in range(args.steps):
        started = time.perf_counter()
        ids, targets = make_batch(args.batch_size, args.seq_len)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        text = f"step {step}  loss {loss.item():.4f}"  # .item() waits for the GPU
        print(f"{text}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
