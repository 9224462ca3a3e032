"""Runs PyTorch's own tests of its CUDA allocator, streams, graphs, NVML and memory tools on the
phantom, and writes docs/results/tests.md and torch-tests.csv.

    python -m benchmarks.torch_tests --checkout DIR --python ENV/bin/python [--only test_cuda.py]

DIR is a checkout, or an unpacked source package, of the PyTorch that the tests are of, outside of
this repository; without it nothing is run, and that is said. ENV is made by `ullage env
--with-triton`, with pytest, pytest-timeout, expecttest, hypothesis, numpy, scipy, psutil,
parameterized, nvidia-ml-py, pulp and pwlf. The rows of other torches, and of files that are not
run again, stay. A test that compares what kernels compute cannot pass; the column *values* counts
those. What fails otherwise has its class by the text of its error, or is run again alone.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final, NamedTuple
from xml.etree import ElementTree

from benchmarks.provenance import made_by, torch_version
from benchmarks.results import RESULTS, publish

TABLE: Final = RESULTS / "torch-tests.csv"
LIMIT_S: Final = 120
LEAKS, EXPANDABLE = " with the leak check", " with expandable segments"
# The files and folders, and how many GPUs they want.
FILES: Final = {
    "test_cuda.py": 1, "test_cuda.py" + EXPANDABLE: 1, "test_cuda.py" + LEAKS: 1,
    "test_cuda_multigpu.py": 2, "test_cuda_primary_ctx.py": 2, "test_cuda_nvml_based_avail.py": 1,
    "test_cuda_trace.py": 1, "test_cuda_sanitizer.py": 1, "test_multiprocessing.py": 2,
    "distributed/_tools": 2, "distributed/fsdp/test_fsdp_memory.py": 2,
    "distributed/_composable/fsdp/test_fully_shard_memory.py": 2,
    "profiler/test_memory_profiler.py": 1, "inductor/test_cudagraph_trees.py": 1,
}  # fmt: skip
APART: Final = (
    "test_cuda_primary_ctx.py", "test_cuda_nvml_based_avail.py", "inductor/test_cudagraph_trees.py",
)  # fmt: skip
"""Each test wants a process of its own; in the last one a test that fails keeps graphs alive."""
VARIABLES: Final = {
    "test_cuda.py" + EXPANDABLE: {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    "test_cuda.py" + LEAKS: {"PYTORCH_TEST_CUDA_MEM_LEAK_CHECK": "1"},
}
"""What the file's own main would have set, or who runs it."""
VALUES: Final = re.compile(
    r"Tensor-likes are not|Scalars are not close|did not match control|RuntimeError: \(?'?Failed on"
    r"|\.item\(\)|deviation|expected randint|in test_fixed_cuda_assert|in test_grad_scaling_multi"
    r"|AssertionError not raised|in test_live_outputs_multiple_graphs"
)
"""What a test says that compares what kernels compute."""


class Rule(NamedTuple):
    """Why a test fails: by words of its error, its class and the reason."""

    words: str
    kind: str
    reason: str


ENVIRONMENT, LIMIT, OLD = "environment", "limit", "old"
FOLLOWS, OTHER = "follows", "other"
RULES: Final = (
    Rule(r"URLError", ENVIRONMENT, "no network"),
    Rule(r"building extension|CUDA_HOME|cuda\.h: No such", ENVIRONMENT, "no CUDA toolkit"),
    Rule(r"\bis_alive\b", ENVIRONMENT, "its processes have 10 s, and the machine is slower"),
    Rule(r"requires the cuda-bindings package", ENVIRONMENT, "no cuda-bindings"),
    Rule(
        r"'(?:torch\.cuda|torch\._C|MemPool)'.* has no attribute|Unrecognized key 'foo'"
        r"|\bactive_pool_ids\b|flag leak detected|converted to type int32_t|\(True, True\) != True"
        r"|!= 'LAZY'|number of active blocks|delta of active\.small_pool|\bcheck_workspace_size\b"
        r"|in test_allocate_in_thread_to_pool|in test_categories_e2e_|in test_(?:local_model|ac):",
        OLD, "this torch does it in another way than the torch that the test is of",
    ),
    Rule(
        r"in test_cuda_tracker_equivalence:|in test_tracker_with_activation_checkpointing:", OLD,
        "this torch takes the workspace of cuBLAS for each backward pass, and gives it back",
    ),
    Rule(r"NVMLError_NotSupported", LIMIT, "temperature, power and load are not known"),
    Rule(
        r"\.query\(\)", LIMIT,
        "when work is done: an event with timing as soon as it is asked, others once waited for",
    ),
    Rule(
        r"confirmed a leak in .*test_cusparse_multiple_threads", LIMIT,
        "the size of a sparse tensor is by more indices than are known; its thread's error leaks",
    ),
    Rule(r"in test_stream_event_nogil", LIMIT, "without the clock a record is a millisecond"),
    Rule(r"in test_lazy_init", LIMIT, "a list for another machine hides no simulated device"),
    Rule(
        r"specified values in sparse COO", LIMIT, "unknown indices are taken to be all different"
    ),
    Rule(
        r"in test_fallback_to_eager_if_recompiling_too_many_times:", LIMIT,
        "PyTorch's history of memory, which is on, keeps the code of its stacks",
    ),
    Rule(
        r"in test_data_flow_graph_complicated|in test_match_schemas", LIMIT,
        "a profile does not show the parts of an operation with a number for a tensor",
    ),
)  # fmt: skip


