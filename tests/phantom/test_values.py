"""Values on a GPU where kernels do not run: what is known is true, what is not is owned up to."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.log.model import EventKind, Record

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

PROGRAMS = Path(__file__).parent.parent / "programs"
WITHOUT_VALUES = ("[run] values = false",)
FOLLOWED = {
    "gpt2": ("gpt2/train.py", "--batch-size", "2", "--seq-len", "256"),
    "conv_net": ("conv_net.py",),
    "tiny_llama": ("tiny_llama.py",),
}


def marked_lines(program: str, mark: str) -> set[int]:
    """Numbers of the lines of a program that a comment marks."""
    lines = (PROGRAMS / program).read_text().splitlines()
    return {number for number, line in enumerate(lines, 1) if f"# {mark}" in line}


def listed_lines(outcome: Any, program: str) -> set[int]:
    """Numbers of the lines that the basis lists."""
    found = [re.match(rf"{program}:(\d+) in ", where) for where in outcome.reads]
    return {int(match[1]) for match in found if match}


def canonical(record: Record) -> list[tuple[int, int, int]]:
    """The events' sizes, with each run of consecutive frees in a fixed order."""
    events = record.events
    columns = (events.kind, events.size_bytes, events.reserved_bytes)
    found: list[tuple[int, int, int]] = []
    run: list[tuple[int, int, int]] = []
    for row in zip(*(column.tolist() for column in columns), strict=True):
        is_free = row[0] == EventKind.BLOCK and row[1] < 0
        if is_free:
            run.append(row)
        else:
            found += [*sorted(run), row]
            run = []
    return found + sorted(run)


def test_known_values_are_true_values(run_program: RunProgram) -> None:
    outcome = run_program("known_values.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert "done" in outcome.stderr


def test_known_values_are_not_listed_as_assumed(run_program: RunProgram) -> None:
    assert run_program("known_values.py").reads == {}


def test_what_a_kernel_has_written_is_listed_wherever_it_is_read(run_program: RunProgram) -> None:
    outcome = run_program("unknown_values.py")
    assert outcome.exit_code == 0, outcome.stderr
    wanted = marked_lines("unknown_values.py", "unknown")
    assert len(wanted) > 20
    missing = wanted - listed_lines(outcome, "unknown_values.py")
    assert not missing, "read, and answered, without being listed"


def test_nothing_else_is_listed(run_program: RunProgram) -> None:
    outcome = run_program("unknown_values.py")
    either = marked_lines("unknown_values.py", "either")
    wanted = marked_lines("unknown_values.py", "unknown")
    assert not listed_lines(outcome, "unknown_values.py") - wanted - either


def test_values_that_the_host_has_copied_come_back(run_program: RunProgram) -> None:
    outcome = run_program("small_values.py")
    assert (outcome.exit_code, "same" in outcome.stderr) == (0, True), outcome.stderr
    assert outcome.reads == {}


READS = (
    ("if not torch.isfinite(norm)", "host read"),
    ("torch.isfinite(loss).all()", "host read"),
    ("torch.equal(x, x.clone())", "host read"),
    ("loss.item()", "host read"),
    ("x[0, :4].tolist()", "host read"),
    ("x.sum(dim=0).cpu()", "host read"),
    ("torch.unique(x.argmax(dim=1))", "unique"),
    ("x[x.amax(dim=1) > 0]", "index"),
    ("values.gt(0.5).nonzero()", "nonzero"),
)


@pytest.mark.parametrize(("code", "what"), READS, ids=[code for code, _ in READS])
def test_each_common_read_is_listed_with_its_place(
    run_program: RunProgram, code: str, what: str
) -> None:
    outcome = run_program("reads_values.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert "done" in outcome.stderr
    lines = (PROGRAMS / "reads_values.py").read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if code in line]
    found = [
        entry
        for where, entries in outcome.reads.items()
        for entry in entries
        if where.startswith(f"reads_values.py:{number} in ")
    ]
    assert any(entry.startswith(what) for entry in found), found


def test_a_basis_with_unknown_values_is_assumed_and_says_how_often(
    run_program: RunProgram,
) -> None:
    allocator = run_program("reads_values.py").document["basis"]["allocator"]
    assert allocator["kind"] == "assumed"
    counts = {made["count"] for made in allocator["assumptions"] if made["where"]}
    assert counts == {3}, "three steps, each place once a step"


def test_a_mask_that_the_host_can_know_is_not_assumed(run_program: RunProgram) -> None:
    outcome = run_program("reads_values.py")
    assert "mask: some" in outcome.stderr
    lines = (PROGRAMS / "reads_values.py").read_text().splitlines()
    number = 1 + next(i for i, line in enumerate(lines) if "if mask.all()" in line)
    assert not any(where.startswith(f"reads_values.py:{number} ") for where in outcome.reads)


@pytest.mark.slow
def test_generation_gives_as_many_tokens_as_were_asked_for(run_program: RunProgram) -> None:
    outcome = run_program("generate_kv.py")
    assert outcome.exit_code == 0, outcome.stderr
    assert "32" in outcome.stderr.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(
    "implementation", ["eager", pytest.param("", marks=pytest.mark.nightly, id="grouped")]
)
def test_a_router_of_experts_runs_to_its_end(run_program: RunProgram, implementation: str) -> None:
    outcome = run_program("mixtral_router.py", *implementation.split())
    assert outcome.exit_code == 0, outcome.stderr
    assert "step 1" in outcome.stderr
    assert any("mixtral_router.py:" in where for where in outcome.reads), "loss.item() is listed"


@pytest.mark.slow
def test_the_choice_of_experts_is_listed_where_the_host_asks_for_it(
    run_program: RunProgram,
) -> None:
    reads = run_program("mixtral_router.py", "eager").reads
    shapes = [what for entries in reads.values() for what in entries if "worst case" in what]
    assert shapes


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLLOWED)
def test_following_values_changes_nothing_that_the_allocator_sees(
    run_program: RunProgram, name: str
) -> None:
    followed, bare = (
        run_program(*FOLLOWED[name]),
        run_program(*FOLLOWED[name], options=WITHOUT_VALUES),
    )
    assert (followed.exit_code, bare.exit_code) == (0, 0), followed.stderr + bare.stderr
    events = canonical(followed.record)
    assert len(events) > 100
    assert events == canonical(bare.record)
