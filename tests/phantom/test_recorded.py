"""What a record tells beside events: last uses, copies, names of what is held; and that noting it
changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ullage.log.model import MarkKind, Record
from ullage.verbs.explain.function import explain_file

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


def events_of_steps(record: Record) -> list[int]:
    """How many allocator events each step had."""
    ends = [mark.position for mark in record.marks if mark.kind is MarkKind.STEP]
    return np.diff([0, *ends]).tolist()


def test_what_is_written_is_what_the_schema_has(
    run_program: RunProgram, schema_differences: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert schema_differences(run_program("holds.py").snapshot["ullage"]) == []


def test_what_is_held_has_a_name(run_program: RunProgram) -> None:
    record = run_program("holds.py").record
    chains = {holder.chain for holder in record.holders}
    assert {"self.history[0][...] in train()", "self.history[3][...] in train()"} <= chains
    graph = max(record.graphs, key=lambda one: one.num_nodes)
    assert graph.chain == "total in train()"
    assert graph.num_nodes > 3 * 8


def test_the_finding_names_who_holds_it(run_program: RunProgram) -> None:
    findings = explain_file(run_program("holds.py").directory / "snapshot.pickle").findings
    kept = next(one for one in findings if one.rule.code == "UL111")
    assert any(line.startswith("held by total in train()") for line in kept.evidence)


def test_looking_for_names_keeps_nothing_alive(run_program: RunProgram) -> None:
    steps = events_of_steps(run_program("holds.py").record)
    # Names are looked for at the end of step 3; all steps from 2 on are alike.
    assert len(set(steps[2:])) == 1, steps


def test_every_use_is_within_the_life_of_a_block(run_program: RunProgram) -> None:
    record = run_program("peaks.py").record
    assert record.last_use is not None
    events, used = record.events, record.last_use.astype(np.int64)
    births = np.flatnonzero((events.kind == 0) & (events.size_bytes > 0))
    assert (used[np.setdiff1d(np.arange(len(events)), births)] == 0).all()
    # Blocks of this program are all written; a use comes after the birth, at the end at most.
    assert (used[births] > births).mean() > 0.95
    assert used.max() <= len(events)


def test_a_cache_that_grows_is_told_by_the_token(run_program: RunProgram) -> None:
    outcome = run_program("faults/concatenated_cache.py")
    explanation = explain_file(outcome.directory / "snapshot.pickle")
    tokens = explanation.document["devices"][0]["recorded"]["tokens"]
    # Keys and values of 16 sequences, 4 layers, 16 heads of 128, in bf16; 24 tokens after 2,048.
    assert tokens["token_bytes"] == 2 * 16 * 4 * 16 * 128 * 2
    assert tokens["num_tokens"] == 2048 + 24
    assert "512.0 KiB a token" in explanation.text(full=True)


def test_generated_code_is_named_where_it_can_be_opened(run_program: RunProgram) -> None:
    outcome = run_program("generated_code.py")
    (device,) = explain_file(outcome.directory / "snapshot.pickle").report.devices
    sites = {share.size_bytes >> 20: share.site for share in device.sites_at_peak}
    (stays,) = outcome.printed
    program = "programs/generated_code.py"
    assert sites[64] == f"{stays}:4 in make"
    assert sites[32] == f"{program}:35 in <module>", "the file is gone: where it is called"
    assert sites[16] == f"{program}:36 in <module>", "there is no file"


def test_the_timeline_adds_up_and_has_the_peak(run_program: RunProgram) -> None:
    outcome = run_program("holds.py")
    device = explain_file(outcome.directory / "snapshot.pickle").document["devices"][0]
    series = device["timeline"]
    assert max(series["allocated_bytes"]) == device["peak"]["allocated_bytes"]
    for parts in (series["by_category"], series["by_module"]):
        assert np.sum(list(parts.values()), axis=0).tolist() == series["allocated_bytes"]
