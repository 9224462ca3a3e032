"""Each optimizer of torch but LBFGS, resumed from a checkpoint on the GPU: its state as on the CPU.

Prints "same"; ends with an AssertionError at the first that is not. `search` prints how many pairs
LBFGS keeps after two and after four steps instead.
"""

import inspect
import io
import json
import sys

import torch
from torch import nn

VARIANTS = ({}, {"foreach": False}, {"capturable": True}, {"fused": True})


def make(kind: type, device: str) -> nn.Module:
    """A small model that the optimizer can train."""
    if kind is torch.optim.SparseAdam:
        return nn.Embedding(50, 16, sparse=True, device=device)
    first, last = nn.Linear(16, 32, bias=False), nn.Linear(32, 4, bias=False)
    return nn.Sequential(first, nn.ReLU(), last).to(device)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Two steps."""
    device = next(model.parameters()).device
    is_table = isinstance(model, nn.Embedding)
    inputs = torch.arange(8) if is_table else torch.linspace(-1, 1, 128).reshape(8, 16)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(inputs.to(device)) - 1).square().mean()
        loss.backward()
        return loss

    if not isinstance(optimizer, torch.optim.LBFGS):
        closure()
        optimizer.step()
    for _ in range(2 if isinstance(optimizer, torch.optim.LBFGS) else 1):
        optimizer.step(closure)


def resumed(kind: type, settings: dict[str, bool], device: str) -> list[object]:
    """The state after two steps, a checkpoint that is read onto the device, and two more."""
    model = make(kind, device)
    optimizer = kind(model.parameters(), **settings)
    train(model, optimizer)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    optimizer = kind(model.parameters(), **settings)
    optimizer.load_state_dict(torch.load(file, map_location=device))
    train(model, optimizer)
    return [
        (name, float(value) if name == "step" else (tuple(value.size()), value.dtype))
        for state in optimizer.state.values()
        for name, value in sorted(state.items())
        if isinstance(value, torch.Tensor)
    ]


def compare_all() -> None:
    """Each class that this torch has, in each variant that it takes."""
    kinds = [kind for kind in vars(torch.optim).values() if inspect.isclass(kind)]
    others = (torch.optim.Optimizer, torch.optim.LBFGS)
    for kind in kinds:
        if not issubclass(kind, torch.optim.Optimizer) or kind in others:
            continue
        takes = inspect.signature(kind).parameters
        expected = resumed(kind, {}, "cpu")
        for settings in VARIANTS:
            if takes.keys() >= settings.keys():
                found = resumed(kind, settings, "cuda")
                assert found == expected, f"{kind.__name__} {settings}: {found}, not {expected}"
    print("same")


def count_pairs() -> None:
    """Without and with a line search, of 6 iterations a step; at most 16 are kept."""
    rows = []
    for line_search in (None, "strong_wolfe"):
        model = make(torch.optim.LBFGS, "cuda")
        optimizer = torch.optim.LBFGS(
            model.parameters(), max_iter=6, history_size=16, line_search_fn=line_search
        )
        for _ in range(2):
            train(model, optimizer)
            (state,) = optimizer.state.values()
            rows.append([len(state["old_dirs"]), state["n_iter"]])
    print(json.dumps(rows))


if __name__ == "__main__":
    if "search" in sys.argv:
        count_pairs()
    else:
        compare_all()
