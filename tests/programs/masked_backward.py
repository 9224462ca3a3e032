"""Backward passes that ask again how many elements a mask has: indexed, scattered, recomputed."""

import json

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

KNOWN, LARGE, WIDTH = 2_000, 200_000, 16
counts: dict[str, list[int]] = {}


def make_mask(num_rows: int) -> Tensor:
    """Two of three rows; above 65,536 rows nobody but the GPU knows which."""
    return torch.arange(num_rows).cuda() % 3 != 0


def keep_rows(x: Tensor, mask: Tensor, name: str) -> Tensor:
    """The rows of the mask, by their numbers; notes how many there are, each time."""
    rows = mask.nonzero().flatten()
    counts.setdefault(name, []).append(len(rows))
    return x.index_select(0, rows).sin()


def main() -> None:
    """Each way, with a mask whose values are known and with one whose values are not."""
    for name, num_rows in (("known", KNOWN), ("large", LARGE)):
        weight = torch.zeros(num_rows, WIDTH, device="cuda", requires_grad=True)
        mask = make_mask(num_rows)
        kept = (2 * weight)[mask]
        kept.sum().backward()
        counts[f"{name}, indexed"] = [len(kept)]
        source = torch.zeros(len(kept), device="cuda", requires_grad=True)
        torch.zeros(num_rows, device="cuda").masked_scatter(mask, 2 * source).sum().backward()
        counts[f"{name}, scattered"] = [len(source.grad)]
        for reentrant in (False, True):
            again = f"{name}, recomputed{' in a pass of its own' if reentrant else ''}"
            checkpoint(keep_rows, 2 * weight, mask, again, use_reentrant=reentrant).sum().backward()
    print(json.dumps(counts))


if __name__ == "__main__":
    main()
