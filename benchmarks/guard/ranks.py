"""Fail a guarded training step of several ranks, and write docs/results/guard.md.

    python -m benchmarks.guard.ranks --python .envs/torch-newest/bin/python [--keep FILE]

With --keep, a run that was ended goes on where it was; the cases of every error come last.

Ends with exit code 1 where a step left something else than the step that did not fail.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import publish

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "tests" / "programs" / "guard" / "ranks.py"
# What is run, which errors, and every so-many-th of them.
CASES = (
    (("ddp", "2", "gpt2", "2"), "backward", 4),
    (("ddp", "2", "gpt2", "2"), "", 1),
    (("ddp", "2", "cnn", "2"), "", 1),
    (("ddp", "2", "cnn", "2"), "both", 5),
    (("fsdp2", "4", "gpt2", "2"), "", 1),
    (("fsdp2", "4", "gpt2", "2"), "optimizer", 1),
    (("ddp", "4", "gpt2", "2"), "", 8),
    (("tp", "2", "gpt2", "2"), "", 8),
    (("tp", "2", "gpt2", "2"), "optimizer", 12),
    (("tp fsdp2", "4", "gpt2", "2"), "", 60),
    (("fsdp2", "2", "gpt2 for loop", "2"), "optimizer", 30),
    (("fsdp2", "2", "llama", "2"), "optimizer", 1),
    (("tp", "2", "gpt2 fused", "2"), "optimizer", 10),
    (("fsdp2", "2", "cnn", "1"), "optimizer", 8),
    (("fsdp2", "2", "gpt2", "1"), "optimizer", 8),
    (("fsdp2", "2", "gpt2 accumulated", "2"), "", 20),
    (("fsdp2 unsynced", "2", "gpt2 accumulated", "2"), "", 20),
    (("ddp", "2", "gpt2 accumulated", "2"), "", 2),
    (("ddp views", "2", "gpt2 accumulated", "2"), "", 20),
    (("ddp whole", "2", "gpt2 accumulated", "2"), "", 25),
    (("ddp", "2", "vit", "2"), "", 20),
    (("ddp", "2", "gpt2", "1"), "", 20),
    (("ddp", "2", "cnn", "1"), "", 10),
)
COLUMNS = (
    "wrapper", "ranks", "training", "step", "errors come", "every", "errors", "equal on all",
    "refused", "different",
)  # fmt: skip
WRAPPERS = {
    "ddp": "DDP",
    "ddp whole": "DDP, both micro-batches in one guarded step",
    "ddp views": "DDP, gradients as views of buckets",
    "fsdp2": "FSDP2",
    "fsdp2 unsynced": "FSDP2, gradients reduced after the last micro-batch",
    "tp": "tensor and sequence parallel",
    "tp fsdp2": "tensor parallel on two ranks within FSDP2",
}
MODELS = {
    "gpt2": "GPT, AdamW", "cnn": "CNN with batch norm, SGD",
    "gpt2 accumulated": "GPT, two micro-batches, each a guarded step",
    "gpt2 for loop": "GPT, AdamW in a loop", "gpt2 fused": "GPT, fused AdamW",
    "llama": "Llama, fused AdamW",
    "vit": "ViT, autocast and GradScaler",
}  # fmt: skip
PLACES = {
    "": "anywhere, one rank in turn", "both": "anywhere, first and last rank",
    "backward": "in backward, last rank",
    "optimizer": "at any operation of the optimizer, last rank",
}  # fmt: skip


def run_case(python: Path, words: tuple[str, ...], where: str, every: int) -> dict[str, Any]:
    """What the program prints for a case, and how long it took."""
    start = time.monotonic()
    done = subprocess.run(
        [str(python), str(PROGRAM), *words, str(every), *([where] if where else [])],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**document, "where": where, "every": every, "wall_s": time.monotonic() - start}


def count(rank: dict[str, Any], start: str) -> int:
    """Errors whose end begins with a word; an end by the deadline is no good end."""
    return sum(
        number
        for result, number in rank["results"].items()
        if result.startswith(start) and "(deadline_s)" not in result
    )


def row(document: dict[str, Any]) -> str:
    """A line of the table: of each number, the worst rank's."""
    ranks = document["ranks"]
    num_errors = sum(ranks[0]["results"].values())
    equal = min(count(rank, "equal") for rank in ranks)
    refused = max(count(rank, "refused") for rank in ranks)
    wrapper, world_size, case, step = document["words"][:4]
    return (
        f"| {WRAPPERS[wrapper]} | {world_size} | {MODELS[case]} | {step} | "
        f"{PLACES[document['where']]} | {_nth(document['every'])} | {num_errors} | {equal} | "
        f"{refused} | {num_errors - equal - refused} |"
    )


