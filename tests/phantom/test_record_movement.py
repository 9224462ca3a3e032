"""`ullage record` on the bare phantom: copies, pinned memory and waits for batches, and what is
found of them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import MAIN, Outcome, RunProgram, execute, find_program

import ullage
from ullage.explain.rules.rule import Finding
from ullage.log.reader import read_record

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RecordProgram = Callable[..., Outcome]
SOURCE = str(Path(ullage.__file__).parents[1])
PROGRAM = "recording/pipeline.py"
OF_PIPELINE = {"UL161", "UL162", "UL163", "UL164", "UL165"}
NUM_KEPT = 1 << 15  # players/inside/csrc/copies.c
# The link of this GPU is not PCIe: UL164 does not depend on how long the steps take here.
GPU = "gh200"


@pytest.fixture
def record(thin_python: Path, tmp_path: Path) -> RecordProgram:
    """`record("modules.py")` runs `ullage record --json`."""

    def run(*program: str) -> Outcome:
        command = [
            sys.executable, "-c", MAIN, "record", "--json", "--python", str(thin_python),
            "--snapshot", str(tmp_path / "snapshot.pickle"),
            "--", find_program(program[0]), *program[1:],
        ]  # fmt: skip
        (tmp_path / "ullage.toml").write_text("[record]\npublish = false\n")
        (tmp_path / "snapshot.pickle").unlink(missing_ok=True)
        outcome = Outcome(*execute(command, tmp_path, bare(thin_python)), tmp_path)
        assert outcome.exit_code == 0, outcome.stderr
        return outcome

    return run


def bare(python: Path) -> dict[str, str]:
    return dict(bare_environment(python, gpu=GPU))


def findings(outcome: Outcome) -> dict[str, Finding]:
    """Those about the input pipeline."""
    explained = ullage.explain_file(outcome.directory / "snapshot.pickle").findings
    return {one.rule.code: one for one in explained if one.rule.code in OF_PIPELINE}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "codes"),
    [
        ("in_line", {"UL164"}),
        ("starving", {"UL161", "UL165"}),
        pytest.param("pageable", {"UL161"}, marks=pytest.mark.nightly),
    ],
)
def test_a_wrong_pipeline_is_found_and_prefetch_is_the_remedy(
    record: RecordProgram, how: str, codes: set[str]
) -> None:
    wrong = findings(record(PROGRAM, SOURCE, how))
    assert set(wrong) == codes
    assert all("ullage.prefetch" in finding.change for finding in wrong.values())
    assert findings(record(PROGRAM, SOURCE, how, "--clean")) == {}


@pytest.mark.nightly
def test_workers_that_starve_the_gpu_are_found(record: RecordProgram) -> None:
    finding = findings(record(PROGRAM, SOURCE, "starving", "--workers"))["UL165"]
    assert "the DataLoader has 1 worker process" in finding.evidence
    assert "more workers" in finding.change


def in_order_of_streams(copies: list[list[int]]) -> list[list[int]]:
    """Rows with the number of a stream in place of its handle."""
    numbers: dict[int, int] = {}
    return [[*row[:4], numbers.setdefault(row[4], len(numbers)), row[5]] for row in copies]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(("recording/prefetches.py", SOURCE, "prefetch"), id="prefetch"),
        *(
            pytest.param(program, marks=pytest.mark.nightly, id=Path(program[0]).stem)
            for program in ((PROGRAM, SOURCE, "in_line"), ("faults/awaited_batches.py",),
                            ("faults/pinned_history.py",), ("gpt2/train.py",))
        ),
    ],
)  # fmt: skip
def test_a_record_has_the_copies_that_the_gpu_saw(
    record: RecordProgram, run_program: RunProgram, program: tuple[str, ...]
) -> None:
    mine, theirs = (
        outcome.snapshot["ullage"] for outcome in (record(*program), run_program(*program, gpu=GPU))
    )
    assert len(mine["copies"]) > 1
    assert in_order_of_streams(mine["copies"]) == in_order_of_streams(theirs["copies"])
    assert mine["pinned"] == theirs["pinned"]
    assert mine["pinned_peak_bytes"] == theirs["pinned_peak_bytes"] > 0


@pytest.mark.slow
def test_calls_go_where_they_went_and_the_last_copies_are_kept(
    thin_python: Path, tmp_path: Path
) -> None:
    command = [str(thin_python), find_program("recording/slots.py"), SOURCE, str(tmp_path)]
    code, stdout, stderr = execute(command, tmp_path, bare(thin_python))
    assert code == 0, stderr
    document = json.loads(stdout.splitlines()[-1])
    before, events, then, full, later, counters, after = document["changed"]
    assert before == then == later == counters == after == []
    assert {"cudaMemcpyAsync", "cudaStreamSynchronize", "cudaHostAlloc", "cudaLaunchKernel"} <= {
        slot.split()[1] for slot in events
    }
    assert full == events
    record = read_record(tmp_path / "events.pickle")
    assert record.copies is not None
    assert len(record.copies) == NUM_KEPT
    assert record.num_lost_copies == document["num_copies"] - NUM_KEPT
    assert record.copies.size_bytes[-1] == 1 << 20
    assert record.copies.is_waited_for.tolist() == [False] * (NUM_KEPT - 1) + [True]
    assert record.copies.is_pinned.all(), "pinned before or during the recording"
    of_counters: Any = read_record(tmp_path / "counters.pickle")
    assert (of_counters.copies, of_counters.pinned, of_counters.batch_waits) == (None, None, None)
