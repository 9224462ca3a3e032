"""What `ranks.py` has to come to on several ranks, worked out in one process, by hand: the
gradients of each rank's rows, their mean, the optimizer's step.

`ranks_by_hand.py DIRECTORY SIZE HOW` compares with what the ranks have written to DIRECTORY, and
prints a document: what differs, and by how much at most.
"""

import json
import os
import sys

import torch
from ranks import BATCH, ROWS, STEPS, model, rows
from torch.utils.data import DistributedSampler


def trained(size, *, clips):
    """The model, its optimizer, and each rank's losses and rows."""
    torch.manual_seed(0)
    made, data = model(), rows()
    optimizer = torch.optim.AdamW(made.parameters(), lr=1e-2)
    dealt = [
        list(DistributedSampler(data, size, rank, shuffle=True, seed=0)) for rank in range(size)
    ]
    losses, seen = [[] for _ in dealt], [[] for _ in dealt]
    for step in range(STEPS):
        gradients = []
        for rank, numbers in enumerate(dealt):
            some = numbers[step * BATCH : (step + 1) * BATCH]
            x, target = (torch.stack([data[one][part] for one in some]) for part in (1, 2))
            loss = (made(x) - target).square().mean()
            gradients.append(torch.autograd.grad(loss, list(made.parameters())))
            losses[rank].append(loss.item())
            seen[rank].append(some)
        for parameter, parts in zip(made.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = sum(one / size for one in parts)
        if clips:
            torch.nn.utils.clip_grad_norm_(made.parameters(), 1e-2)
        optimizer.step()
        optimizer.zero_grad()
    return made, optimizer, losses, seen


def largest_difference(ours, theirs):
    """Of two dictionaries of tensors and numbers; None where their keys or kinds differ."""
    if isinstance(theirs, dict):
        if list(ours) != list(theirs):
            return None
        found = [largest_difference(ours[name], theirs[name]) for name in theirs]
        return None if None in found else max(found, default=0.0)
    if isinstance(theirs, torch.Tensor):
        if type(ours) is not torch.Tensor or ours.shape != theirs.shape:
            return None
        return (ours.detach() - theirs.detach()).abs().max().item() if theirs.numel() else 0.0
    return 0.0 if ours == theirs else None


def main():
    """Compares."""
    directory, size, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    made, optimizer, losses, seen = trained(size, clips=how == "clips")
    found = [
        torch.load(os.path.join(directory, f"rank{rank}.pt"), weights_only=True)
        for rank in range(size)
    ]
    expected = optimizer.state_dict()["state"]
    print(
        json.dumps(
            {
                "rows": [one["rows"] == mine for one, mine in zip(found, seen, strict=True)],
                "num_rows": len({row for one in found for some in one["rows"] for row in some}),
                "losses": [
                    max(
                        abs(ours - theirs) for ours, theirs in zip(one["losses"], mine, strict=True)
                    )
                    for one, mine in zip(found, losses, strict=True)
                ],
                "model": [largest_difference(one["model"], made.state_dict()) for one in found],
                "states": [
                    largest_difference(one["optimizer"]["state"], expected) for one in found
                ],
                "drawn": len({one["drawn"] for one in found}),
                "all_rows": ROWS,
            }
        )
    )


if __name__ == "__main__":
    main()
