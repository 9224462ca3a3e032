"""`ullage record --kernels`, and the clock corrected by it. No GPU is here: under the virtual clock
the profiler gets the clock's own times, so that a correction by them has to be none.
"""

from __future__ import annotations

import pickle
from functools import partial
from pathlib import Path

import pytest
from tests.phantom.bare_gpu import recorder
from tests.phantom.conftest import RunProgram, find_program

import ullage
from ullage.clock.correction import find_correction
from ullage.clock.costs import cost_of
from ullage.clock.reading import given_work
from ullage.facts.gpus import find_gpu
from ullage.ground.errors import SnapshotError, SpecError
from ullage.log.field_checks import read
from ullage.log.kernel_times import KernelTime, KernelTimes

pytestmark = pytest.mark.phantom
H100 = find_gpu("h100-80gb")


def test_kernels_that_take_what_the_clock_says_correct_nothing(run_program: RunProgram) -> None:
    outcome = run_program("kernel_times.py", options=("--clock", "virtual"))
    assert outcome.printed["remark"] is None
    rows = read(tuple[KernelTime, ...], outcome.printed["rows"], "rows")
    works = [given_work(row) for row in outcome.record.work_log.works]
    correction = find_correction(
        KernelTimes(H100.name, is_phantom=True, rows=rows), works, partial(cost_of, H100)
    )
    factors = dict(correction.factors)
    # Equal ones may have operands of other sizes: with torch 2.6 to 2.15 it is 0.98 to 1.03.
    assert factors.pop("memory-bound kernels") == pytest.approx(1.0, rel=0.05)
    kinds = "matrix products in bfloat16", "attention"
    assert factors == pytest.approx(dict.fromkeys(kinds, 1.0), rel=1e-3)
    # Every kernel of the step is one of the run's, or a product.
    found = sum(int(line.rpartition(": ")[2].split()[0]) for line in correction.basis[:3])
    assert found == len(rows)


def test_a_step_is_timed_with_the_factors_of_a_recording(
    run_program: RunProgram, thin_python: Path, tmp_path: Path
) -> None:
    """A recording in which products take 0.8 times as long, and other kernels 1.5 times."""
    plain = run_program("kernel_times.py", options=("--clock", "virtual"))
    rows = [[*row[:4], (0.8 if row[1] else 1.5) * row[4]] for row in plain.printed["rows"]]
    measured = {"mode": "counters", "driver": None, "num_lost": 0, "step_peaks": [],
                "is_phantom": True, "kernels": rows}  # fmt: skip
    recording = tmp_path / "recording.pickle"
    fields = plain.snapshot["ullage"] | {"measured": measured}
    recording.write_bytes(pickle.dumps({**plain.snapshot, "ullage": fields}))
    options = ("--measured", str(recording), "--steps", "4")
    corrected = run_program("kernel_times.py", options=options).document["time"]
    assert any("1.50 times the clock's seconds" in line for line in corrected["basis"])
    before, after = (
        {kind["name"]: kind["busy_s"][1] for kind in time["kinds"]}
        for time in (plain.document["time"], corrected)
    )
    for kind, factor in (("matrix products", 0.8), ("memory-bound kernels", 1.5)):
        assert after[kind] / before[kind] == pytest.approx(factor, rel=0.05), kind
    with pytest.raises(SpecError, match="recorded on 'NVIDIA H100 80GB HBM3', and the device is"):
        ullage.run(
            [find_program("kernel_times.py")], gpu="l4", measured=recording, python=thin_python
        )


@pytest.mark.slow
@pytest.mark.fresh
def test_a_record_without_times_of_kernels_says_why(thin_python: Path, tmp_path: Path) -> None:
    outcome = recorder(thin_python, tmp_path)(
        "mlp_phases/train.py", options=("--kernels", "--mode", "counters")
    )
    assert outcome.exit_code == 0, outcome.stderr
    remark = "no times of kernels: the program made fewer than three steps"
    assert remark in outcome.document["warnings"]
    with pytest.raises(SnapshotError, match="has no times of kernels; expected the file of"):
        ullage.run(
            ["train.py"], gpu="h100-80gb", measured=tmp_path / "snapshot.pickle",
            python=thin_python,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.fresh
def test_the_programs_own_profiler_comes_first(thin_python: Path, tmp_path: Path) -> None:
    """Two at once end the process by a signal."""
    outcome = recorder(thin_python, tmp_path)(
        "kernel_times.py", "own", options=("--kernels", "--mode", "counters")
    )
    assert outcome.exit_code == 0, outcome.stderr
    warnings = outcome.document["warnings"]
    assert "no times of kernels: the program uses PyTorch's profiler itself" in warnings


def test_the_programs_own_clocks_are_not_corrected() -> None:
    with pytest.raises(SpecError, match="leave it or --clock virtual out"):
        ullage.run(["train.py"], gpu="h100-80gb", measured="any.pickle", clock="virtual")