class Row(NamedTuple):
    """A test: on which torch, of which file, what came of it, why it failed, and the first line of
    its error."""

    torch: str
    file: str
    test: str
    outcome: str
    kind: str
    reason: str
    error: str


class Suite(NamedTuple):
    """What runs the tests: where they are, and in which environment."""

    checkout: Path
    python: str
    torch: str

    def file(self, file: str) -> list[Row]:
        """Runs a file's tests, all in one process, or each in its own where one is not enough."""
        path = file.partition(" with")[0]
        rows = None if file in APART else self.run(file, path)
        if rows is None:
            with tempfile.TemporaryDirectory() as directory:
                listed = self.pytest(file, Path(directory), "--collect-only", path)
            names = [line.removeprefix("test/") for line in listed.splitlines() if "::" in line]
            rows = [row for name in names for row in self.alone(file, name)]
        return [self.explain(row) if row.kind == OTHER else row for row in rows]

    def explain(self, row: Row) -> Row:
        """Runs a failed test again, alone."""
        if row.file in APART or not is_passed(self.alone(row.file, row.test)):
            return row
        return row._replace(kind=FOLLOWS, reason="passes alone, fails after others")

    def alone(self, file: str, test: str) -> list[Row]:
        """Runs one test, in a process of its own."""
        lost = Row(
            self.torch, file, test, "failed", OTHER, "", "the process ended without a report"
        )
        return self.run(file, test) or [lost]

    def run(self, file: str, which: str) -> list[Row] | None:
        """Runs a file, or one test of it; None: the process ended before its report."""
        with tempfile.TemporaryDirectory() as directory:
            report = Path(directory, "report.xml")
            self.pytest(file, Path(directory), f"--junitxml={report}", which)
            if not report.exists():
                return None
            rows = [
                read_case(self.torch, file, c) for c in ElementTree.parse(report).iter("testcase")
            ]
            return list({row.test: row for row in reversed(rows)}.values())  # one may fail twice

    def pytest(self, file: str, directory: Path, *arguments: str) -> str:
        """Runs pytest on the phantom; what it printed. It has an hour, and a minute from its report
        on: a test that failed may have left processes that wait for it.
        """
        command = [
            str(Path(sys.executable).with_name("ullage")), "run", "--gpu", "h100-80gb", "--gpus",
            str(FILES[file]), "--python", self.python, "--snapshot",
            str(directory / "snapshot.pickle"), "--", "-m", "pytest", "--noconftest", "-q", "-p",
            "no:cacheprovider", "-p", "no:logging", f"--timeout={LIMIT_S}",
            "--timeout-method=signal", *arguments,
        ]  # fmt: skip
        output = directory / "output"
        with output.open("w") as printed, subprocess.Popen(
            command, cwd=self.checkout / "test", env=os.environ | VARIABLES.get(file, {}),
            stdout=printed, stderr=subprocess.DEVNULL, start_new_session=True,
        ) as process:  # fmt: skip
            until = time.monotonic() + 3600
            while process.poll() is None and time.monotonic() < until:
                time.sleep(0.5)
                if (directory / "report.xml").exists():
                    until = min(until, time.monotonic() + 60)
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        return output.read_text()


