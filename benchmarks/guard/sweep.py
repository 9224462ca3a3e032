"""Fail a guarded training step at its allocations, and write docs/results/guard-sweep.md.

    python -m benchmarks.guard.sweep --python .envs/torch-newest/bin/python

Ends with exit code 1 where a step left something else than the step that did not fail.
"""

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "results" / "guard-sweep.md"
PROGRAM = ROOT / "tests" / "programs" / "guard" / "sweep.py"
WORKERS = 2
# Every so-many-th allocation of the longer steps.
EVERY = {
    "cnn": 1, "gpt2": 1, "vit": 1, "llama": 1, "gpt2 for loop": 1, "gpt2 accumulated": 2,
    "vit accumulated": 2, "llama accumulated": 2, "moe": 6, "cnn for loop": 1, "cnn fused": 1,
    "lora": 2, "unet": 2, "cnn reentrant": 1, "cnn not reentrant": 1, "gpt2 reentrant": 2,
    "gpt2 not reentrant": 2,
}  # fmt: skip
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
    "unet": "diffusion UNet: attention, group norm, timesteps drawn in the step, AdamW",
    "moe": "mixture: four experts and a router with a loss, AdamW, lists of tensors",
}


def run_case(python: Path, name: str, step: int) -> dict[str, Any]:
    """What the program prints for a case."""
    done = subprocess.run(
        [str(python), str(PROGRAM), name, str(step), str(EVERY[name])],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
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


def page(documents: list[dict[str, Any]], torch: str) -> str:
    """The page."""
    refusals = sorted(
        {
            (WHAT[document["case"]], result.removeprefix("refused: "))
            for document in documents
            for result in document["results"]
            if result.startswith("refused: ")
        }
    )
    errors = sum(sum(document["results"].values()) for document in documents)
    equal = sum(count(document, "equal") for document in documents)
    return "\n".join(
        [
            "# A guarded step with an error at every allocation",
            "",
            made_by("benchmarks.guard.sweep --python ENV/bin/python", torch=torch),
            "",
            "Real arithmetic on the CPU, one process. `torch.OutOfMemoryError` is raised in place",
            "of an operation that allocates, once in a step; each row has its own trainings. The",
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
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    python = parser.parse_args().python.absolute()
    cases = [(name, step) for name in WHAT for step in (1, 2)]
    with ThreadPoolExecutor(WORKERS) as pool:
        documents = list(pool.map(lambda case: run_case(python, *case), cases))
    PAGE.write_text(page(documents, torch_version(python)), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}")
    return int(any("differs" in result for each in documents for result in each["results"]))


if __name__ == "__main__":
    sys.exit(main())
