"""Mixed precision by autocast, half of it with a GradScaler: casts of weights are kept between
forward and backward.
"""

import sys

import torch
from transformer import Transformer, loss_of
from truth import Truth

DTYPE = torch.float16 if "float16" in sys.argv[2:] else torch.bfloat16


def main() -> None:
    """Three steps of two micro-batches."""
    with Truth() as truth:
        model = truth.owner(Transformer(vocabulary=4096, width=512).cuda())
        optimizer = truth.optimizer(torch.optim.AdamW(model.parameters()))
        scaler = torch.amp.GradScaler("cuda", enabled=DTYPE is torch.float16)
        for _ in range(3):
            for _ in range(2):
                ids = truth.input(torch.randint(4096, (4, 512)).cuda())
                with torch.autocast("cuda", dtype=DTYPE):
                    loss = loss_of(model(ids), ids) / 2
                scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
