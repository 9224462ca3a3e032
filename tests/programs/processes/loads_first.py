"""Ranks that load a checkpoint of GPU 0 to where it was saved, before they set their device.

torchrun --nproc-per-node 4 loads_first.py
"""

import io
import os

import torch
import torch.distributed as dist

SIZE = 1024


def load() -> dict[str, torch.Tensor]:
    """A checkpoint of GPU 0, read to where it was."""
    file = io.BytesIO()
    weight, bias = torch.zeros(SIZE, SIZE, device="cuda:0"), torch.zeros(SIZE, device="cuda:0")
    torch.save({"weight": weight, "bias": bias}, file)
    file.seek(0)
    return torch.load(file)


def main() -> None:
    """One step on the rank's own GPU."""
    rank = int(os.environ["RANK"])
    state = load()
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    model = torch.nn.Linear(SIZE, SIZE).cuda()
    model.load_state_dict(state)
    model(torch.randn(8, SIZE, device="cuda")).sum().backward()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
