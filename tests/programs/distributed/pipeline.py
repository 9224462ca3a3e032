"""Pipeline parallel, after PyTorch's tutorial: several ranks form a pipeline, and there are as many
pipelines as fit. Schedules with two stages per rank place them in a loop, or in the shape of a V.

pipeline.py NUM_RANKS [SCHEDULE]
"""

import os
import sys

import torch
import torch.distributed as dist
from layers import Transformer, loss_of, make_tokens
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import PipelineScheduleSingle, get_schedule_class

NUM_RANKS = int(sys.argv[1])
NAME = sys.argv[2] if len(sys.argv) > 2 else "1F1B"
Schedule = get_schedule_class(NAME)
IS_SINGLE = issubclass(Schedule, PipelineScheduleSingle)
NUM_STAGES = NUM_RANKS if IS_SINGLE else 2 * NUM_RANKS

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group("nccl")
mesh = init_device_mesh(
    "cuda", (NUM_RANKS, dist.get_world_size() // NUM_RANKS), mesh_dim_names=("pp", "dp")
)
group, place = mesh.get_group("pp"), mesh.get_local_rank("pp")


def make_stage(index: int) -> PipelineStage:
    """Two layers; the embedding in the first, the head in the last."""
    model = Transformer(2)
    if index > 0:
        model.embedding = None
    if index < NUM_STAGES - 1:
        model.head = None
    return PipelineStage(model.to(device), index, NUM_STAGES, device, group=group)


if IS_SINGLE:
    stages = [make_stage(place)]
elif NAME in ("ZBVZeroBubble", "DualPipeV"):
    stages = [make_stage(place), make_stage(NUM_STAGES - 1 - place)]
else:
    stages = [make_stage(place), make_stage(NUM_RANKS + place)]
schedule = Schedule(
    stages[0] if IS_SINGLE else stages, n_microbatches=2 * NUM_RANKS, loss_fn=loss_of
)
parameters = [p for stage in stages for p in stage.submod.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for _ in range(3):
    tokens = make_tokens(4 * NUM_RANKS, device)
    arguments = (tokens,) if stages[0].is_first else ()
    named = {"target": tokens, "losses": []} if stages[-1].is_last else {}
    schedule.step(*arguments, **named)
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
