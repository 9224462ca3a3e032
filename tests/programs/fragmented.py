"""Asks for more than any free piece has, on a T4: `pages` leaves pieces that hold whole pages of an
expandable segment, `halves` pieces of half a page.
"""

import sys

import torch


def take(num_bytes):
    return torch.empty(num_bytes, dtype=torch.int8, device="cuda")


kept = []
if sys.argv[1] == "pages":
    for _ in range(100):
        passing = take(100 << 20)
        del passing
        kept.append(take(60 << 20))
    take(6 << 30)
else:
    kept = [take(9 << 20) for _ in range(700)][::2]
    take(9 << 30)
