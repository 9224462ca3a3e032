"""Fail a guarded training step at its allocations, and write docs/results/guard.md.

    python -m benchmarks.guard.sweep --python .envs/torch-newest/bin/python

The results of each training are kept in build/guard-sweep until the page is written; --resume uses
those of a run that was interrupted. Ends with exit code 1 where a step left something else than the
step that did not fail.
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
PROGRAM = ROOT / "tests" / "programs" / "guard" / "sweep.py"
KEPT = ROOT / "build" / "guard-sweep"
WHAT = {
    "cnn": "CNN with batch norm, SGD with momentum and weight decay, lists of tensors",
    "cnn for loop": "the CNN, SGD in a loop over parameters",
    "cnn fused": "the CNN, fused SGD in two groups",
    "cnn reentrant": "the CNN, whose program checkpoints each block (use_reentrant=True)",
    "cnn not reentrant": "the CNN, whose program checkpoints each block (use_reentrant=False)",
    "gpt2": "GPT with dropout and tied weights, AdamW in two groups, lists of tensors",
    "gpt2 reentrant": "the GPT, whose program checkpoints each block (use_reentrant=True)",
    "gpt2 not reentrant": "the GPT, whose program checkpoints each block (use_reentrant=False)",
    "gpt2 for loop": "the GPT, AdamW in a loop over parameters",
    "gpt2 accumulated": "the GPT, lists, two micro-batches",
    "vit": "ViT under bfloat16 autocast with GradScaler, AdamW, lists of tensors",
    "vit accumulated": "the ViT, two micro-batches",
    "llama": "Llama: gated MLP, RMSNorm, tied weights, fused AdamW in two groups",
    "llama accumulated": "the Llama, two micro-batches",
    "lora": "the Llama, frozen, with trainable adapters of rank 2 (LoRA)",
    "lora accumulated": "the Llama with adapters, two micro-batches",
    "unet": "diffusion UNet: attention, group norm, timesteps drawn in the step, AdamW",
    "moe": "mixture: four experts and a router with a loss, AdamW, lists of tensors",
}
_SEVERAL_RUNS = "The rows are of several runs, some before later changes of the guard."


def kept_at(name: str, step: int, every: int) -> Path:
    """Where what a case has printed is kept."""
    return KEPT / f"{name.replace(' ', '-')}-{step}-{every}.json"


def run_case(python: Path, name: str, step: int, every: int) -> dict[str, Any]:
    """What the program prints for a case, or has printed; it is kept."""
    kept = kept_at(name, step, every)
    if kept.exists():
        document: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        return document
    done = subprocess.run(
        [str(python), str(PROGRAM), name, str(step), str(every)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    document = json.loads(done.stdout.splitlines()[-1])
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(document), encoding="utf-8")
    return document


def count(document: dict[str, Any], start: str) -> int:
    """Errors whose end begins with a word."""
    return sum(number for result, number in document["results"].items() if result.startswith(start))


def row(document: dict[str, Any]) -> str:
    """A line of the table."""
    num_errors = sum(document["results"].values())
    others = num_errors - count(document, "equal") - count(document, "refused")
    return (
        f"| {WHAT[document['case']]} | {document['step']} | {document['num_allocations']} | "
        f"{num_errors} | {count(document, 'equal')} | {count(document, 'refused')} | {others} |"
    )


def page(documents: list[dict[str, Any]], every: int | None, torch: str, *, is_kept: bool) -> str:
    """The page."""
    refusals = sorted(
        {
            (WHAT[document["case"]], result.removeprefix("refused: "))
            for document in documents
            for result in document["results"]
            if result.startswith("refused: ")
        }
    )
    done = {(document["case"], int(document["step"])) for document in documents}
    missing = [f"{name} {step}" for name in WHAT for step in (1, 2) if (name, step) not in done]
    errors = sum(sum(document["results"].values()) for document in documents)
    equal = sum(count(document, "equal") for document in documents)
    command = "benchmarks.guard.sweep --python ENV/bin/python" + " --kept" * is_kept
    which = f" (every {every}-th)" if every else ""
    return "\n".join(
        [
            "# A guarded step with an error at every allocation",
            "",
            made_by(f"{command} --every {every}" if every else command, torch=torch),
            "",
            "Real arithmetic on the CPU, one process. `torch.OutOfMemoryError` is raised in place",
            f"of each operation that allocates{which}, once in a step,",
            "each in a training of its own. The",
            "step ends as without an error where parameters, buffers, gradients, optimizer states,",
            "the loss, the loss scale, and the generators of torch, Python and NumPy are equal bit",
            "for bit. Step 1 makes the optimizer's states, step 2 has them. Rungs: checkpoints on",
            f"two of three blocks, then on all. In all, {equal:,} of {errors:,} errors were",
            "recovered.",
            "",
            "| training | step | allocations | errors | equal | refused | different |",
            "|---|---|---|---|---|---|---|",
            *map(row, documents),
            "",
            *(
                ["The rows are of several runs, some before later changes of the guard.", ""]
                * is_kept
            ),
            *([f"Not run this time: {', '.join(missing)}.", ""] if missing else []),
            *([] if not refusals else ["Refused, with the sentence that the user gets:", ""]),
            *(f"- {what}: *{sentence}*" for what, sentence in refusals),
            *([] if not refusals else [""]),
            "The errors are raised by a mode of torch's dispatcher, not by an allocator; what an",
            "allocator does is in tests/phantom/test_guard.py, on the phantom. No real GPU was",
            "used.",
            "",
        ]
    )


def main() -> int:
    """Runs all cases, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument(
        "--every", type=int, metavar="N", help="Every N-th allocation of each step."
    )
    parser.add_argument("--kept", action="store_true", help="Write the page of what was kept.")
    parser.add_argument("--only", metavar="NAME", help="Keep this training, and write no page.")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--resume", action="store_true", help="Use what an interrupted run kept.")
    options = parser.parse_args()
    python, every = options.python.absolute(), options.every
    if not (options.resume or options.kept):
        shutil.rmtree(KEPT, ignore_errors=True)
    if options.only:
        for step in (1, 2):
            run_case(python, options.only, step, every or 1)
        return 0
    cases = [(name, step, every or 1) for name in WHAT for step in (1, 2)]
    if options.kept:
        cases = [case for case in cases if kept_at(*case).exists()]
    with ThreadPoolExecutor(options.workers) as pool:
        documents = list(pool.map(lambda case: run_case(python, *case), cases))
    text = page(documents, every, torch_version(python), is_kept=options.kept)
    publish("guard-sweep", text)
    return int(any("differs" in result for each in documents for result in each["results"]))


if __name__ == "__main__":
    sys.exit(main())
