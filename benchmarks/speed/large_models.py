"""What a model of 70 billion parameters costs here: time and host memory.

    python -m benchmarks.speed.large_models --python thin/bin/python

writes docs/results/programs.md. Each run is done once: times are measured, not compared.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import ullage
from benchmarks.provenance import made_by
from benchmarks.results import publish
from ullage.ground.units import GIB

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "large_models.py"
OF_64 = {"world_size": 64, "rank": 0}
RUNS: tuple[tuple[str, tuple[str, ...], dict[str, Any]], ...] = (
    ("built of `nn.Module`s on the CPU in fp32, and moved", ("build", "70b", "plain"), {}),
    ("the same in bf16", ("build", "70b", "bfloat16"), {}),
    ("`LlamaForCausalLM(config)` in fp32, and moved", ("build", "70b", "hugging_face"), {}),
    (
        "`from_pretrained` of a directory without weights, `device_map=auto`, `--dummy-weights`",
        ("load", "70b", "device_map=auto"),
        {"dummy_weights": True},
    ),
    ("built on the CPU in fp32, `fully_shard`, rank 0 of 64", ("shard", "70b"), OF_64),
)
TEXT = """# Models larger than the machine

{made_by}

The model has the shape of Llama-3-70B, 70.6 billion
parameters, on one phantom GPU of 1 TiB. Each figure is from one run.

| what | on the GPU | whole run | host memory here | on a machine with the GPU, at least |
|---|---|---|---|---|
{rows}

Host memory is the peak of the program's process. Untouched pages take none, so weights that are
built, converted, copied, loaded, pinned or moved but never read need only address space. Linux
itself refuses a single tensor larger than all of the machine's memory, unless
`vm.overcommit_memory` is 1.
"""


def measure(label: str, words: tuple[str, ...], options: dict[str, Any], python: str) -> str:
    """One row of the table."""
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        program = [str(PROGRAM), *words]
        run = ullage.run(program, memory="1TiB", python=python, stdout_to_stderr=True, **options)
        os.chdir(ROOT)
    if run.exit_code:
        raise SystemExit(run.text())
    document = run.document
    here, needed = (document[f"host_{name}_bytes"] / GIB for name in ("peak", "needed"))
    allocated = run.peak_allocated_bytes / GIB
    columns = (
        f"{allocated:.1f} GiB", f"{document['wall_s']:.0f} s", f"**{here:.2f} GiB**",
        f"{needed:.0f} GiB",
    )  # fmt: skip
    return f"| {' | '.join((label, *columns))} |"


def main() -> None:
    """Measures, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", required=True, help="of an environment with torch")
    python = str(Path(parser.parse_args().python).absolute())
    rows = [measure(*run, python) for run in RUNS]
    version = ullage.run([str(PROGRAM), "threads", "tiny"], python=python, stdout_to_stderr=True)
    page = TEXT.format(
        made_by=made_by("benchmarks.speed.large_models", torch=version.document["torch"]),
        rows="\n".join(rows),
    )
    publish("large-models", page)


if __name__ == "__main__":
    main()
