"""Guards a compiled model, on the CPU; prints how each way to compile it ended."""

import json

import torch
from contract import Program, fail, raised
from torch import nn
from training import Faults, differences

import ullage


def main():
    """Compiled as a whole and by blocks: errors in each part of a step, and the graphs compiled."""
    answers = {}
    for kind in ("model", "blocks"):
        ends, graphs = [], []
        for places in ((), ("forward", "backward", "optimizer")):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            program = compiled_program(kind)
            with ullage.guard(program.model, program.optimizer, plans=[]) as guard:
                for place in (None, None, *places, *[None] * (3 - len(places))):
                    program.errors = {place: fail} if place in ("forward", "backward") else {}
                    program.faults = Faults([3] if place == "optimizer" else [])
                    guard.step(program.fn, torch.randn(4, 8))
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
            ends.append({name: each.clone() for name, each in program.model.state_dict().items()})
        answers[kind] = [differences(*ends), guard.num_recoveries, graphs]
    program.model(torch.ones(4, 8)).sum().backward()
    program.errors["forward"] = fail
    with ullage.guard(program.model, program.optimizer, plans=[]) as guard:
        answers["accumulated"] = raised(lambda: guard.step(program.fn, torch.ones(4, 8)))
    print(json.dumps(answers))


def compiled_program(kind):
    """Three blocks of which each, or all, are compiled, and a step."""
    program = Program()
    torch.manual_seed(2)
    program.model = nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Tanh()) for _ in range(3))
    )
    program.optimizer = torch.optim.AdamW(program.model.parameters(), lr=1e-2, foreach=True)
    if kind == "model":
        program.model = torch.compile(program.model, backend="aot_eager")
    else:
        for block in program.model:
            block.compile(backend="aot_eager")

    def fn(x):
        loss = program.model(x).square().mean()
        program.at("forward")
        loss.backward()
        program.at("backward")
        with program.faults:
            program.optimizer.step()
        program.optimizer.zero_grad()

    program.fn, program.faults = fn, Faults([])
    return program


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
