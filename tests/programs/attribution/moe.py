"""A mixture of experts: a router sends each token to two of eight experts."""

import torch
from torch import nn
from torch.nn import functional
from transformer import Attention, Mlp, loss_of
from truth import Truth


class Experts(nn.Module):
    """Each expert sees the tokens that the router sends to it."""

    def __init__(self, width: int, num_experts: int = 8, num_chosen: int = 2) -> None:
        super().__init__()
        self.router = nn.Linear(width, num_experts, bias=False)
        self.experts = nn.ModuleList(Mlp(width) for _ in range(num_experts))
        self.num_chosen = num_chosen

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, length, width)."""
        tokens = x.flatten(0, 1)
        weights, chosen = self.router(tokens).softmax(-1).topk(self.num_chosen)
        result = torch.zeros_like(tokens)
        share = tokens.shape[0] * self.num_chosen // len(self.experts)
        for n, expert in enumerate(self.experts):
            # As many as an even router sends: each expert has its capacity.
            order = (chosen == n).any(-1).int().topk(share).indices
            weight = torch.where(chosen[order] == n, weights[order], 0).sum(-1, keepdim=True)
            result = result.index_add(0, order, weight * expert(tokens[order]))
        return result.view_as(x)


class Block(nn.Module):
    """Attention and experts."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width, 8)
        self.experts = Experts(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (batch, length, width)."""
        x = x + self.attention(self.norm_1(x))
        return x + self.experts(self.norm_2(x))


class Net(nn.Module):
    """Embedding, blocks, head; the head shares the embedding's weight."""

    def __init__(self, width: int = 256, vocabulary: int = 4096) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(3)))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """ids is (batch, length)."""
        return self.head(self.norm(self.blocks(self.embedding(ids))))


def main() -> None:
    """Three steps with an auxiliary loss."""
    with Truth() as truth:
        model = truth.owner(Net().to("cuda", torch.bfloat16))
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters(), foreach=False))
        for _ in range(3):
            ids = truth.input(torch.randint(4096, (8, 512)).cuda())
            logits = model(ids)
            loss = loss_of(logits, ids) + 1e-4 * functional.mse_loss(logits, logits.detach())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
