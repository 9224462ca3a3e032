"""`ullage record --kernels`, and the clock corrected by it. No GPU is here: under the virtual clock
the profiler gets the clock's own times, so that a correction by them has to be none.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from tests.phantom.bare_gpu import recorder
from tests.phantom.conftest import RunProgram

import ullage
from ullage.clock.correction import find_correction
from ullage.clock.cost import Category
from ullage.clock.costs import cost_of
from ullage.clock.reading import given_work
from ullage.errors import SnapshotError, SpecError
from ullage.gpus import find_gpu
from ullage.trace.kernel_times import KernelTimes, parse_kernel

pytestmark = pytest.mark.phantom
H100 = find_gpu("h100-80gb")


def test_kernels_that_take_what_the_clock_says_correct_nothing(run_program: RunProgram) -> None:
    outcome = run_program("kernel_times.py", options=("--clock", "virtual"))
    assert outcome.printed["remark"] is None
    rows = tuple(map(parse_kernel, outcome.printed["rows"]))
    works = [given_work(row) for row in outcome.record.work_log.works]
    correction = find_correction(
        KernelTimes(H100.name, is_phantom=True, rows=rows), works, partial(cost_of, H100)
    )
    kinds = Category.MATRIX_PRODUCTS, Category.ATTENTION, Category.MEMORY_BOUND
    assert correction.factors == pytest.approx(dict.fromkeys(kinds, 1.0), rel=1e-3)
    # Every kernel of the step is one of the run's, or a product.
    found = sum(int(line.rpartition(": ")[2].split()[0]) for line in correction.basis[:3])
    assert found == len(rows)


@pytest.mark.slow
@pytest.mark.fresh
def test_where_the_profiler_sees_no_kernel_the_record_says_so(
    thin_python: Path, tmp_path: Path
) -> None:
    outcome = recorder(thin_python, tmp_path)("kernel_times.py", options=("--kernels",))
    assert outcome.exit_code == 0, outcome.stderr
    warnings = " ".join(outcome.document["warnings"])
    assert "no times of kernels" in warnings
    with pytest.raises(SnapshotError, match="has no times of kernels; expected the file of"):
        ullage.run(
            ["train.py"], gpu="h100-80gb", measured=tmp_path / "snapshot.pickle",
            python=thin_python,
        )  # fmt: skip


def test_the_programs_own_clocks_are_not_corrected() -> None:
    with pytest.raises(SpecError, match="leave it or --clock virtual out"):
        ullage.run(["train.py"], gpu="h100-80gb", measured="any.pickle", clock="virtual")
