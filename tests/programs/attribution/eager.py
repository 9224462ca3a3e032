"""A transformer, AdamW (foreach), nothing else: three steps."""

import torch
from transformer import Transformer, loss_of
from truth import Truth


def main() -> None:
    """Three steps."""
    with Truth() as truth:
        model = truth.owner(Transformer().cuda())
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters(), foreach=True))
        for _ in range(3):
            ids = truth.input(torch.randint(8192, (8, 512)).cuda())
            loss = loss_of(model(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()


if __name__ == "__main__":
    main()
