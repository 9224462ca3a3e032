"""Device memory of CUDA graphs on a real GPU, against the phantom's bounds; writes the page.

    python -m benchmarks.accuracy.graph_memory --run    # on a machine with a GPU and nvcc: measures
    python -m benchmarks.accuracy.graph_memory          # only the page

graph_memory.cu is what is measured, graph_memory.jsonl what it printed. The bounds are those of
src/ullage/players/phantom/csrc/machine/graph.c. Writes docs/results/accuracy.md.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.provenance import made_by
from benchmarks.results import publish

HERE: Final = Path(__file__).resolve().parent
SOURCE: Final = HERE / "graph_memory.cu"
MEASURED: Final = HERE / "graph_memory.jsonl"
BRANCH_KIB: Final = 112.0
NODE_KIB: Final = (2.25, 8.5)
PAGE_KIB: Final = 2048
TEXT: Final = """# Device memory of CUDA graphs

{made_by}

Measured on {date} on an {gpu} with driver {driver}.

A CUDA graph that can be launched takes device memory outside PyTorch's allocator, and the driver states no size. Here graphs of
equal nodes are captured, instantiated and launched once; *taken* is by how much free memory fell, in pages of 2 MiB. The phantom's
bounds are {branch:g} KiB for one branch with its first node and {low:g} KiB for each further node, to {branch:g} KiB for each branch and
{high:g} KiB for each node.

| node | branches | nodes | graphs | taken, MiB | a graph, KiB | phantom, MiB | inside |
|---|--:|--:|--:|--:|--:|--:|---|
{rows}

- Of {many} cases {inside} lie inside. `memset` takes next to nothing, so the lower bound is too high for graphs of nothing else.
- All graphs were then destroyed: {left} of {many} cases left all of their memory with the driver, and as many graphs captured again
  took {again}. So the phantom keeps the memory of a graph that is gone for the graphs that come.
- The bounds are read off these figures, so that the table is no test of them. Other GPUs and drivers were not measured; an older
  driver (470) took 67 KiB for a node (topic 244901 of NVIDIA's developer forum).
"""  # noqa: E501


def measure() -> str:
    """The lines of MEASURED, from the GPU of this machine."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    names = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    gpu, driver = (word.strip() for word in names[0].split(","))
    with tempfile.TemporaryDirectory() as name:
        program = str(Path(name, "graph_memory"))
        subprocess.run(["nvcc", "-arch=native", "-o", program, str(SOURCE)], check=True)
        lines = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    return json.dumps({"gpu": gpu, "driver": driver, "date": today}) + "\n" + lines


def bounds_kib(case: dict[str, Any]) -> tuple[float, float]:
    """What the phantom says that the graphs of a case take, at least and at most."""
    low = BRANCH_KIB + (case["nodes"] - 1) * NODE_KIB[0]
    high = BRANCH_KIB * case["branches"] + case["nodes"] * NODE_KIB[1]
    return tuple(-(-case["graphs"] * each // PAGE_KIB) * PAGE_KIB for each in (low, high))  # type: ignore[return-value]


def is_inside(case: dict[str, Any]) -> bool:
    """Whether a case is inside its bounds; a page may have had room before, or be begun."""
    low, high = bounds_kib(case)
    return low - PAGE_KIB <= case["launched_kib"] <= high + PAGE_KIB


def page(text: str) -> str:
    """The page, from the lines of MEASURED."""
    made, *cases = (json.loads(line) for line in text.splitlines())
    rows = []
    for case in cases:
        low, high = (size / 1024 for size in bounds_kib(case))
        rows.append(
            f"| {case['kind']} | {case['branches']} | {case['nodes']:,} | {case['graphs']:,} | "
            f"{case['launched_kib'] / 1024:.0f} | {case['launched_kib'] / case['graphs']:.0f} | "
            f"{low:.0f} to {high:.0f} | {'yes' if is_inside(case) else '**no**'} |"
        )
    more = max(case["again_kib"] - case["launched_kib"] for case in cases)
    return TEXT.format(
        **made, made_by=made_by("benchmarks.accuracy.graph_memory"),
        branch=BRANCH_KIB, low=NODE_KIB[0], high=NODE_KIB[1], rows="\n".join(rows),
        many=len(cases), inside=sum(map(is_inside, cases)),
        left=sum(case["destroyed_kib"] == case["launched_kib"] for case in cases),
        again="no more" if more <= 0 else f"up to {more} KiB more",
    )  # fmt: skip


def main() -> None:
    """Measures where it is asked to, and writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="measure on this machine's GPU")
    if parser.parse_args().run:
        MEASURED.write_text(measure(), encoding="utf-8")
    publish("graph-memory", page(MEASURED.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
