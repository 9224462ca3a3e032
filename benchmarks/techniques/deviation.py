"""Trains small models on the CPU with techniques of other rounding and without, in the environment
of a program: `python deviation.py`. The last line of the output is a document.
"""

import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests" / "programs" / "plans")]

import models  # noqa: E402

from ullage.act.techniques.applying.apply import describe_program  # noqa: E402
from ullage.act.techniques.catalog import TECHNIQUES  # noqa: E402
from ullage.act.techniques.plan import Plan  # noqa: E402
from ullage.act.techniques.technique import Action, Semantics, Technique, Value  # noqa: E402
from ullage.ground.errors import PlanError  # noqa: E402

# Wide enough that 8-bit states are in 8 bits: below 4096 elements bitsandbytes leaves them alone.
models.WIDTH, models.LENGTH, models.BATCH = 96, 12, 4
Trained = tuple[list[float], torch.Tensor]
STEPS, BATCHES = 24, 4
RATE = 1e-3
LEFT_OUT = "a step was left out"  # what the warning of autocast_float16 begins with


def make(name: str) -> tuple[Any, Any]:
    """A model as it begins, and its optimizer."""
    torch.manual_seed(1)
    made = models.MODELS[name]()
    made.model.train()
    return made, torch.optim.AdamW(made.model.parameters(), lr=RATE)


def train(made: Any, optimizer: Any) -> Trained:
    """The losses of the steps, and what the model gave in the first."""
    given: list[torch.Tensor] = []

    def note(_module: Any, _inputs: Any, output: Any) -> None:
        if not given:
            given.append(getattr(output, "logits", output).detach().float().clone())

    losses = []
    handle = made.model.register_forward_hook(note)
    for number in range(STEPS):
        torch.manual_seed(2 + number % BATCHES)
        optimizer.zero_grad()
        loss = made.loss(made.model)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    handle.remove()
    return losses, given[0]


def judge(
    name: str, technique: Technique, settings: Mapping[str, Value], expected: Trained
) -> dict[str, Any]:
    """A model under a technique."""
    made, optimizer = make(name)
    case = {"model": name, "technique": " ".join((technique.name, *map(str, settings.values())))}
    action = Action(technique.name, (), settings)
    try:
        plan = Plan((action,), describe_program(made.model, optimizer))
        with warnings.catch_warnings(record=True) as caught, plan.applied(made.model, optimizer):
            warnings.simplefilter("always")
            case |= compare(*train(made, optimizer), expected)
    except (PlanError, RuntimeError, NotImplementedError) as error:
        return case | {"refused": str(error).splitlines()[0]}
    if technique.name == "autocast_float16":
        case["skipped"] = sum(str(one.message).startswith(LEFT_OUT) for one in caught)
    return case


def compare(losses: list[float], logits: torch.Tensor, expected: Trained) -> dict[str, float]:
    """Deviations, relative to what they are of."""
    plain, plain_logits = expected
    tail = STEPS - BATCHES
    last, plain_last = (sum(some[tail:]) / BATCHES for some in (losses, plain))
    return {
        "first_loss": abs(losses[0] - plain[0]) / abs(plain[0]),
        "logits": ((logits - plain_logits).abs().max() / plain_logits.std()).item(),
        "last_loss": last,
        "plain_last_loss": plain_last,
    }


def main() -> None:
    """Every model with every technique."""
    torch.set_num_threads(1)
    techniques = [one for one in TECHNIQUES.values() if one.semantics is Semantics.ROUNDING]
    found = []
    for name in models.MODELS:
        expected = train(*make(name))
        found += [
            judge(name, technique, settings, expected)
            for technique in techniques
            for settings in ({}, *technique.variants)
        ]
    print(json.dumps({"torch": str(torch.__version__), "steps": STEPS, "cases": found}))


main()
