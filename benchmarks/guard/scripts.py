"""Fail scripts that know nothing of a guard at their allocations, and write
docs/results/guard-scripts.md.

    python -m benchmarks.guard.scripts --python .envs/torch-newest/bin/python [--every 1]

Each script runs under `ullage exec --guard`. Ends with exit code 1 where one left something else
than without the error, or an error within what is guarded was not recovered.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.provenance import made_by, torch_version

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = ROOT / "docs" / "results" / "guard-scripts.md"
PROGRAMS = ROOT / "tests" / "programs" / "guard"
EXEC = ("-c", "from ullage.cli.main import main; main()", "exec", "--guard")
# The loop and its options, ranks, and every so-many-th error of a page that is made by day.
SCRIPTS = (
    (("plain",), 1, 9),
    (("transformers",), 1, 40),
    (("lightning",), 1, 12),
    (("accelerate",), 1, 9),
    (("ddp",), 2, 9),
    (("ddp", "both"), 2, 45),
    (("ddp unused",), 2, 21),
    (("ddp views",), 2, 21),
    (("ddp hook",), 2, 45),
    (("accelerate",), 2, 21),
    (("transformers",), 2, 60),
    (("lightning",), 2, 30),
)
NAMES = {
    "plain": "a loop like nanoGPT's: two micro-batches, clipping, AdamW, a schedule",
    "transformers": "transformers' Trainer, GPT-2, accumulation",
    "lightning": "Lightning's Trainer, clipping",
    "accelerate": "a loop of Accelerate, accumulation",
    "ddp": "a loop with DDP: two micro-batches, the first under `no_sync`, clipping",
    "ddp unused": "the DDP loop, `find_unused_parameters=True`, parameters that are not used",
    "ddp views": "the DDP loop, `gradient_as_bucket_view=True`",
    "ddp hook": "the DDP loop with a communication hook",
}
COLUMNS = (
    "script", "ranks", "errors on", "errors in calls, backward and optimizer", "equal on all",
    "not", "errors in between", "recovered", "the script's own",
)  # fmt: skip


def run_script(python: Path, words: tuple[str, ...], num_ranks: int, every: int) -> dict[str, Any]:
    """What a script prints under `ullage exec --guard`."""
    launcher: list[str] = []
    if num_ranks > 1:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = str(listener.getsockname()[1])
        launcher = ["torchrun", "--nproc-per-node", str(num_ranks), "--master-port", port]
    name = "unmodified_ranks.py" if num_ranks > 1 else "unmodified.py"
    program = [*launcher, str(PROGRAMS / name), words[0], str(every), *words[1:]]
    done = subprocess.run(
        [sys.executable, *EXEC, "--python", str(python), "--", *program],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    line = next(each for each in done.stdout.splitlines() if each.startswith('{"loop"'))
    document: dict[str, Any] = json.loads(line)
    return {**document, "num_ranks": num_ranks, "is_on_both": "both" in words}


def guarded_results(document: dict[str, Any]) -> list[dict[str, int]]:
    """Of each rank, how often a training with an error in what is guarded ended in each way."""
    if document["num_ranks"] == 1:
        return [document["results"]["guarded"]]
    return [rank["results"] for rank in document["ranks"]]


def row(document: dict[str, Any]) -> str:
    """A line of the table: of each number, the worst rank's."""
    results = guarded_results(document)
    num_errors = sum(results[0].values())
    equal = min(each.get("equal", 0) for each in results)
    between = Counter(document.get("results", {}).get("script", {}))
    cells: list[Any] = ["", "", ""]
    where = "-"
    if document["num_ranks"] == 1:
        cells = [between.total(), between["equal"], between["out of memory"]]
    else:
        where = "both ranks at once" if document["is_on_both"] else "each rank in turn"
        cells = ["not tried", "", ""]
    return " | ".join(
        ["| " + NAMES[document["loop"]], str(document["num_ranks"]), where, str(num_errors),
         str(equal), str(num_errors - equal), *map(str, cells)]
    ) + " |"  # fmt: skip


def page(documents: list[dict[str, Any]], torch: str) -> str:
    """The page."""
    count = sum(sum(guarded_results(each)[0].values()) for each in documents)
    equal = sum(min(r.get("equal", 0) for r in guarded_results(each)) for each in documents)
    return "\n".join(
        [
            "# Scripts under `ullage exec --guard` with errors at their allocations",
            "",
            made_by("benchmarks.guard.scripts --python ENV/bin/python", torch=torch),
            "",
            "Real arithmetic on the CPU, on several ranks with gloo. `torch.OutOfMemoryError` is",
            "raised in place of an operation that allocates, once in a training of two optimizer",
            "steps; each error has its own training. A training ends as without an error where",
            "parameters, buffers, gradients, optimizer states, settings and torch's generator are",
            "equal bit for bit on every rank, and the script has drawn as many rows, computed as",
            "many losses and done as many steps. DDP has buckets of 2 KB, so that some are reduced",
            f"while others are not begun. In all, {equal:,} of {count:,} errors within what is",
            "guarded were recovered.",
            "",
            f"| {' | '.join(COLUMNS)} |",
            "|---|---|---|---|---|---|---|---|---|",
            *map(row, documents),
            "",
            "Errors in between are those in the script's own part, such as clipping: the script",
            "gets them, but where its part of backward has saved nothing. On several ranks they",
            "are not tried, as other ranks would wait for the one that ends. No real GPU was used;",
            "NCCL was, on the phantom (tests/phantom/test_guard_calls_ranks.py).",
            "",
        ]
    )


def main() -> int:
    """Runs all scripts, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument("--every", type=int, metavar="N", help="Every N-th error of each script.")
    arguments = parser.parse_args()
    python = arguments.python.absolute()
    documents = []
    for words, num_ranks, every in SCRIPTS:
        start = time.monotonic()
        documents.append(run_script(python, words, num_ranks, arguments.every or every))
        print(row(documents[-1]), f"{time.monotonic() - start:.0f} s", flush=True)
        PAGE.write_text(page(documents, torch_version(python)), encoding="utf-8")
    print(f"Wrote {PAGE.relative_to(ROOT)}")
    return int(any({*each} != {"equal"} for doc in documents for each in guarded_results(doc)))


if __name__ == "__main__":
    sys.exit(main())
