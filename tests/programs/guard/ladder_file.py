"""A guard that reads its rungs from a ladder file, on the CPU; prints one JSON object.

python ladder_file.py DIRECTORY
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from rungs import Block
from torch import nn
from training import unseen

import ullage
from ullage.act.guard.ladder import choose_plans
from ullage.act.techniques.ladder_file import LadderFile, Proof, ProvedRung
from ullage.act.techniques.technique import Action

GIB = 1 << 30


def make_file(model: Any, optimizer: Any) -> LadderFile:
    """Two rungs after the program as it is; the last is proved for nothing."""
    proofs = tuple(Proof(size, True, GIB, 2 * GIB, 0, 0.25) for size in (512, 1024))
    half, all_blocks = choose_plans(model, optimizer)
    rungs = (
        ProvedRung(None, proofs[:1]),
        ProvedRung(half, proofs),
        ProvedRung(all_blocks, (replace(proofs[0], fits=False),)),
    )
    return LadderFile("2.15.0", "l4", 24 * GIB, 20 * GIB, ("train.py",), "length", rungs)


def main() -> None:
    """Guards steps of which one runs out of memory, and opens guards with files that are wrong."""
    directory = Path(sys.argv[1])
    model = nn.Sequential(*(Block() for _ in range(4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    file = make_file(model, optimizer)
    file.save(directory / "ladder.json")
    machine = unseen(failures=1)

    def step(x: Any) -> None:
        loss = model(x).square().mean()
        if machine.failures:
            machine.failures -= 1
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    said = io.StringIO()
    with contextlib.redirect_stderr(said), ullage.guard(
        model, optimizer, plans=str(directory / "ladder.json")
    ) as guard:  # fmt: skip
        guard.step(step, torch.ones(2, 512))
        rung = guard.rung
    refused = []
    plan = file.plans[0]
    foreign = replace(plan, actions=(Action("free_gradients"),))
    foreign.save(directory / "plan.json")
    rungs = (file.rungs[0], ProvedRung(foreign, file.rungs[1].proofs))
    replace(file, rungs=rungs).save(directory / "foreign.json")
    for name in ("plan.json", "foreign.json", "missing.json"):
        try:
            ullage.guard(model, optimizer, plans=directory / name)
        except ullage.PlanError as error:
            refused.append(str(error))
    print(json.dumps({"said": said.getvalue().splitlines(), "rung": rung, "refused": refused}))


if __name__ == "__main__":
    main()
