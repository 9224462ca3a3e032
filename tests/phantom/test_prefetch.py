"""`ullage.prefetch`: the loader's batches in its order, copied from pinned memory on a stream of
their own; no thread stays.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.phantom.conftest import RunProgram, environment, execute

import ullage

pytestmark = pytest.mark.phantom
PROGRAM = "recording/prefetches.py"
SOURCE = str(Path(ullage.__file__).parents[1])


def test_batches_and_random_numbers_are_the_loaders(run_program: RunProgram) -> None:
    plain, prefetched, ahead = (
        run_program(PROGRAM, SOURCE, how) for how in ("plain", "prefetch", "ahead")
    )
    rows = plain.printed["rows"]
    assert len(rows) == 12
    assert prefetched.printed["rows"] == rows
    # Read ahead, the loader of this process may draw before the step does: the order stays.
    assert [index for index, _ in ahead.printed["rows"]] == [index for index, _ in rows]
    for outcome in (prefetched, ahead):
        document = outcome.printed
        assert document["length"] == 6
        assert document["during"] == ["ullage-prefetch"]
        assert document["after"] == document["after_error"] == []
        assert (document["before_error"], document["error"]) == (5, "row 20 is broken")


def test_a_loader_with_workers_is_read_ahead_and_gives_the_same(run_program: RunProgram) -> None:
    plain, prefetched = (run_program(PROGRAM, SOURCE, how, "1") for how in ("plain", "prefetch"))
    assert prefetched.printed["rows"] == plain.printed["rows"]
    assert prefetched.printed["after"] == []


@pytest.mark.parametrize("how", ["prefetch", "ahead"])
def test_the_copies_are_pinned_and_on_a_stream_of_their_own(
    run_program: RunProgram, how: str
) -> None:
    copies = {}
    for each in ("plain", how):
        outcome = run_program(PROGRAM, SOURCE, each)
        assert outcome.record.copies is not None
        copies[each] = outcome.record.copies
    of_plain = copies["plain"].size_bytes == 4 * (1 << 17) * 4
    of_batches = copies[how].size_bytes == 4 * (1 << 17) * 4
    assert of_plain.sum() == 12
    assert not copies["plain"].is_pinned[of_plain].any()
    assert of_batches.sum() >= 12
    assert copies[how].is_pinned[of_batches].all()
    assert not copies[how].is_waited_for[of_batches].any()
    assert set(copies[how].stream[of_batches]).isdisjoint(copies["plain"].stream[of_plain])


def test_findings_about_copies_are_gone(run_program: RunProgram) -> None:
    codes = {}
    for how in ("plain", "prefetch"):
        outcome = run_program(PROGRAM, SOURCE, how)
        findings = ullage.explain_file(outcome.directory / "snapshot.pickle").findings
        codes[how] = {finding.rule.code for finding in findings}
    assert "UL161" in codes["plain"]
    assert codes["prefetch"].isdisjoint({"UL161", "UL162"})


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
