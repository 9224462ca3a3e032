"""What libraries keep of a device beside PyTorch's allocator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from ullage.explain.rules.registry import find_findings
from ullage.explain.snapshot import explain_snapshot
from ullage.log.snapshot_reader import read_snapshot

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]
MB = 1_000_000
# Plans in torch's cache, and MB of the device in use; of the program below, with CUDA 12.1.
PUBLISHED = ((32, 212), (64, 234), (128, 262), (4096, 2222))


def test_each_plan_of_cufft_that_torch_keeps_holds_memory(run_program: RunProgram) -> None:
    outcome = run_program("fft_plans.py", "4200", "0", gpu="t4")
    assert outcome.exit_code == 0, outcome.stderr
    used = {name: size - outcome.printed["cleared"] for name, size in outcome.printed.items()}
    most = used["1"]
    assert used["4096"] == 4096 * most
    assert used["kept 32"] == 32 * most, "what leaves the cache is given back"
    (entry,) = [
        entry
        for entry in outcome.document["basis"]["device"]["assumptions"]
        if entry["what"] == "cuFFT plans"
    ]
    assert (entry["count"], entry["high_bytes"]) == (4200, used["4096"])
    least = entry["low_bytes"] // 4096
    for (few, before), (many, after) in pairwise(PUBLISHED):
        assert (many - few) * least <= (after - before) * MB <= (many - few) * most
    findings = find_findings(explain_snapshot(read_snapshot(outcome.directory / "snapshot.pickle")))
    assert "UL149" in {finding.rule.code for finding in findings}


def test_plans_for_which_there_is_no_room_are_an_out_of_memory(run_program: RunProgram) -> None:
    outcome = run_program("fft_plans.py", "4200", "13", gpu="t4")
    assert (outcome.exit_code, outcome.document["verdict"]) == (1, "out_of_memory")
