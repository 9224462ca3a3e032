"""A transformer trained by bitsandbytes' AdamW, whose state is in 8 bits."""

import torch
from bitsandbytes.optim import AdamW8bit
from transformer import Transformer, loss_of
from truth import Truth


def main() -> None:
    """Three steps in bfloat16."""
    with Truth() as truth:
        model = truth.owner(Transformer(vocabulary=8192, width=512).to("cuda", torch.bfloat16))
        optimizer = truth.optimizer(AdamW8bit(model.parameters()))
        for _ in range(3):
            ids = truth.input(torch.randint(8192, (2, 512)).cuda())
            loss = loss_of(model(ids), ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
