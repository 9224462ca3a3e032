"""Pipeline parallel, after PyTorch's tutorial: each rank has a stage, or, with --dp, as many
pipelines as fit. --interleaved gives each rank two stages.
"""

import os
import sys

import torch
import torch.distributed as dist
from layers import Transformer, loss_of, make_tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleaved1F1B

NUM_STAGES = int(sys.argv[1])
PER_RANK = 2 if "--interleaved" in sys.argv else 1

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
mesh = init_device_mesh(
    "cuda", (NUM_STAGES, dist.get_world_size() // NUM_STAGES), mesh_dim_names=("pp", "dp")
)
group, place = mesh.get_group("pp"), mesh.get_local_rank("pp")
num_all = NUM_STAGES * PER_RANK


def make_stage(index: int) -> PipelineStage:
    """Two layers; the embedding in the first, the head in the last."""
    model = Transformer(2)
    if index > 0:
        model.embedding = None
    if index < num_all - 1:
        model.head = None
    return PipelineStage(model.to(device), index, num_all, device, group=group)


stages = [make_stage(place + NUM_STAGES * turn) for turn in range(PER_RANK)]
if PER_RANK > 1:
    schedule = ScheduleInterleaved1F1B(stages, n_microbatches=2 * NUM_STAGES, loss_fn=loss_of)
else:
    schedule = Schedule1F1B(stages[0], n_microbatches=2 * NUM_STAGES, loss_fn=loss_of)
parameters = [p for stage in stages for p in stage.submod.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for _ in range(3):
    tokens = make_tokens(4 * NUM_STAGES, device)
    arguments = (tokens,) if place == 0 else ()
    named = {"target": tokens, "losses": []} if place == NUM_STAGES - 1 else {}
    schedule.step(*arguments, **named)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