def _nth(every: int) -> str:
    return {1: "one", 2: "second"}.get(every, f"{every}th")


def page(documents: list[dict[str, Any]], torch: str) -> str:
    """The page."""
    refusals = sorted(
        {
            result.removeprefix("refused: ")
            for document in documents
            for result in document["ranks"][0]["results"]
            if result.startswith("refused: ")
        }
    )
    return "\n".join(
        [
            "# A guarded step of several ranks with errors on some of them",
            "",
            made_by("benchmarks.guard.ranks --python ENV/bin/python", torch=torch),
            "",
            "Real arithmetic on the CPU, gloo, each rank a process. `torch.OutOfMemoryError` is",
            "raised in place of an operation that allocates, in the optimizer also in place of one",
            "that does not; each error has its own trainings. *Every* says which of these",
            "operations failed: each one, or every so-many-th. A step ends as without an error",
            "where parameters, buffers, gradients, optimizer states, the losses, the loss scale",
            "and the generators are equal bit for bit on every rank, after this step and the next.",
            "DDP has buckets of 2 KB, so that some are reduced while others are not begun. A rank",
            "that waits longer than 60 s for another would count as different.",
            "",
            total(documents),
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *map(row, documents),
            "",
            *([] if not refusals else ["Refused, with the sentence on rank 0:", ""]),
            *(f"- *{sentence}*" for sentence in refusals),
            *([] if not refusals else [""]),
            "The errors are raised by a mode of torch's dispatcher. With NCCL the guard was tried",
            "on the phantom alone (tests/phantom/test_guard_ranks.py), and on no real GPU.",
            "",
        ]
    )


def total(documents: list[dict[str, Any]]) -> str:
    """A sentence on all errors."""
    first = [document["ranks"][0] for document in documents]
    num_errors = sum(sum(rank["results"].values()) for rank in first)
    equal = sum(min(count(rank, "equal") for rank in each["ranks"]) for each in documents)
    run = {json.dumps([each["words"][:4], each["where"]]) for each in documents}
    others = [case for case in CASES if json.dumps(case[:2]) not in run]
    names = [
        f"{WRAPPERS[words[0]]} on {words[1]}, {MODELS[words[2]]} ({PLACES[where]})"
        for words, where, _ in others
    ]
    missing = f" Not run: {'; '.join(names)}." if names else ""
    return f"Of {num_errors:,} errors, {equal:,} ended equal on every rank.{missing}"


def read_kept(path: Path | None) -> dict[str, Any]:
    """The documents of cases that were run before, by case."""
    if path is None or not path.exists():
        return {}
    documents: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return documents


def main() -> int:
    """Runs all cases, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument("--every", type=int, metavar="N", help="Every N-th error of each case.")
    parser.add_argument(
        "--keep", type=Path, metavar="FILE", help="Takes cases from it that were run before."
    )
    arguments = parser.parse_args()
    python = arguments.python.absolute()
    kept = read_kept(arguments.keep)
    cases = [(words, where, arguments.every or every) for words, where, every in CASES]
    for words, where, every in sorted(cases, key=lambda case: case[2] == 1):
        key = json.dumps([words, where, every])
        if key not in kept:
            kept[key] = run_case(python, words, where, every)
            print(row(kept[key]), f"{kept[key]['wall_s']:.0f} s", flush=True)
        if arguments.keep is not None:
            arguments.keep.write_text(json.dumps(kept), encoding="utf-8")
        documents = [kept[each] for each in map(json.dumps, map(list, cases)) if each in kept]
        publish("guard-ranks", page(documents, torch_version(python)))
    is_wrong = any(
        not result.startswith(("equal", "refused")) or "(deadline_s)" in result
        for document in documents
        for rank in document["ranks"]
        for result in rank["results"]
    )
    return int(is_wrong)


if __name__ == "__main__":
    sys.exit(main())
