"""An engine's bookkeeping on the device: counts and positions in kernels of its own.

Its last line is JSON: what the host reads of it.
"""

import json

import torch
import triton
import triton.language as tl


@triton.jit
def _put(row_ptr, block, values, mask):
    tl.store(row_ptr + block, values, mask=mask)


@triton.jit
def advance_kernel(slot_ptr, length_ptr, start_ptr, done_ptr, positions_ptr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    slot = tl.load(slot_ptr + row)
    if slot < 0:
        return
    start = tl.load(start_ptr + row)
    count = tl.load(start_ptr + row + 1) - start
    done = tl.load(done_ptr + slot)
    tl.store(done_ptr + slot, tl.where(done + count > tl.load(length_ptr + slot), 0, done + count))
    for first in range(0, count, BLOCK):
        block = first + tl.arange(0, BLOCK)
        tl.store(positions_ptr + start + block, done + block, mask=block < count)


@triton.jit
def score_kernel(scores_ptr, slot_ptr, count, BLOCK: tl.constexpr):
    block = tl.arange(0, BLOCK)
    mask = block < count
    slots = tl.load(slot_ptr + block, mask=mask, other=0)
    _put(scores_ptr, block, slots * 0.5, mask)


@triton.jit
def spoil_kernel(chosen_ptr, slot_ptr, scores_ptr):
    best = tl.load(scores_ptr)
    tl.store(chosen_ptr, best.to(tl.int32))
    tl.atomic_add(slot_ptr, 1)


@triton.jit
def scatter_kernel(chosen_ptr, counts_ptr, kept_ptr):
    tl.store(counts_ptr + tl.load(chosen_ptr), 7)
    tl.store(kept_ptr, tl.load(kept_ptr) + 1)


def main() -> None:
    """Two steps, then kernels of which less is known."""
    slots = torch.tensor([3, 0, -1], dtype=torch.int32).to("cuda")
    lengths = torch.tensor([10, 0, 0, 100]).to("cuda")
    starts = torch.tensor([0, 5, 7, 9]).to("cuda")
    done = torch.zeros(4, dtype=torch.int64, device="cuda")
    positions = torch.zeros(16, dtype=torch.int64, device="cuda")
    scores = torch.zeros(4, device="cuda")
    for _ in range(2):
        advance_kernel[(3,)](slots, lengths, starts, done, positions, BLOCK=4)
        score_kernel[(1,)](scores, slots, 3, BLOCK=4)
    found = {"done": done.tolist(), "positions": positions.tolist(), "slots": slots.tolist()}
    counts = torch.ones(4, dtype=torch.int32, device="cuda")
    chosen = torch.ones(1, dtype=torch.int32, device="cuda")
    spoil_kernel[(1,)](chosen, slots, scores)
    found["chosen"], found["spoilt"] = chosen.tolist(), slots.tolist()
    scatter_kernel[(1,)](chosen, counts, done)
    print(json.dumps(found | {"counts": counts.tolist(), "kept": done.tolist()}))


if __name__ == "__main__":
    main()
