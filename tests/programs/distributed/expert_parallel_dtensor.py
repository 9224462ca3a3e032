"""Expert parallel by DTensor, in torchtitan's manner: distribute_module shards the experts' weights
by expert and puts an all-to-all before them and after them. Prints how many tokens arrived.

expert_parallel_dtensor.py [TOKENS]
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import (
    all_to_all_single,
    all_to_all_single_autograd,
    wait_tensor,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_module, distribute_tensor

NUM_EXPERTS, TOP_K, WIDTH = 64, 2, 256
NUM_TOKENS = int(sys.argv[1]) if len(sys.argv) > 1 else 1024
arrived = []


class Experts(nn.Module):
    """Feed-forward networks of one shape, each for its part of the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.randn(NUM_EXPERTS, WIDTH, 4 * WIDTH))
        self.down = nn.Parameter(torch.randn(NUM_EXPERTS, 4 * WIDTH, WIDTH))

    def forward(self, rows: Tensor, counts: list[int]) -> Tensor:
        up, down = self.up.to_local(), self.down.to_local()
        parts = zip(rows.split(counts), up, down, strict=True)
        return torch.cat([nn.functional.gelu(part @ first) @ last for part, first, last in parts])


class ExpertParallel:
    """What distribute_module takes: how weights are sharded, and what goes in and comes out."""

    def shard(self, _name: str, module: nn.Module, mesh: DeviceMesh) -> None:
        for name, parameter in module.named_parameters(recurse=False):
            sharded = nn.Parameter(distribute_tensor(parameter, mesh, [Shard(0)]))
            module.register_parameter(name, sharded)

    def dispatch(
        self, _module: nn.Module, inputs: tuple[Tensor, Tensor], mesh: DeviceMesh
    ) -> tuple[Tensor, list[int]]:
        rows, counts = inputs
        with torch.no_grad():
            theirs = wait_tensor(all_to_all_single(counts, None, None, mesh.get_group()))
        self.sent = counts.view(mesh.size(), -1).sum(1).to("cpu", non_blocking=True)
        theirs = theirs.view(mesh.size(), -1).to("cpu")
        self.sent, self.received = self.sent.tolist(), theirs.sum(1).tolist()
        rows = all_to_all_single_autograd(rows, self.received, self.sent, mesh.get_group())
        self.order = torch.arange(theirs.numel()).view_as(theirs).T.flatten().tolist()
        self.parts = theirs.flatten().tolist()
        arrived.append(sum(self.parts))
        chunks = rows.split(self.parts)  # by rank, then expert
        return torch.cat([chunks[number] for number in self.order]), theirs.sum(0).tolist()

    def combine(self, _module: nn.Module, rows: Tensor, mesh: DeviceMesh) -> Tensor:
        chunks = rows.split([self.parts[number] for number in self.order])
        back = [chunks[self.order.index(number)] for number in range(len(self.order))]
        return all_to_all_single_autograd(
            torch.cat(back), self.sent, self.received, mesh.get_group()
        )


class MixtureOfExperts(nn.Module):
    """A router on every rank, and experts that are sharded."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, NUM_EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.router(x).softmax(-1).topk(TOP_K, dim=-1)
        counts = torch.histc(chosen.flatten(), bins=NUM_EXPERTS, min=0, max=NUM_EXPERTS - 1)
        order = chosen.flatten().argsort(stable=True)
        tokens = order // TOP_K
        turned = self.experts(x[tokens], counts)
        return x.index_add(0, tokens, turned * weights.flatten()[order].unsqueeze(1))


device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("ep",))
model = MixtureOfExperts().to(device)
style = ExpertParallel()
distribute_module(model.experts, mesh, style.shard, style.dispatch, style.combine)
assert isinstance(model.experts.up, DTensor)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for _ in range(3):
    model(torch.randn(NUM_TOKENS, WIDTH, device=device)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
print(json.dumps({"arrived": arrived, "peak": torch.cuda.max_memory_allocated()}))
