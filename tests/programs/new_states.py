"""An optimizer that makes its states anew in each step, as those that keep them in few bits do; the
peak is in the last step.
"""

import torch

SIZE, STEPS = 1024, 9


class Momentum(torch.optim.Optimizer):
    """SGD whose momentum is another tensor after each step."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                before = state.get("momentum")
                grad = parameter.grad
                state["momentum"] = grad.clone() if before is None else before * 0.9 + grad
                parameter.add_(state["momentum"], alpha=-group["lr"])


model = torch.nn.Sequential(*[torch.nn.Linear(SIZE, SIZE, bias=False) for _ in range(4)]).cuda()
optimizer = Momentum(model.parameters())
for step in range(STEPS):
    batch_size = 4096 if step == STEPS - 1 else 16
    model(torch.randn(batch_size, SIZE, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
