"""Pairs of runs of which the second takes more for one known reason: `ullage diff` names it."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.explain.compare.causes import CauseKind
from ullage.explain.moments.phase_peaks import FIRST_STEP, HELD, LATER_STEPS, SETUP

from .test_faults import FAULTS  # noqa: TID252 - the tests are no package

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Pair:
    """How the second run of regressions.py differs, and what is to be named: a kind of cause, with
    words in its text, or a difference.
    """

    after: tuple[str, ...]
    kind: CauseKind | None
    words: str
    before: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


PAIRS = {
    "twice the batch": Pair(("--batch", "8"), CauseKind.SCALE, "batch or sequence length, 2x"),
    "three times the batch": Pair(("--batch", "12"), CauseKind.SCALE, "sequence length, 3x"),
    "twice the length": Pair(
        ("--length", "1024", "--eager-attention"), CauseKind.SCALE, "another sequence length, 2x",
        before=("--eager-attention",),
    ),
    "twice the length, fused attention": Pair(
        ("--length", "1024"), CauseKind.SCALE, "batch or sequence length, 2x"
    ),
    "half to single precision": Pair(
        (), CauseKind.PRECISION, "2x the bytes each", before=("--dtype", "bfloat16")
    ),
    "single to double precision": Pair(
        ("--dtype", "float64"), CauseKind.PRECISION, "2x the bytes each"
    ),
    "more layers": Pair(("--layers", "6"), CauseKind.MODEL, "another model"),
    "a wider model": Pair(("--width", "1024"), CauseKind.MODEL, "another model"),
    "a larger vocabulary": Pair(("--vocabulary", "16384"), CauseKind.MODEL, "another model"),
    "another optimizer": Pair(("--optimizer", "AdamW"), CauseKind.OPTIMIZER, "2 times"),
    "momentum": Pair(("--momentum", "0.9"), CauseKind.OPTIMIZER, "1 times"),
    "momentum to two moments": Pair(
        ("--optimizer", "Adam"), CauseKind.OPTIMIZER, "were 1 times", before=("--momentum", "0.9")
    ),
    "checkpointing left out": Pair(
        (), CauseKind.CHECKPOINTING, "turned off", before=("--checkpoint",)
    ),
    "attention written out": Pair(
        ("--length", "1024", "--eager-attention"), CauseKind.CHOICE, "attention scores",
        before=("--length", "1024"),
    ),
    "a second copy of the weights": Pair(("--average",), CauseKind.MODEL, "2 times"),
    "hidden states kept": Pair(
        ("--keep-hidden", "--steps", "8"), CauseKind.FAULT, "pile up", before=("--steps", "8")
    ),
    "another setting of the allocator": Pair(
        (), None, "setting expandable_segments",
        options=("--alloc-conf", "expandable_segments:True"),
    ),
}  # fmt: skip
BY_DAY = {"twice the batch", "checkpointing left out", "another optimizer", "more layers"}


def marked(name: str, by_day: bool) -> Any:  # noqa: FBT001 - a column of a table
    return pytest.param(name, marks=[] if by_day else pytest.mark.nightly)


def compare(before: Any, after: Any) -> ullage.Diff:
    """The comparison of two outcomes."""
    for outcome in (before, after):
        assert outcome.document["verdict"] != "failed", outcome.stderr
    return ullage.diff(*(one.directory / "snapshot.pickle" for one in (before, after)))


@pytest.mark.parametrize("name", [marked(name, name in BY_DAY) for name in PAIRS])
def test_the_cause_comes_first(run_program: RunProgram, name: str) -> None:
    pair = PAIRS[name]
    before = run_program("regressions.py", *pair.before)
    found = compare(before, run_program("regressions.py", *pair.after, options=pair.options))
    if pair.kind is None:
        assert pair.words in [one.name for one in found.report.differences]
    else:
        assert [cause.kind for cause in found.causes[:1]] == [pair.kind], found.causes
        assert pair.words in found.causes[0].text
        assert found.causes[0].changed_bytes > 0


@pytest.mark.parametrize(
    "name", [marked(name, name in {"kept_graphs", "forgotten_no_grad"}) for name in FAULTS]
)
def test_a_fault_is_named_by_its_rule(run_program: RunProgram, name: str) -> None:
    gpu = "t4" if name == "leaks_until_full" else "h100-80gb"
    clean, faulty = (
        run_program(f"faults/{name}.py", *flags, gpu=gpu) for flags in (("--clean",), ())
    )
    rules = [cause.code for cause in compare(clean, faulty).causes if cause.code]
    # What leaks until memory runs out is named by what leaks, too.
    assert FAULTS[name][0] in rules[: 2 if name == "leaks_until_full" else 1]
    gone = [cause for cause in compare(faulty, clean).causes if cause.code in rules]
    # What the fault makes worse, such as fragmentation, may be in both.
    assert gone and gone[0].text.startswith(f"no longer {rules[0]}")
    assert all(cause.text.startswith(("no longer UL", "in both, UL")) for cause in gone)
    assert all(cause.changed_bytes <= 0 for cause in gone)


def test_two_runs_of_the_same_have_no_cause(run_program: RunProgram) -> None:
    found = compare(run_program("regressions.py"), run_program("regressions.py", turn=1))
    assert (found.changed_bytes, found.causes, found.report.by_site) == (0, (), ())
    assert found.report.differences == ()


def test_more_steps_of_the_same_are_no_cause(run_program: RunProgram) -> None:
    found = compare(run_program("regressions.py"), run_program("regressions.py", "--steps", "5"))
    assert (found.changed_bytes, found.causes) == (0, ())
    assert [one.name for one in found.report.differences] == ["arguments"]


def test_phases_are_those_of_the_run_document(run_program: RunProgram) -> None:
    runs = run_program("regressions.py"), run_program("regressions.py", "--batch", "8")
    found = {one.name: one for one in compare(*runs).report.phases}
    for name in ("forward", "backward", "optimizer"):
        wanted = [
            max(step["phases"][name]["peak_allocated_bytes"] for step in run.device["steps"])
            for run in runs
        ]
        assert [found[name].before_bytes, found[name].after_bytes] == wanted
        assert sum(one.changed_bytes for one in found[name].by_site) == found[name].changed_bytes
        assert sum(one.changed_bytes for one in found[name].by_category) == wanted[1] - wanted[0]
    # Only the batch is there before the first forward pass, and the parameters.
    tokens = 4 * 512 * 8
    assert found[SETUP].changed_bytes == tokens
    logits = 4 * 512 * 4096 * 4
    assert logits < found[HELD].changed_bytes < 1.1 * logits


def test_what_nobody_recorded_is_aligned_by_rounds(run_program: RunProgram, tmp_path: Path) -> None:
    """The same snapshots without what ullage wrote into them."""
    paths = []
    for number, flags in enumerate([("--clean",), ()]):
        outcome = run_program("faults/kept_graphs.py", *flags)
        raw = {key: value for key, value in outcome.snapshot.items() if key != "ullage"}
        paths.append(tmp_path / f"{number}.pickle")
        paths[-1].write_bytes(pickle.dumps(raw))
    found = ullage.diff(*paths)
    assert not found.report.is_known
    changed = {one.name: one.changed_bytes for one in found.report.phases}
    assert set(changed) == {FIRST_STEP, LATER_STEPS, HELD}
    assert changed[LATER_STEPS] == found.changed_bytes > 0
    assert abs(changed[FIRST_STEP]) < 0.1 * changed[LATER_STEPS]


def test_the_page_shows_both(run_program: RunProgram) -> None:
    found = compare(run_program("regressions.py"), run_program("regressions.py", "--batch", "8"))
    assert found.html.count('class="run"') == 2
    assert '"kind":"scale"' in found.html
