"""Runs PyTorch's own tests of its CUDA allocator, streams, graphs, NVML and memory tools on the
phantom, and writes docs/results/torch-tests.md and torch-tests.csv.

    python -m benchmarks.torch_tests --checkout DIR --python ENV/bin/python [--only test_cuda.py]

DIR is a checkout, or an unpacked source package, of the PyTorch that the tests are of, outside of
this repository; without it nothing is run, and that is said. ENV is made by `ullage env
--with-triton`, with pytest, pytest-timeout, expecttest, hypothesis, numpy, scipy, psutil,
parameterized and nvidia-ml-py. The rows of files that are not run again stay. A test that compares
what kernels compute cannot pass; the column *values* counts those.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "docs" / "results"
TABLE, PAGE = RESULTS / "torch-tests.csv", RESULTS / "torch-tests.md"
LIMIT_S: Final = 120
# The files, and how many GPUs they want.
FILES: Final = {
    "test_cuda.py": 1, "test_cuda_expandable_segments.py": 1, "test_cuda_multigpu.py": 2,
    "test_cuda_primary_ctx.py": 2, "test_cuda_nvml_based_avail.py": 1, "test_cuda_trace.py": 1,
    "test_cuda_sanitizer.py": 1, "test_multiprocessing.py": 2,
    "profiler/test_memory_profiler.py": 1,
    "inductor/test_cudagraph_trees.py": 1,
}  # fmt: skip
APART: Final = ("test_cuda_primary_ctx.py", "test_cuda_nvml_based_avail.py")
"""Each test wants a process of its own."""
VALUES: Final = ("Tensor-likes are not", "Scalars are not", "not close", "Booleans mismatch")


class Row(NamedTuple):
    """A test: of which file, what came of it, and the first line of its error."""

    file: str
    test: str
    outcome: str
    error: str


def run_file(checkout: Path, python: str, file: str) -> list[Row]:
    """Runs a file's tests, all in one process or each in its own."""
    if file not in APART:
        return run_tests(checkout, python, file, file)
    listed = subprocess.run(
        [*command(python, file), "--collect-only"], cwd=checkout / "test", text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    names = [line for line in listed.stdout.splitlines() if "::" in line]
    return [row for name in names for row in run_tests(checkout, python, file, name)]


def command(python: str, file: str) -> list[str]:
    """What runs pytest on the phantom."""
    ullage = str(Path(sys.executable).with_name("ullage"))
    return [
        ullage, "run", "--gpu", "h100-80gb", "--gpus", str(FILES[file]), "--python", python,
        "--quiet", "--", "-m", "pytest", "--noconftest", "-q", "-p", "no:cacheprovider",
        f"--timeout={LIMIT_S}", "--timeout-method=signal",
    ]  # fmt: skip


def run_tests(checkout: Path, python: str, file: str, which: str) -> list[Row]:
    """Runs a file, or one test of it."""
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.xml"
        subprocess.run(
            [*command(python, file), f"--junitxml={report}", which],
            cwd=checkout / "test", check=False, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, timeout=3600,
        )  # fmt: skip
        if not report.exists():
            return [Row(file, which, "failed", "the process ended before its report")]
        cases = ElementTree.parse(report).iter("testcase")
        return [read_case(file, case) for case in cases]


def read_case(file: str, case: ElementTree.Element) -> Row:
    """What came of a test: "values" where it compares what kernels compute, "slow" at the limit."""
    name = f"{case.get('classname', '').rpartition('.')[2]}.{case.get('name')}"
    for child in case:
        text = f"{child.get('message') or ''} {child.text or ''}"
        error = (child.get("message") or "").strip().partition("\n")[0][:160]
        if child.tag == "skipped":
            return Row(file, name, "skipped", "")
        if child.tag in {"failure", "error"}:
            is_slow = "Timeout" in text
            is_of_values = any(word in text for word in VALUES)
            outcome = "slow" if is_slow else "values" if is_of_values else "failed"
            return Row(file, name, outcome, error)
    return Row(file, name, "passed", "")


def render(rows: list[Row], source: str, torch: str) -> str:
    """The page."""
    about = (
        f"Tests of {source}, on {torch}, `h100-80gb`. *values*: compares what kernels compute, "
        "which none does here. *failed*: all else, among it what the environment lacks; each "
        "with the first line of its error in [torch-tests.csv](torch-tests.csv). *slow*: not ended "
        f"within {LIMIT_S} s."
    )
    head = "| file | passed | values | failed | slow | skipped |\n|---|--:|--:|--:|--:|--:|"
    mark = "<!-- written by python -m benchmarks.torch_tests -->"
    lines = ["# PyTorch's own tests on the phantom", "", mark, "", about, "", head]
    for file in FILES:
        counts = Counter(row.outcome for row in rows if row.file == file)
        if counts:
            kinds = ("passed", "values", "failed", "slow", "skipped")
            lines.append(f"| {file} | {' | '.join(str(counts[kind]) for kind in kinds)} |")
        else:
            lines.append(f"| {file} | not run | | | | |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Runs what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--checkout", type=Path, metavar="DIR")
    parser.add_argument("--python", metavar="PYTHON")
    parser.add_argument("--only", choices=FILES, action="append")
    args = parser.parse_args()
    if args.checkout is None or args.python is None:
        print("PyTorch's tests were left out: they need --checkout DIR and --python PYTHON")
        return
    asked = "import torch; print(torch.__version__)"
    torch = subprocess.run([args.python, "-c", asked], capture_output=True, text=True, check=True)
    stated = args.checkout / "version.txt"
    source = stated.read_text().strip() if stated.exists() else args.checkout.name
    files = args.only or list(FILES)
    rows = []
    if TABLE.exists():
        with TABLE.open(encoding="utf-8", newline="") as table:
            rows = [Row(**row) for row in csv.DictReader(table) if row["file"] not in files]
    for file in files:
        found = run_file(args.checkout, args.python, file)
        print(file, dict(Counter(row.outcome for row in found)), flush=True)
        rows += found
    rows.sort(key=lambda row: (list(FILES).index(row.file), row.test))
    with TABLE.open("w", encoding="utf-8", newline="") as table:
        writer = csv.writer(table, lineterminator="\n")
        writer.writerows([Row._fields, *rows])
    page = render(rows, source, f"torch {torch.stdout.strip()}")
    PAGE.write_text(page, encoding="utf-8")
    print(f"Wrote {PAGE}")


if __name__ == "__main__":
    main()
