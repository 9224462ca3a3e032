"""Trains with a long batch that fits on no plan, but in parts.

parts_on_gpu.py SOURCE_OF_ULLAGE guarded|plain [adapt|splits]

With "adapt" the guard forecasts, with "splits" it may also split the batch before a step. The last
line is a document: what the allocator had after each step, the rungs, and what was said.
"""

import contextlib
import io
import json
import sys

import torch
from long_batch import LONG, SHORT, WIDTH, Model

import ullage

LENGTHS = (SHORT, LONG, SHORT, SHORT, 2 * SHORT, LONG, SHORT, LONG, SHORT)


def main():
    """Trains, and prints."""
    torch.manual_seed(0)
    model = Model().to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(parts):
        for part, weight in parts:
            (weight * model(part)).backward()
        optimizer.step()
        optimizer.zero_grad()

    settings = {"calm_steps": 2}
    if "adapt" in sys.argv or "splits" in sys.argv:
        settings["adapt"] = ullage.Adapt(splits="splits" in sys.argv)
    is_guarded = sys.argv[2] == "guarded"
    guard = ullage.guard(model, optimizer, **settings) if is_guarded else None
    rows = []
    said = io.StringIO()
    with contextlib.redirect_stderr(said), guard or contextlib.nullcontext():
        for length in LENGTHS:
            batch = torch.randn(8, length, WIDTH, device="cuda")
            if guard:
                guard.step_in_parts(step, batch)
            else:
                step([(batch, 1.0)])
            del batch
            stats = torch.cuda.memory_stats()
            rows.append(
                {
                    "requested": stats["requested_bytes.all.current"],
                    "allocated": torch.cuda.memory_allocated(),
                    "tensors": stats["active.all.current"],
                    "rung": guard.rung if guard else 0,
                }
            )
    document = {
        "rows": rows, "recoveries": guard.num_recoveries if guard else 0,
        "peak": torch.cuda.max_memory_allocated(), "said": said.getvalue().splitlines(),
        "log": [str(change) for change in guard.log] if guard else [],
    }  # fmt: skip
    print(json.dumps(document), file=sys.stderr)


if __name__ == "__main__":
    main()
