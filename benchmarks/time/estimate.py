"""`ullage estimate --time` against `ullage run --time` of the same step on the phantom, for a
training loop of transformers; writes docs/results/time.md.

    python -m benchmarks.time.estimate --python ENV/bin/python
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ullage
from benchmarks.accuracy.estimate.cases_decoders import GPT2, LLAMA_1B, MIXTRAL, QWEN2_0_5B
from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish
from ullage.clock.step_time import StepTime
from ullage.facts.families.config import read_config
from ullage.facts.gpus import find_gpu
from ullage.players.eager.time.training import time_training
from ullage.players.eager.training.layout import Layout
from ullage.players.eager.training.recipe import Recipe

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "benchmarks" / "accuracy" / "estimate"
KINDS = ("matrix products", "attention", "memory-bound kernels", "communication")


@dataclass(frozen=True, slots=True)
class Case:
    """A step that both are asked about.

    Attributes:
        model: its name, and its configuration.
        fields: of the recipe, but for the layout.
        layout: fields of it.
    """

    model: tuple[str, Mapping[str, Any]]
    fields: Mapping[str, Any]
    gpu: str = "h100-80gb"
    layout: Mapping[str, Any] | None = None


_GPT2, _LLAMA, _QWEN = ("GPT-2", GPT2), ("Llama 3.2 1B", LLAMA_1B), ("Qwen2 0.5B", QWEN2_0_5B)
_SHORT = {"length": 1024}
_LONG = {"length": 2048}
_FULL = {"checkpointing": "full"}
CASES = (
    Case(_GPT2, {"batch": 32, **_SHORT}),
    Case(_LLAMA, {"batch": 4, **_LONG}),
    Case(_LLAMA, {"batch": 4, **_LONG, **_FULL}),
    Case(_GPT2, {"batch": 8, **_SHORT, **_FULL}),
    Case(("Mixtral, 2 layers", {**MIXTRAL, "num_hidden_layers": 2}), {"batch": 2, **_SHORT}),
    Case(_LLAMA, {"batch": 2, **_LONG}, layout={"data": 8, "sharding": "fsdp"}),
    Case(_LLAMA, {"batch": 2, **_LONG}, layout={"data": 8}),
    Case(_LLAMA, {"batch": 2, **_LONG, "optimizer": "adamw-loop"}, layout={"tensor": 4}),
    Case(_QWEN, {"batch": 2, **_LONG}),
    Case(_GPT2, {"batch": 1, **_SHORT}),
    Case(_GPT2, {"batch": 8, **_SHORT}, "a100-80gb"),
    Case(_GPT2, {"batch": 8, **_SHORT, "precision": "amp-bf16"}),
    Case(_GPT2, {"batch": 4, **_SHORT, "accumulation": 4}),
    Case(_LLAMA, {"batch": 2, **_LONG, "attention": "eager"}),
    Case(_LLAMA, {"batch": 2, **_LONG}, "l40s"),
    Case(_LLAMA, {"batch": 2, **_LONG, **_FULL}, layout={"data": 64, "sharding": "fsdp"}),
    Case(_LLAMA, {"batch": 1, **_LONG, "optimizer": "sgd"}),
    Case(_GPT2, {"batch": 4, **_SHORT, "precision": "fp32"}),
)


def main() -> None:
    """Runs all cases, and writes the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--python", required=True, help="an environment with torch and transformers"
    )
    options = parser.parse_args()
    version = torch_version(Path(options.python).absolute())
    rows: list[str] = []
    ratios: list[float] = []
    for case in CASES:
        run, estimate = time_case(case, options.python)
        ratios.append(estimate.step.s / run.step.s)
        rows.append(row(case, run, estimate))
        print(rows[-1], flush=True)
        # Each row is kept, also where a later case fails.
        publish("estimate-time", page(rows, ratios, version))


def time_case(case: Case, python: str) -> tuple[StepTime, StepTime]:
    """What the run says, and what the estimate does."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(dict(case.model[1])))
        fields: dict[str, Any] = dict(case.fields)
        layout = Layout(**(case.layout or {}))
        program = PROGRAMS / "train.py"
        more: dict[str, Any] = {}
        if case.layout is not None:
            program = PROGRAMS / "train_ranks.py"
            more = {"world_size": layout.num_gpus, "rank": 0}
            fields["layout"] = dict(case.layout)
        result = ullage.run(
            [str(program), str(path), json.dumps(fields)],
            gpu=case.gpu, python=python, time=True, assume=["experts=balanced"],
            snapshot=Path(folder) / "run.pickle", **more,
        )  # fmt: skip
        config = read_config(path)
    if result.time is None:
        raise SystemExit(f"{case}: no time")
    recipe = Recipe(**case.fields, layout=layout)
    return result.time, time_training(config, recipe, find_gpu(case.gpu))


def row(case: Case, run: StepTime, estimate: StepTime) -> str:
    """A row of the table."""
    words = [f"{value}" if name == "precision" else f"{name} {value}"
             for name, value in case.fields.items()]  # fmt: skip
    words += [f"{name} {value}" for name, value in (case.layout or {}).items()]
    kinds = " | ".join(_ratio(_busy(estimate, kind), _busy(run, kind)) for kind in KINDS)
    return (
        f"| {case.model[0]} | {', '.join(words)} | {case.gpu} | {run.step.s * 1e3:.1f} "
        f"| {estimate.step.s * 1e3:.1f} | **{estimate.step.s / run.step.s:.2f}** | {kinds} |"
    )


def _busy(time: StepTime, kind: str) -> float:
    return next((share.busy.s for share in time.categories if share.name == kind), 0.0)


def _ratio(seconds: float, other_s: float) -> str:
    return f"{seconds / other_s:.2f}" if other_s else ("" if not seconds else "alone")


def page(rows: list[str], ratios: list[float], torch: str) -> str:
    """The page."""
    made = made_by("benchmarks.time.estimate --python ENV/bin/python", torch=torch)
    errors = sorted(abs(ratio - 1) for ratio in ratios)
    ninth = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
    return f"""# `ullage estimate --time` beside `ullage run --time`

{made}

The estimate plays a step from the configuration alone; the run is of the real PyTorch and the real
library, on the phantom. Both use the same costs of kernels, so this page says how well the play
knows the kernels of a step, not how well either knows a real GPU: for that see above.

Of {len(ratios)} steps the median error is {100 * statistics.median(errors):.1f} %, the ninth decile
{100 * ninth:.1f} %, the largest {100 * errors[-1]:.1f} %. Milliseconds, and quotients of estimate
and run; "alone": the estimate has it, the run does not.

| model | recipe | GPU | run | estimate | quotient | products | attention | bytes | messages |
|---|---|---|--:|--:|--:|--:|--:|--:|--:|
{chr(10).join(rows)}
"""


if __name__ == "__main__":
    main()
