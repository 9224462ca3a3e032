"""A transformer whose blocks are recomputed in backward; `reentrant` as second argument: the old
kind.
"""

import sys

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformer import Transformer, loss_of
from truth import Truth


class Checkpointed(Transformer):
    """Keeps the inputs of its blocks alone."""

    is_reentrant = "reentrant" in sys.argv[2:]

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Calls one block, and again in backward."""
        return checkpoint(block, x, use_reentrant=self.is_reentrant)


def main() -> None:
    """Three steps."""
    with Truth() as truth:
        model = truth.owner(Checkpointed(vocabulary=256, width=512, num_blocks=6).cuda())
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters(), fused=True))
        for _ in range(3):
            ids = truth.input(torch.randint(256, (16, 1024)).cuda())
            loss = loss_of(model(ids), ids)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
