"""Trains one guarded step under each of many limits of memory, so that the first allocation that
fails is another each time: in forward, in backward, in the optimizer.

limits.py SOURCE_OF_ULLAGE first|later COUNT NUMBER ...

The limits are the given ones of COUNT between half of the peak and the peak. The first step makes
the optimizer's states and leaves gradients; of the later one the gradients are dropped, so that
nothing it makes stays.

The last line is a document: what the allocator has after a step without a limit, and for each limit
how the step ended and what the allocator has.
"""

import gc
import json
import sys

import torch
from long_batch import LONG, WIDTH, Model

import ullage

IS_LATER = sys.argv[2] == "later"


class Program:
    """A model, its optimizer, and a step."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = Model().to("cuda")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self, x):
        """Forward, backward, and the optimizer's step."""
        loss = self.model(x).square()
        loss.backward()
        self.optimizer.step()
        if IS_LATER:
            self.optimizer.zero_grad()
        return loss.detach()

    def run(self, limit_bytes):
        """How a guarded step ends, and what the allocator has after it."""
        x = torch.randn(2, LONG, WIDTH, device="cuda")
        if IS_LATER:
            self.step(x)
        torch.cuda.empty_cache()
        total_bytes = torch.cuda.mem_get_info()[1]
        with ullage.guard(self.model, self.optimizer) as guard:
            torch.cuda.set_per_process_memory_fraction(limit_bytes / total_bytes)
            try:
                guard.step(self.step, x)
                end = f"rung {guard.rung}"
            except torch.OutOfMemoryError:
                end = "no rung"
            except ullage.GuardError as error:
                end = f"refused: {error}"
        torch.cuda.set_per_process_memory_fraction(1.0)
        gc.collect()
        stats = torch.cuda.memory_stats()
        return {"end": end, "recoveries": guard.num_recoveries, "limit": limit_bytes,
                "allocated": torch.cuda.memory_allocated(),
                "requested": stats["requested_bytes.all.current"],
                "tensors": stats["active.all.current"]}  # fmt: skip


def main():
    """Runs all, and prints."""
    count, *numbers = map(int, sys.argv[3:])
    program = Program()
    if IS_LATER:
        program.step(torch.randn(2, LONG, WIDTH, device="cuda"))
    base_bytes = torch.cuda.memory_allocated()
    total_bytes = torch.cuda.mem_get_info()[1]
    document = {"plain": program.run(total_bytes), "rows": []}
    peak_bytes = torch.cuda.max_memory_allocated()
    for number in numbers:
        # Each begins with an empty cache: which block a tensor gets decides how it is rounded up.
        del program
        gc.collect()
        torch.cuda.empty_cache()
        program = Program()
        limit = base_bytes + (peak_bytes - base_bytes) * (count + number) // (2 * count)
        document["rows"].append(program.run(limit))
    print(json.dumps(document))


if __name__ == "__main__":
    main()
