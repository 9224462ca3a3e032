"""`ullage.prefetch`: the loader's batches in its order, copied from pinned memory on a stream of
their own; no thread stays.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.phantom.conftest import Outcome, RunProgram, environment, execute

import ullage

pytestmark = pytest.mark.phantom
PROGRAM = "recording/prefetches.py"
SOURCE = str(Path(ullage.__file__).parents[1])
BATCH_BYTES = 4 * (1 << 17) * 4


def codes_of(outcome: Outcome) -> set[str]:
    """The rules of what is found in a run."""
    findings = ullage.explain_file(outcome.directory / "snapshot.pickle").findings
    return {finding.rule.code for finding in findings}


def test_a_loader_alone_is_copied_from_pageable_memory_on_the_programs_stream(
    run_program: RunProgram,
) -> None:
    outcome = run_program(PROGRAM, SOURCE, "plain")
    copies = outcome.record.copies
    assert copies is not None
    of_batches = copies.size_bytes == BATCH_BYTES
    assert of_batches.sum() == len(outcome.printed["rows"]) == 12
    assert not copies.is_pinned[of_batches].any()
    assert "UL161" in codes_of(outcome)


@pytest.mark.parametrize("how", ["prefetch", pytest.param("ahead", marks=pytest.mark.slow)])
def test_batches_are_the_loaders_and_copied_on_a_stream_of_their_own(
    run_program: RunProgram, how: str
) -> None:
    plain, outcome = (run_program(PROGRAM, SOURCE, each) for each in ("plain", how))
    document, rows = outcome.printed, plain.printed["rows"]
    # Read ahead, the loader of this process may draw before the step does: the order stays.
    assert [index for index, _ in document["rows"]] == [index for index, _ in rows]
    assert how == "ahead" or document["rows"] == rows
    assert document["length"] == 6
    assert document["during"] == ["ullage-prefetch"]
    assert document["after"] == document["after_error"] == []
    assert (document["before_error"], document["error"]) == (5, "row 20 is broken")
    copies, of_plain = outcome.record.copies, plain.record.copies
    assert copies is not None and of_plain is not None
    of_batches = copies.size_bytes == BATCH_BYTES
    assert of_batches.sum() >= 12
    assert copies.is_pinned[of_batches].all()
    assert not copies.is_waited_for[of_batches].any()
    streams = of_plain.stream[of_plain.size_bytes == BATCH_BYTES]
    assert set(copies.stream[of_batches]).isdisjoint(streams)
    assert codes_of(outcome).isdisjoint({"UL161", "UL162"})


@pytest.mark.slow
def test_a_loader_with_workers_is_read_ahead_and_gives_the_same(run_program: RunProgram) -> None:
    plain, prefetched = (run_program(PROGRAM, SOURCE, how, "1") for how in ("plain", "prefetch"))
    assert prefetched.printed["rows"] == plain.printed["rows"]
    assert prefetched.printed["after"] == []


WITHOUT_CUDA = """
import sys, threading
sys.path.insert(0, sys.argv[1])
import torch, ullage
assert not torch.cuda.is_available()
batches = [{"x": torch.ones(2)}, (torch.zeros(3), "text")]
loader = ullage.prefetch(batches, ahead=2)
for _ in range(2):
    assert all(mine is theirs for mine, theirs in zip(loader, batches, strict=True))
assert threading.active_count() == 1
print("passed through")
"""


def test_without_cuda_the_loaders_own_batches_come(thin_python: Path, tmp_path: Path) -> None:
    command = [str(thin_python), "-c", WITHOUT_CUDA, SOURCE]
    code, stdout, stderr = execute(command, tmp_path, environment({"CUDA_VISIBLE_DEVICES": ""}))
    assert (code, stdout) == (0, "passed through\n"), stderr
