"""A sweep: what separate runs say, to the byte, in one table; and nothing of it is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RunProgram = Callable[..., Any]

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs"
LINEAR = str(PROGRAMS / "linear.py")
GPT2 = str(ROOT / "examples" / "gpt2" / "train.py")
MAIN = "from ullage.cli import main; main()"
MIB = 2**20
TIMEOUT_S = 120
# Of a device what hangs on the moment, not on the program.
FIGURES = (
    "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "peak_used_bytes",
    "num_allocs", "num_segments", "num_ooms", "at_peak", "ledger", "steps",
)  # fmt: skip


def run_sweep(thin_python: Path, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`ullage run WORDS` under the environment of the tests."""
    return subprocess.run(
        [sys.executable, "-c", MAIN, "run", "--python", str(thin_python), *words],
        cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        env={**os.environ, "NO_COLOR": "1", "COLUMNS": "80"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def gpt2_sweep(thin_python: Path) -> ullage.Sweep:
    """GPT-2 at three batch sizes."""
    program = [GPT2, "--batch-size", "{batch}", "--steps", "2"]
    return ullage.sweep(program, sweep={"batch": [1, 2, 4]}, gpu="rtx-4090", python=thin_python)


@pytest.mark.slow
def test_a_sweep_says_what_separate_runs_say(
    gpt2_sweep: ullage.Sweep, run_program: RunProgram
) -> None:
    assert gpt2_sweep.report.fresh_because == "", "two of them were forked from a warm process"
    separate = [
        run_program("gpt2/train.py", "--batch-size", batch, "--steps", "2", gpu="rtx-4090")
        for batch in ("1", "2", "4")
    ]
    for run, outcome in zip(gpt2_sweep.runs, separate, strict=True):
        document, expected = run.document, outcome.document
        for figure in FIGURES:
            assert document["devices"][0][figure] == expected["devices"][0][figure], figure
        assert document["basis"] == expected["basis"]
        assert document["exit_code"] == expected["exit_code"] == 0
        assert document["warnings"] == expected["warnings"]


@pytest.mark.slow
def test_the_line_is_that_of_separate_runs_to_the_byte(
    gpt2_sweep: ullage.Sweep, run_program: RunProgram
) -> None:
    xs = (1, 2, 4)
    ys = [
        run_program("gpt2/train.py", "--batch-size", str(x), "--steps", "2", gpu="rtx-4090")
        .device["peak_allocated_bytes"]
        for x in xs
    ]  # fmt: skip
    (line,) = gpt2_sweep.lines
    assert line.num_points == 3
    # Least squares by the closed form, in whole numbers until the end.
    n, sx, sy = len(xs), sum(xs), sum(ys)
    sxx, sxy = sum(x * x for x in xs), sum(x * y for x, y in zip(xs, ys, strict=True))
    below = n * sxx - sx * sx
    assert line.bytes_per_unit == round((n * sxy - sx * sy) / below)
    assert line.fixed_bytes == round((sy * sxx - sx * sxy) / below)


@pytest.mark.slow
def test_a_forked_run_sees_what_a_fresh_one_sees(thin_python: Path, tmp_path: Path) -> None:
    def told(batches: list[int], name: str) -> list[dict[str, Any]]:
        program = [LINEAR, "--batch", "{batch}", "--told", str(tmp_path / f"{name}-{{batch}}")]
        sweep = ullage.sweep(program, sweep={"batch": batches}, gpu="t4", python=thin_python)
        assert sweep.report.fresh_because == "" and sweep.exit_code == 0
        return [json.loads((tmp_path / f"{name}-{batch}").read_text()) for batch in batches]

    fresh = told([3], "x")[0]
    forked = told([1, 2, 3], "x")[2]
    assert forked == fresh
    assert fresh["argv"] == [LINEAR, "--batch", "3", "--told", str(tmp_path / "x-3")]
    assert fresh["main"] and fresh["stdin"] == "" and fresh["path"] == str(PROGRAMS)
    assert not any(name.startswith("ULLAGE_WARM") for name in fresh["variables"])


@pytest.mark.slow
def test_several_gpus_are_one_table_with_the_smallest_named(
    thin_python: Path, tmp_path: Path
) -> None:
    words = ("--gpu", "a100-40gb,l4,t4", "--json", "--", LINEAR, "--mib", str(16 * 1024))
    done = run_sweep(thin_python, tmp_path, *words, "--told", "told")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "ullage.sweep/1"
    assert [run["gpu"] for run in document["runs"]] == ["a100-40gb", "l4", "t4"]
    verdicts = [run["run"]["verdict"] for run in document["runs"]]
    assert verdicts == ["fits", "fits", "out_of_memory"], "16 GiB"
    names = [run["run"]["devices"][0]["name"] for run in document["runs"]]
    assert [name.split("-")[0].split()[-1] for name in names] == ["A100", "L4", "T4"]
    assert document["smallest_gpu"] == "l4"


@pytest.mark.slow
def test_a_table_a_plot_and_what_fits(thin_python: Path, tmp_path: Path) -> None:
    words = ("--gpu", "t4", "--sweep", "batch=1,2,500,2000", "-o", "plot.svg")
    done = run_sweep(
        thin_python, tmp_path, *words, "-o", "sweep.json", "--", LINEAR, "--batch", "{batch}"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("largest that fits: batch=500 (run); the linear fit predicts ")
    assert lines[-2:] == ["Wrote plot.svg", "Wrote sweep.json"]
    assert "  64.00 MiB + 16.00 MiB per batch (3 runs, to the byte)" in lines
    (line,) = json.loads((tmp_path / "sweep.json").read_text())["lines"]
    assert (line["fixed_bytes"], line["bytes_per_unit"]) == (64 * MIB, 16 * MIB)
    # What is left of the device, and not one batch more: the forecast, run.
    forecast = line["forecast"]
    words = ("--gpu", "t4", "--sweep", f"batch={forecast},{forecast + 1}", "--json")
    again = run_sweep(thin_python, tmp_path, *words, "--", LINEAR, "--batch", "{batch}")
    verdicts = [run["run"]["verdict"] for run in json.loads(again.stdout)["runs"]]
    assert verdicts == ["fits", "out_of_memory"]
    assert (tmp_path / "plot.svg").read_text().lstrip().startswith("<?xml")
    assert {path.name for path in tmp_path.iterdir()} == {"plot.svg", "sweep.json"}


@pytest.mark.slow
def test_a_program_that_fails_is_shown_and_does_not_stop_the_others(
    thin_python: Path, tmp_path: Path
) -> None:
    words = ("--sweep", "batch=1,2,3", "--", LINEAR, "--batch", "{batch}", "--fail-at", "2")
    done = run_sweep(thin_python, tmp_path, "--gpu", "t4", *words)
    assert done.returncode == 3
    assert done.stderr.count("ValueError: a batch of 2 is not wanted") == 1
    assert "fork.py" not in done.stderr and "sitecustomize" not in done.stderr
    assert done.stdout.count("failed") == 2, "in the table and below it"
    assert "(batch=2)" in done.stdout
    assert "16.00 MiB per batch (2 runs" in done.stdout


@pytest.mark.slow
def test_a_program_that_sets_variables_before_torch_is_started_afresh(
    thin_python: Path, tmp_path: Path
) -> None:
    words = ("--sweep", "mib=1,2,3", "--", str(PROGRAMS / "sets_variable.py"), "{mib}")
    done = run_sweep(thin_python, tmp_path, "--gpu", "t4", *words)
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert (
        "every run started a new process" in text
        and "sets OMP_NUM_THREADS before it imports torch" in text
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_run_outlives_a_sweep(thin_python: Path, tmp_path: Path, number: int) -> None:
    words = ("--sweep", "s=0,1,2,3", "--", str(PROGRAMS / "sleeps.py"), "{s}", str(tmp_path / "p"))
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", MAIN, "run", "--gpu", "t4", "--python", str(thin_python), *words],
        cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(temporary)},
    ) as process:  # fmt: skip
        try:
            pids = wait_for_lines(tmp_path / "p", 2)
            process.send_signal(number)
            stdout, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    pids = (tmp_path / "p").read_text().split()
    deadline = time.monotonic() + 10
    while any(is_running(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not any(is_running(pid) for pid in pids)
    if number != signal.SIGKILL:
        assert process.returncode == 130
        assert "interrupted: the table has the runs that had finished" in stdout
        assert list(temporary.iterdir()) == []


def wait_for_lines(path: Path, num_lines: int) -> list[str]:
    """The lines of a file, as soon as it has so many."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        lines = path.read_text().split() if path.exists() else []
        if len(lines) >= num_lines:
            return lines
        time.sleep(0.05)
    pytest.fail(f"{path} did not get {num_lines} lines")


def is_running(pid: str) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
