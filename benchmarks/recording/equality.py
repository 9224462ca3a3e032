"""Hold `ullage record` on the bare phantom against `ullage run` of every example, and write
docs/results/record.md.

    python -m benchmarks.recording.equality --python .envs/torch-newest/bin/python
    ... --keep DIR                      # goes on where it was stopped

Ends with exit code 1 where a difference is not of a class that the page explains.
"""

import argparse
import shlex
import sys
import tempfile
from pathlib import Path

from benchmarks.examples import EXAMPLES
from benchmarks.provenance import made_by, torch_version
from benchmarks.recording.bare import ROOT, Done, watch
from benchmarks.recording.comparison import Comparison, compare
from benchmarks.results import publish

# Reads a mask on the host: `ullage run` follows its values, on the bare phantom they are zeros.
READS_VALUES = ("llama_trainer/train.py",)
COLUMNS = (
    "example", "events", "equal", "frees in another order", "torch's", "owners", "modules",
    "phases", "scratch", "by use",
)  # fmt: skip
WITHOUT_VALUES = "[run]\nvalues = false\n"


def measure(python: Path, example: str, directory: Path) -> Comparison:
    """Runs and records an example, and runs it again where the order of its frees differs."""
    name, *flags = shlex.split(example)
    program = [str(ROOT / "examples" / name), *flags]

    def one(verb: str, turn: str) -> Done:
        place = directory / turn
        if verb == "run" and example in READS_VALUES:
            place.mkdir(parents=True, exist_ok=True)
            (place / "ullage.toml").write_text(WITHOUT_VALUES, encoding="utf-8")
        return watch(verb, python, program, place)

    run = one("run", "run")
    comparison = compare(run, one("record", "record"))
    if comparison.num_reordered:
        again = compare(run, one("run", "again"))
        return comparison.beside(again.num_reordered)
    return comparison


def row(example: str, result: Comparison) -> str:
    """A line of the table."""
    reordered = str(result.num_reordered)
    if result.num_reordered_again is not None:
        reordered += f" ({result.num_reordered_again})"
    name = f"`{example}`" + (" (1)" if example in READS_VALUES else "")
    cells = [
        name, f"{result.num_events:,}", result.word("events"), reordered, result.word("torch"),
        result.word("owners"), result.word("modules"), result.word("phases"),
        result.word("scratch"), f"{result.by_use_bytes:,}",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def page(rows: list[str], unequal: list[str], torch: str) -> str:
    """The page."""
    failures = "\n".join(f"- {line}" for line in unequal)
    verdict = f"Not equal:\n\n{failures}" if unequal else "Nothing else differs."
    return f"""# A record beside a run

{made_by("benchmarks.recording.equality --python ENV/bin/python", torch=torch)}

Every program of `examples/`, once under `ullage run` and once under `ullage record` in the mode
*full*: events, PyTorch's own history, owners, phases and scratch. Consecutive frees count as one
set; in brackets the same of a second `ullage run` against the first.

| {" | ".join(COLUMNS)} |
|---|--:|---|--:|---|---|---|---|---|--:|
{chr(10).join(rows)}

{verdict}

What differs, and why:

- **The order of frees.** With autocast PyTorch keeps the casts of weights in a table by the address
  of the weight's object in host memory, and frees them in the order of that table. Two runs differ
  likewise.
- **Use.** The phantom is the device, so a run knows when a block was last used. What a pass
  without gradients leaves and a later one uses is a cache by that; in a record it counts as an
  activation.
- **Sizes.** A record does not have the bytes of the scratch within a block, and no intervals: its
  figures are those of this device. A run gives intervals where the size is a model's.

- **Values** (1). On the bare phantom no kernel computes: what the host reads is zeros. `ullage run`
  follows small values, and there the attention mask of this program is all ones. It is compared
  with `ullage run` without values; a real GPU has the values.
- **The driver's context.** A run has it as an interval of the catalogue, a record as it was
  measured.
"""


def main() -> int:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--python", type=Path, required=True, metavar="PATH")
    parser.add_argument("--only", default="", help="examples whose name holds this; no page")
    parser.add_argument(
        "--keep", type=Path, metavar="DIR", help="where runs are kept, and looked for"
    )
    options = parser.parse_args()
    python = options.python.absolute()
    rows, unequal = [], []
    for example in EXAMPLES:
        if options.only not in example:
            continue
        with tempfile.TemporaryDirectory(prefix="ullage-equality-") as directory:
            place = (options.keep or Path(directory)).absolute() / example.replace("/", "_")
            result = measure(python, example, place)
        rows.append(row(example, result))
        unequal += [f"`{example}`: {line}" for line in result.differences]
        print(rows[-1], *result.differences, sep="\n  ", flush=True)
    if not options.only:
        publish("record-equality", page(rows, unequal, torch_version(python)))
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
