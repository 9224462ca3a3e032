"""Prints whether torch.Tensor is as torch made it, with a model on the CPU and after its move."""

import json

import torch
from torch import nn

OPENINGS = ("numpy", "data_ptr", "untyped_storage", "tolist")


def own():
    return [name for name in OPENINGS if name in torch.Tensor.__dict__]


first = own()
model = nn.Linear(1024, 1024)
model.cuda()
for _ in range(600):
    torch.zeros(1) + 1
print(json.dumps([first, own(), torch.Tensor.numpy is torch._C.TensorBase.numpy]))
