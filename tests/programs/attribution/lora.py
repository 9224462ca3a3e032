"""LoRA: a frozen base with small trained matrices beside its linear layers, written by hand."""

import torch
from torch import nn
from transformer import Transformer, loss_of
from truth import Truth


class LoraLinear(nn.Module):
    """A frozen linear layer, and a trained product of two thin ones."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x is (..., in_features)."""
        return self.base(x) + 2.0 * self.up(self.down(x))


def adapt(model: nn.Module, rank: int = 8) -> nn.Module:
    """Freezes a model and puts an adapter beside each linear layer of its blocks."""
    model.requires_grad_(False)
    for block in model.blocks:
        for holder, name in (
            (block.attention, "qkv"), (block.attention, "out"), (block.mlp, "up"),
            (block.mlp, "down"),
        ):  # fmt: skip
            setattr(holder, name, LoraLinear(getattr(holder, name), rank))
    return model


def main() -> None:
    """Three steps in bfloat16."""
    with Truth() as truth:
        model = adapt(Transformer(vocabulary=4096, width=512)).to("cuda", torch.bfloat16)
        truth.owner(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = truth.optimizer(torch.optim.AdamW(trained, foreach=True))
        for _ in range(3):
            ids = truth.input(torch.randint(4096, (8, 512)).cuda())
            loss = loss_of(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
