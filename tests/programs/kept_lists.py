"""Three training steps after which the program keeps lists of gradients and of optimizer states."""

import torch
from torch import nn

model = nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
gradients, averages = [], []
for _ in range(3):
    model(torch.randn(64, 1024, device="cuda")).sum().backward()
    optimizer.step()
    gradients = [one.grad for one in model.parameters()]
    averages = [state["exp_avg"] for state in optimizer.state.values()]
    optimizer.zero_grad(set_to_none=False)
