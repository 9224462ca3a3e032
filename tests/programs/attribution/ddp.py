"""A transformer in DistributedDataParallel, four ranks; gradients are copied to buckets."""

import sys
from typing import Any

import ranks
import torch
from torch import distributed
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from transformer import Transformer, loss_of
from truth import Truth


def main() -> None:
    """Three steps."""
    ranks.join()
    with Truth() as truth:

        def reduce(
            state: Any, bucket: distributed.GradBucket
        ) -> torch.futures.Future[torch.Tensor]:
            truth.say("communication", bucket.buffer())
            return allreduce_hook(state, bucket)

        model = truth.owner(Transformer(vocabulary=2048, width=512, num_blocks=8).cuda())
        wrapped = DistributedDataParallel(model, gradient_as_bucket_view="view" in sys.argv[2:])
        wrapped.register_comm_hook(None, reduce)
        optimizer = truth.optimizer(torch.optim.AdamW(wrapped.parameters(), fused=True))
        for _ in range(3):
            ids = truth.input(torch.randint(2048, (2, 512)).cuda())
            loss = loss_of(wrapped(ids), ids)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
