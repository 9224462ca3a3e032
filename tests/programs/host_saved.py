"""Trains with activations in pinned memory for as many steps as the first argument says, without
waiting for the GPU; with `keeps`, each step keeps a pinned tensor.
"""

import json
import sys

import torch

layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(2)]
inputs = torch.empty(3 * 1024, 1024, device="cuda")
kept, saved = [], []
optimizer = torch.optim.SGD([weight for layer in layers for weight in layer.parameters()], lr=0.1)


class Saving(torch.autograd.graph.save_on_cpu):
    """Also notes how much is packed."""

    def __init__(self) -> None:
        super().__init__(pin_memory=True)
        pack = self.pack_hook

        def noting(tensor: torch.Tensor) -> object:
            saved.append(tensor.nbytes)
            return pack(tensor)

        self.pack_hook = noting


for _ in range(int(sys.argv[1])):
    saved.clear()
    with Saving():
        outputs = inputs
        for layer in layers:
            outputs = torch.relu(layer(outputs))
        loss = outputs.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if "keeps" in sys.argv:
        kept.append(torch.empty(48 << 20, dtype=torch.uint8, pin_memory=True))
print(json.dumps({"saved": saved}))
