"""Fail every step of guarded trainings at a random allocation, and write
docs/results/guard.md.

    python -m benchmarks.guard.random_errors --python .envs/torch-newest/bin/python

The results of each training are kept in build/guard-random until the page is written; --resume uses
those of a run that was interrupted. Ends with exit code 1 where a step was lost, or
the training is another one than without errors.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "tests" / "programs" / "guard" / "repeated.py"
KEPT = ROOT / "build" / "guard-random"
MODELS = {
    "cnn": "CNN with batch norm, SGD with momentum",
    "gpt2": "GPT with dropout and tied weights, AdamW",
    "vit": "ViT under autocast with GradScaler, AdamW",
    "llama": "Llama, fused AdamW",
}
CHANGES = ("autocast", "accumulation", "checkpointing", "compile", "ddp")
EVERY_STEP = "1"
_HEAD = (
    "| training | with | steps | errors | recovered | lost | equal losses | state at the end | "
    "first loss | last loss |"
)


def run_case(python: Path, name: str, steps: int, seconds: int) -> dict[str, Any]:
    """What the program prints for a case, or has printed; it is kept."""
    kept = KEPT / f"{name}-{steps}.json"
    if kept.exists():
        document: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return document
    done = subprocess.run(
        [str(python), str(PROGRAM), name, str(steps), EVERY_STEP, str(seconds)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    document = json.loads(done.stdout.splitlines()[-1])
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(document), encoding="utf-8")
    return document


def is_same(document: dict[str, Any]) -> bool:
    """Whether nothing was lost, and losses and state are those of the training without errors."""
    return (
        not document["lost"]
        and document["recoveries"] == document["errors"]
        and document["equal_losses"] == document["steps"]
        and not document["different_state"]
        and document["graphs"][0] == document["graphs"][1]
    )


def row(document: dict[str, Any]) -> str:
    """A line of the table."""
    model, _, change = document["case"].partition("+")
    state = "equal" if not document["different_state"] else "different"
    return (
        f"| {MODELS[model]} | {change} | {document['steps']:,} | {document['errors']:,} | "
        f"{document['recoveries']:,} | {len(document['lost'])} | {document['equal_losses']:,} | "
        f"{state} | {document['first_loss']:.4f} | {document['last_loss']:.4f} |"
    )


def page(documents: list[dict[str, Any]], steps: int, torch: str) -> str:
    """The page."""
    lost = [entry for document in documents for entry in document["lost"]]
    command = "benchmarks.guard.random_errors --python ENV/bin/python"
    missing = sorted(
        {f"{model}+{change}" for model in MODELS for change in CHANGES}
        - {document["case"] for document in documents}
    )
    errors = sum(document["errors"] for document in documents)
    graphs = [
        f"{document['case'].partition('+')[0]} {document['graphs'][0]} / {document['graphs'][1]}"
        for document in documents
        if document["case"].endswith("+compile")
    ]
    return "\n".join(
        [
            "# Guarded trainings with an error in every step",
            "",
            made_by(f"{command} --steps {steps}" + " --kept" * bool(missing), torch=torch),
            "",
            "Real arithmetic on the CPU. Every step fails once, at an allocation drawn at random:",
            "in forward, in backward, while gradients are divided and clipped, or within",
            "`optimizer.step()`. The same training runs without errors, and the losses of all",
            "steps and the state at the end (parameters, buffers, optimizer states, loss scale,",
            "and the generators of torch, Python and NumPy) are compared bit for bit.",
            f"A training ends after {steps:,} steps, or before where it was given less time",
            f"(`--seconds`). In all {errors:,} errors; steps lost: {len(lost)}.",
            "",
            "- *checkpointing*: the program itself checkpoints each block, not reentrant.",
            "- *compile*: `torch.compile`, and `plans=[]`. TorchDynamo and AOTAutograd make the",
            "  graphs of forward and backward, which are then executed operation by operation, so",
            "  that errors come within them, or in clipping and the optimizer; no code of Inductor",
            "  runs. The CNN is without its count of calls, which would compile anew at each.",
            f"  Graphs compiled with errors / without: {', '.join(graphs)}.",
            "- *ddp*: `DistributedDataParallel` on two ranks, processes with gloo; one of them,",
            "  drawn at random, has the error of the step. Losses and state are equal on both.",
            "",
            _HEAD,
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row, documents),
            "",
            *([f"Not run this time: {', '.join(missing)}.", ""] if missing else []),
            *(f"- lost, in step {number}: *{text}*" for number, text in lost),
            *([""] if lost else []),
            "The errors are raised by a mode of torch's dispatcher, or by what executes the",
            "graphs, not by an allocator. No real GPU was used.",
            "",
        ]
    )


def main() -> int:
    """Runs all cases, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument("--steps", type=int, default=1000, metavar="N")
    parser.add_argument(
        "--seconds", type=int, default=3600, metavar="N", help="End each training after these."
    )
    parser.add_argument("--kept", action="store_true", help="Write the page of what was kept.")
    parser.add_argument("--only", metavar="NAME", help="Keep this training, and write no page.")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--resume", action="store_true", help="Use what an interrupted run kept.")
    options = parser.parse_args()
    python = options.python.absolute()
    if not (options.resume or options.kept):
        shutil.rmtree(KEPT, ignore_errors=True)
    if options.only:
        run_case(python, options.only, options.steps, options.seconds)
        return 0
    names = [f"{model}+{change}" for change in CHANGES for model in MODELS]
    if options.kept:
        names = [name for name in names if (KEPT / f"{name}-{options.steps}.json").exists()]
    with ThreadPoolExecutor(options.workers) as pool:
        documents = list(
            pool.map(lambda name: run_case(python, name, options.steps, options.seconds), names)
        )
    publish("guard-random", page(documents, options.steps, torch_version(python)))
    return int(not all(map(is_same, documents)))


if __name__ == "__main__":
    sys.exit(main())
