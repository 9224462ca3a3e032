"""One rank of several, as torchrun starts them: the process group, by NCCL."""

import torch
from torch import distributed


def join() -> None:
    """Makes the default process group."""
    torch.cuda.set_device(0)
    distributed.init_process_group("nccl")
