"""Expert parallel in Megatron's manner: each rank holds some of the experts, and tokens travel to
them and back by two all-to-alls, whose sizes the host reads from the router's counts. Prints how
many tokens arrived at this rank's experts.

expert_parallel.py [--tokens N] [--capacity FACTOR]
    --capacity      an expert takes no more than FACTOR times its even share; the rest is dropped
"""

import argparse
import json
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn

NUM_EXPERTS, TOP_K, WIDTH = 64, 2, 256


class AllToAll(torch.autograd.Function):
    """Rows to and from every rank; backward sends the gradients back."""

    @staticmethod
    def forward(ctx, rows: Tensor, received: list[int], sent: list[int]) -> Tensor:
        ctx.sizes = sent, received
        arrived = rows.new_empty(sum(received), rows.size(1))
        dist.all_to_all_single(arrived, rows.contiguous(), received, sent)
        return arrived

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        return AllToAll.apply(gradient, *ctx.sizes), None, None


class MixtureOfExperts(nn.Module):
    """A router, and this rank's share of the experts."""

    def __init__(self, capacity_factor: float | None) -> None:
        super().__init__()
        self.num_here = NUM_EXPERTS // dist.get_world_size()
        self.capacity_factor = capacity_factor
        self.router = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(self.num_here)
        )
        self.arrived = []

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Each token's weight per expert, and whether it goes there: (T, E)."""
        weights = self.router(x).softmax(-1)
        chosen = weights.topk(TOP_K, dim=-1).indices
        goes = torch.zeros_like(weights, dtype=torch.int).scatter(1, chosen, 1).bool()
        if self.capacity_factor is not None:
            capacity = int(len(x) * TOP_K / NUM_EXPERTS * self.capacity_factor)
            best = (weights * goes).topk(capacity, dim=0).indices
            goes &= torch.zeros_like(weights, dtype=torch.int).scatter(0, best, 1).bool()
        return weights, goes

    def forward(self, x: Tensor) -> Tensor:
        world_size, first = dist.get_world_size(), dist.get_rank() * self.num_here
        weights, goes = self.route(x)
        counts = goes.sum(0)
        everyones = torch.empty(world_size * NUM_EXPERTS, dtype=counts.dtype, device=x.device)
        dist.all_gather_into_tensor(everyones, counts)
        here = everyones.view(world_size, NUM_EXPERTS)[:, first : first + self.num_here]
        sent = counts.view(world_size, self.num_here).sum(1).tolist()
        received, parts = here.sum(1).tolist(), here.flatten().tolist()
        self.arrived.append(sum(received))

        numbers = torch.arange(len(x), device=x.device).expand(NUM_EXPERTS, -1)
        tokens = numbers.masked_select(goes.T)  # by expert
        scales = weights.T.masked_select(goes.T)
        arrived = AllToAll.apply(x.index_select(0, tokens), received, sent).split(parts)
        turned = [
            expert(torch.cat(arrived[number :: self.num_here]))
            for number, expert in enumerate(self.experts)
        ]
        split = [rows.split(parts[number :: self.num_here]) for number, rows in enumerate(turned)]
        back = torch.cat([rows for of_rank in zip(*split, strict=True) for rows in of_rank])
        home = AllToAll.apply(back, sent, received) * scales.unsqueeze(1)
        return x + torch.zeros_like(x).index_add(0, tokens, home)


parser = argparse.ArgumentParser()
parser.add_argument("--tokens", type=int, default=1024)
parser.add_argument("--capacity", type=float)
args = parser.parse_args()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
model = nn.Sequential(
    nn.Linear(WIDTH, WIDTH), MixtureOfExperts(args.capacity), nn.Linear(WIDTH, WIDTH)
).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for _ in range(3):
    model(torch.randn(args.tokens, WIDTH, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print(json.dumps({"arrived": model[1].arrived, "peak": torch.cuda.max_memory_allocated()}))
