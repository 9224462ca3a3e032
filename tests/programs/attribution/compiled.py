"""A transformer whose blocks are compiled, each as a whole."""

import torch
from transformer import Transformer, loss_of
from truth import Truth


def main() -> None:
    """Three steps."""
    with Truth(is_compiled=True) as truth:
        model = truth.owner(Transformer(vocabulary=2048, width=512, num_blocks=3).cuda())
        for block in model.blocks:
            block.compile()
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters(), foreach=True))
        for _ in range(3):
            ids = truth.input(torch.randint(2048, (8, 512)).cuda())
            logits = model(ids)
            with truth.operating():
                loss = loss_of(logits, ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
