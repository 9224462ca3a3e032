"""Runs DeepSpeed's ZeRO-3 with offload on the phantom: the estimate's interval is to hold its peak.

    python -m benchmarks.accuracy.estimate.infinity --python ENV/bin/python

ENV has deepspeed (benchmarks/stacks.txt). What is found is kept in
tests/unit/estimate/deepspeed_vectors.json.
"""

from __future__ import annotations

import argparse
import json
from typing import Final

from benchmarks.accuracy.estimate.__main__ import VECTORS, run_case
from benchmarks.accuracy.estimate.case import Case, changes
from ullage.facts.families.builtin import find_model
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Recipe

FOUND = VECTORS.with_name("deepspeed_vectors.json")


def _case(model: str, ranks: int, recipe: Recipe) -> Case:
    return Case(
        f"{model} on {ranks}",
        find_model(model).config.fields,
        recipe,
        program="train_infinity.py",
        options=("--world-size", str(ranks), "--rank", "0"),
    )


def _layout(ranks: int) -> Layout:
    return Layout(data=ranks, sharding="fsdp", offload=True, nvme=True)


CASES: Final = (
    _case("tinyllama-1.1b", 4, Recipe(length=1024, layout=_layout(4))),
    _case("llama-3.2-1b", 8, Recipe(length=2048, checkpointing="full", layout=_layout(8))),
)


def main() -> None:
    """Runs the cases, and keeps what they found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of the environment with deepspeed")
    python = parser.parse_args().python
    found = {
        case.name: {
            "gpu": case.gpu,
            "config": dict(case.config),
            "recipe": changes(case.recipe),
            "phantom": run_case(case, python),
        }
        for case in CASES
    }
    FOUND.write_text(json.dumps(found, indent=1) + "\n")
    print(f"Wrote {FOUND.name}")


if __name__ == "__main__":
    main()
