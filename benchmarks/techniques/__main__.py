"""Write docs/reference/techniques.md: all techniques, and how far those of other rounding deviate.

    python -m benchmarks.techniques --python env/bin/python

The environment needs torch, transformers, bitsandbytes and torchao (benchmarks/stacks.txt).
"""

import argparse
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import ullage
from benchmarks.provenance import made_by
from ullage.act.techniques.catalog import TECHNIQUES
from ullage.act.techniques.technique import Semantics, Technique
from ullage.ground.units import format_bytes

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "techniques.md"
DEVIATION = Path(__file__).with_name("deviation.py")
PROGRAMS = Path(__file__).with_name("programs")
MEANINGS = {
    Semantics.SAME: "the same mathematics",
    Semantics.ROUNDING: "other rounding",
    Semantics.TRAINING: "another training; applied only when it is asked for",
}

INTRODUCTION = """# Techniques

The techniques that a plan can apply to a training job to reduce its memory.
[plans.md](../guide/plans.md) says how plans are applied, checked and undone.
"""

ROUNDING = """## What other rounding does

Eight small models (the ones that plans are tested with, 96 wide) are trained on the CPU with
AdamW for {steps} steps over four batches, each with and without the technique, from the same
weights and random numbers. *first loss* and *logits* are of the first step: the relative
deviation of the loss, and the largest deviation of any logit by the standard deviation of all.
*last loss* is the mean over the last four steps, without and with the technique. States of an
optimizer do not affect the first step. bitsandbytes and torchao keep states of fewer than 4,096
elements in float32, so the small ResNet has no states in fewer bits, and its rows show nothing.
*skipped* are the steps that autocast_float16 skipped because a gradient was not finite.
"""


def table_of(semantics: Semantics) -> str:
    """The techniques of a kind."""
    rows = [describe(one) for one in TECHNIQUES.values() if one.semantics is semantics]
    return "\n".join(
        (
            f"## {MEANINGS[semantics].capitalize()}\n",
            "| technique | what it does |",
            "|---|---|",
            *rows,
        )
    )


def describe(technique: Technique) -> str:
    """A row."""
    does = technique.does + (", up to the order of sums" if technique.reorders else "")
    needed = [*technique.needs, *(["several ranks"] if technique.needs_ranks else [])]
    needs = f" Needs {', '.join(needed)}." if needed else ""
    return f"| [{technique.name}]({technique.reference}) | {does}.{needs} |"


PRECONDITIONS = """## What must hold of a program

A technique has its stated effect only if its precondition holds. If the precondition cannot be
established for a program, the technique is refused with a message, when the plan is applied or
while the program runs. `ullage fit` runs each technique on the program and leaves out those that
are refused. No check depends on values: weights that are zero prove nothing, and the phantom has
none.
"""
BOUNDS = """
Not detected: state that a module keeps outside itself, such as a global variable; parameters and
gradients that are changed without PyTorch's version counters (`.data`); reads of gradients of
parameters that are a tensor subclass (DTensor). Each technique of the same mathematics was tried on
14 kinds of models: [plans.md](../results/plans.md#each-technique-on-each-kind-of-model).
"""


def preconditions() -> str:
    """What must hold of a program for each technique, and how that is established."""
    rows = [f"| {one.name} | {one.precondition} | {one.proof} |" for one in TECHNIQUES.values()]
    head = [PRECONDITIONS, "| technique | precondition | how it is established |", "|---|---|---|"]
    return "\n".join((*head, *rows, BOUNDS))


def deviations(cases: list[dict[str, Any]]) -> str:
    """The measured table, technique by technique."""
    names = list(dict.fromkeys(case["technique"] for case in cases))
    lines = [
        "| technique | model | first loss | logits | last loss without | with | skipped |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    for name in names:
        lines += [row(case) for case in cases if case["technique"] == name]
    return "\n".join(lines)


def row(case: dict[str, Any]) -> str:
    """A technique on a model."""
    begin = f"| {case['technique']} | {case['model']} |"
    if "refused" in case:
        return f"{begin} refused: {case['refused']} | | | | |"
    return (
        f"{begin} {case['first_loss']:.1e} | {case['logits']:.1e} | {case['plain_last_loss']:.4f} "
        f"| {case['last_loss']:.4f} | {case.get('skipped', '-')} |"
    )


LEFT_OUT = """## What is left out, and why

**float8** (torchao.float8) is for speed. It saves the inputs of the layers for backward in their
original precision, and the float8 copies in addition:
"""
BUFFERS = """
**Allocating the largest buffers first**, so that later blocks are cut from them, is not needed
where segments can grow (`allocator expandable_segments`):
"""
OTHERS = """
**NVMe** for states or activations: torch only offers cuFile (`torch.cuda.gds`), which needs a
driver and suitable file systems. DeepSpeed's asynchronous handle is compiled on the machine where
it runs, with libaio's headers. Neither was tried, and ullage offers no untried technique. The
remaining way, pageable memory mapped to a file, is copied synchronously. DeepSpeed's own NVMe tier
is a setting of its configuration file.

**In-place activations** were tried: they lowered no training's peak on the phantom.
"""


def left_out(python: Path) -> str:
    """What the techniques that are left out would take, on the phantom."""

    def peak(program: str, word: str, conf: str | None = None) -> tuple[int, int]:
        words = [str(PROGRAMS / program), word]
        done = ullage.run(
            words, gpu="h100-80gb", python=python, alloc_conf=conf, stdout_to_stderr=True
        )
        totals = done.report.devices[0].totals
        return totals.peak_allocated_bytes, totals.peak_reserved_bytes

    recipes = ("none", "tensorwise", "rowwise", "rowwise_with_gw_hp")
    lines = ["| recipe | peak allocated |", "|---|--:|"]
    lines += [f"| {one} | {format_bytes(peak('float8.py', one)[0])} |" for one in recipes]
    lines += ["", "12 blocks of GPT-2, 1,024 wide, in bfloat16, 8 x 1,024 tokens.", BUFFERS]
    lines += ["| | peak allocated | peak reserved |", "|---|--:|--:|"]
    for what, word, conf in (
        ("as it is", "plain", None),
        ("a step of the longest batch first", "longest_first", None),
        ("one block as large as the peak first", "block_first", None),
        ("expandable segments", "plain", "expandable_segments:True"),
    ):
        allocated, reserved = map(format_bytes, peak("lengths.py", word, conf))
        lines.append(f"| {what} | {allocated} | {reserved} |")
    lines += ["", "GPT-2 of 6 blocks on 8 rows of 64 to 1,024 tokens, drawn at random.", OTHERS]
    return "\n".join(lines)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--python", type=Path, required=True, help="an interpreter with torch")
    args = parser.parse_args()
    # Not resolved: a virtual environment's python is a link to what it was made with.
    done = subprocess.run(
        [str(args.python.absolute()), str(DEVIATION)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    measured = json.loads(done.stdout.splitlines()[-1])
    basis = made_by("benchmarks.techniques", torch=measured["torch"])
    parts = [INTRODUCTION, *(table_of(one) + "\n" for one in Semantics)]
    parts += [preconditions()]
    parts += [ROUNDING.format(steps=measured["steps"]), deviations(measured["cases"]), ""]
    parts += [LEFT_OUT, left_out(args.python), "", basis]
    PAGE.write_text("\n".join(parts) + "\n", encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
