"""A small mixture-of-experts transformer: top-2 router, experts of fixed capacity, bf16 autocast.

Each expert takes at most --capacity-factor times its even share of the tokens; what goes beyond is
dropped and passes by on the residual connection (Switch Transformer, arXiv:2101.03961). So the
shapes, and the memory, do not depend on what the router chooses.

    python examples/moe/train.py --experts 16
    ullage run --gpu rtx-4090 -- examples/moe/train.py --experts 16
"""

import argparse
import math
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

VOCAB_SIZE = 32000


class Experts(nn.Module):
    """A router and its experts: E MLPs whose weights are stacked."""

    def __init__(
        self, dim: int, hidden_dim: int, num_experts: int, top_k: int, capacity_factor: float
    ) -> None:
        super().__init__()
        self.num_experts, self.top_k, self.capacity_factor = num_experts, top_k, capacity_factor
        self.router = nn.Linear(dim, num_experts, bias=False)
        self.up = nn.Parameter(torch.randn(num_experts, dim, hidden_dim) * dim**-0.5)
        self.down = nn.Parameter(torch.randn(num_experts, hidden_dim, dim) * hidden_dim**-0.5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The experts' answer (batch, tokens, dim), and the loss that balances their load."""
        tokens = x.flatten(0, 1)
        num_tokens, dim = tokens.shape
        capacity = math.ceil(self.capacity_factor * num_tokens * self.top_k / self.num_experts)
        scores = self.router(tokens).float().softmax(dim=-1)
        weights, experts = scores.topk(self.top_k, dim=-1)

        # The place of each choice in its expert's queue; places beyond the capacity share one row
        # at the end that no expert reads.
        chosen = F.one_hot(experts.flatten(), self.num_experts)
        place = ((chosen.cumsum(dim=0) - 1) * chosen).sum(dim=-1)
        num_rows = self.num_experts * capacity
        row = torch.where(place < capacity, experts.flatten() * capacity + place, num_rows)

        queued = tokens.repeat_interleave(self.top_k, dim=0)
        buffer = tokens.new_zeros(num_rows + 1, dim).index_copy(0, row, queued)
        hidden = F.gelu(torch.bmm(buffer[:-1].view(self.num_experts, capacity, dim), self.up))
        answers = torch.bmm(hidden, self.down).flatten(0, 1)
        answers = F.pad(answers, (0, 0, 0, 1))[row]
        mixed = (answers * weights.flatten()[:, None]).view(num_tokens, self.top_k, dim).sum(dim=1)

        load = chosen.float().mean(dim=0)
        balance = self.num_experts * (load * scores.mean(dim=0)).sum()
        return mixed.view_as(x).to(x.dtype), balance


class Block(nn.Module):
    """Attention and experts, each behind a layer norm and a residual connection."""

    def __init__(self, dim: int, num_heads: int, experts: Experts) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.proj = nn.Linear(dim, dim, bias=False)
        self.experts_norm = nn.LayerNorm(dim)
        self.experts = experts

    def attention(self, x: Tensor) -> Tensor:
        """Causal self-attention. x is (batch, tokens, dim)."""
        heads = (self.num_heads, x.shape[-1] // self.num_heads)
        q, k, v = (
            part.unflatten(-1, heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x and the first result are (batch, tokens, dim); the second balances the load."""
        x = x + self.attention(self.attention_norm(x))
        y, balance = self.experts(self.experts_norm(x))
        return x + y, balance


class MixtureOfExperts(nn.Module):
    """A decoder whose every MLP is a set of experts."""

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB_SIZE, args.dim)
        self.blocks = nn.ModuleList(
            Block(
                args.dim,
                args.dim // 64,
                Experts(args.dim, 4 * args.dim, args.experts, args.top_k, args.capacity_factor),
            )
            for _ in range(args.layers)
        )
        self.norm = nn.LayerNorm(args.dim)
        self.head = nn.Linear(args.dim, VOCAB_SIZE, bias=False)

    def forward(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The mean cross-entropy of the next tokens and a hundredth of the balancing losses."""
        x, balances = self.embedding(ids), []
        for block in self.blocks:
            x, balance = block(x)
            balances.append(balance)
        logits = self.head(self.norm(x))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return loss + 0.01 * torch.stack(balances).mean()


def main() -> None:
    """Train for a few steps; one line per step."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--top-k", type=int, default=2)
    parser.add_argument("--capacity-factor", type=float, default=1.25)
    parser.add_argument("--steps", type=int, default=3)
    args = parser.parse_args()

    torch.manual_seed(0)
    model = MixtureOfExperts(args).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps):
        started = time.perf_counter()
        tokens = torch.randint(0, VOCAB_SIZE, (args.batch_size, args.seq_len + 1), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        text = f"step {step}  loss {loss.item():.4f}"
        print(f"{text}  {(time.perf_counter() - started) * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
