"""What the guard notes in a step of an optimizer with sharded parameters, in one process.

shards.py

The last line is a document: by case, what came of it.
"""

import json

import torch
import torch.distributed as dist
from ends import Run
from torch import nn
from torch.distributed import _functional_collectives as collectives
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from training import Faults

from ullage.act.guard.optimizers.averages import GuardedAverage
from ullage.act.guard.optimizers.optimizer_step import GuardedOptimizer
from ullage.act.guard.progress import Progress
from ullage.act.guard.sharded import shared_step
from ullage.act.guard.sharded.shared_step import Recording, SharedStep
from ullage.ground.errors import GuardError


class PartFaults(Faults):
    """Errors in operations on parts."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if any(each.__name__ == "DTensor" for each in types):
            return NotImplemented
        return super().__torch_dispatch__(func, types, args, kwargs)


def step(numbers, is_guarded, **settings):
    """Two steps, of which the second has errors."""
    torch.manual_seed(1)
    mesh = init_device_mesh("cpu", (1,))
    parameters = [
        nn.Parameter(distribute_tensor(torch.randn(4, 3), mesh, [Shard(0)])) for _ in range(4)
    ]
    groups = [{"params": parameters[:2]}, {"params": parameters[2:], "lr": 0.01}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, **settings)
    recoveries = []
    if is_guarded:
        GuardedOptimizer(optimizer, recoveries.append, lambda: None).attach()
    for faults in (PartFaults([]), PartFaults(numbers)):
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        with faults:
            optimizer.step()
    state = {str(index): each.to_local().clone() for index, each in enumerate(parameters)}
    return Run(state, faults, len(recoveries) if is_guarded else None)


def average():
    """What is said after an error in the update of a moving average."""
    torch.manual_seed(1)
    model = nn.Linear(4, 4)
    mesh = init_device_mesh("cpu", (1,))
    for name, value in [*model.named_parameters()]:
        setattr(model, name, nn.Parameter(distribute_tensor(value.detach(), mesh, [Shard(0)])))
    mean = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    guarded = GuardedAverage(mean, print)
    guarded.attach()
    mean.update_parameters(model)
    try:
        with PartFaults([5]):
            mean.update_parameters(model)
    except GuardError as error:
        return str(error)
    return None


def refusal(use):
    """Why a second run of some collectives is refused; None if it is not."""
    recording = Recording()
    with SharedStep(recording):
        use(torch.ones(8))
    try:
        recording.begin()
    except GuardError as error:
        return str(error)
    return None


def gather(tensor):
    """A collective of DTensor's kind."""
    return collectives.wait_tensor(collectives.all_reduce(tensor, "sum", dist.group.WORLD))


def add_views():
    """Why two views of one tensor are refused that were changed in place."""
    whole = torch.zeros(8)
    progress = Progress()
    try:
        for part in (whole[:4], whole[4:]):
            progress.add(part, 1)
    except GuardError as error:
        return str(error)
    return None


def main():
    """Runs all, and prints."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    document = {
        "average": average(),
        "held": refusal(gather),
        "changed": refusal(lambda tensor: gather(tensor).mul_(2)),
        "of torch.distributed": refusal(dist.all_reduce),
        "views": add_views(),
    }
    shared_step.MAX_BYTES = 16
    document["large"] = refusal(gather)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