def is_passed(rows: list[Row]) -> bool:
    """Whether there are tests, and all passed."""
    return bool(rows) and all(row.outcome == "passed" for row in rows)


def read_case(torch: str, file: str, case: ElementTree.Element) -> Row:
    """What came of a test: "values" where it compares what kernels compute, "slow" at the limit."""
    module, _, group = case.get("classname", "").removeprefix("test.").rpartition(".")
    test = f"{module.replace('.', '/')}.py::{group}::{case.get('name')}"
    for child in case:
        text = f"in {case.get('name')}: {child.get('message') or ''} {child.text or ''}"
        error = (child.get("message") or "").strip().partition("\n")[0][:160]
        if child.tag == "skipped":
            return Row(torch, file, test, "skipped", "", "", "")
        if child.tag in {"failure", "error"}:
            if VALUES.search(text) and "Timeout" not in text:
                return Row(torch, file, test, "values", "", "", error)
            rules = (rule[1:] for rule in RULES if re.search(rule.words, text))
            kind, reason = next(rules, (OTHER, ""))
            outcome = "slow" if "Timeout" in text else "failed"
            return Row(torch, file, test, outcome, kind, reason, error)
    return Row(torch, file, test, "passed", "", "", "")


KINDS: Final = {
    ENVIRONMENT: "what the environment lacks", LIMIT: "a limit that the documentation states",
    OLD: "the test is older than the torch",
    FOLLOWS: "passes in a process of its own", OTHER: "all else",
}  # fmt: skip


def render(rows: list[Row], source: str) -> str:
    """The page."""
    torches = sorted({row.torch for row in rows})
    made = made_by("benchmarks.torch_tests --checkout DIR --python PY", torch=" and ".join(torches))
    lines = [
        "# PyTorch's own tests on the phantom", "", made, "",
        f"The tests of CUDA memory, streams, graphs, NVML and memory tools of {source}, on a "
        "simulated `h100-80gb`. *values*: it compares what kernels compute, which none does here. "
        + " ".join(f"*{kind}*: {text}." for kind, text in KINDS.items())
        + f" *slow*: not ended within {LIMIT_S} s, and counted in its class, too. Each test is in "
        "[torch-tests.csv](torch-tests.csv).",
    ]  # fmt: skip
    for torch in torches:
        lines += ["", f"## On torch {torch}", "", *table_of([r for r in rows if r.torch == torch])]
    return "\n".join(lines) + "\n"


def table_of(rows: list[Row]) -> list[str]:
    """The counts of each file, and the tests that fail for another reason than values."""
    columns = ("passed", "values", *KINDS, "slow", "skipped")
    lines = [f"| file | {' | '.join(columns)} |", "|---|" + "--:|" * len(columns)]
    for file in FILES:
        own = [row for row in rows if row.file == file]
        counts = Counter(row.outcome for row in own) + Counter(row.kind for row in own)
        cells = [str(counts[column]) if own else "" for column in columns]
        lines.append(f"| {file} | {' | '.join(cells)} |")
    lines += ["", "| file | fails, but for values | class | reason |", "|---|---|---|---|"]
    for row in rows:
        if row.kind:
            name = row.test.rpartition("::")[2]
            reason = row.reason or f"`{row.error.replace('|', '')}`"
            lines.append(f"| {row.file} | {name} | {row.kind} | {reason} |")
    return lines


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
    suite = Suite(args.checkout, args.python, torch_version(args.python))
    stated = args.checkout / "version.txt"
    version = f", version.txt {stated.read_text().strip()}" if stated.exists() else ""
    source = f"{args.checkout.name}{version}"
    files = args.only or list(FILES)
    rows = []
    if TABLE.exists():
        with TABLE.open(encoding="utf-8", newline="") as table:
            rows = [Row(**row) for row in csv.DictReader(table)]
    for file in files:
        rows = [row for row in rows if (row.torch, row.file) != (suite.torch, file)]
        found = suite.file(file)
        print(file, dict(Counter(row.outcome for row in found)), flush=True)
        rows += found
        rows.sort(key=lambda row: (row.torch, list(FILES).index(row.file), row.test))
        with TABLE.open("w", encoding="utf-8", newline="") as written:
            writer = csv.writer(written, lineterminator="\n")
            writer.writerows([Row._fields, *rows])
        publish("torch-tests-sum", render(rows, source))


if __name__ == "__main__":
    main()
