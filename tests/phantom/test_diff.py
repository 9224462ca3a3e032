"""Pairs of runs of which the second takes more for one known reason: `ullage diff` names it."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.explain.compare.causes import CauseKind
from ullage.explain.moments.phase_peaks import FIRST_STEP, HELD, LATER_STEPS, SETUP
from ullage.ground.errors import SnapshotError, SpecError
from ullage.log.model import Category
from ullage.verbs.explain.function import explain_file

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
        options=("--alloc-conf", "expandable_segments:True",),
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


EARLY = ("--optimizer", "AdamW", "--batch", "96")


@pytest.mark.parametrize("is_turned", [False, True], ids=["second", "first"])
def test_a_run_that_ended_in_its_first_forward_is_compared_up_to_there(
    run_program: RunProgram,
    is_turned: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    runs = [
        run_program("regressions.py", "--optimizer", "AdamW"),
        run_program("regressions.py", *EARLY, options=("--budget", "2GiB")),
    ]
    found = compare(*(runs[::-1] if is_turned else runs))
    early = 0 if is_turned else 1
    which, how = (("first", "1/24"), ("second", "24x"))[early]
    assert found.report.until == f"forward, where the {which} ran out of memory"
    assert found.document["compared_until"] == found.report.until
    # As far as both went, both have the same blocks, of another batch.
    for change in found.report.by_category:
        assert change.before.num_blocks == change.after.num_blocks
        assert change.category is not Category.OPTIMIZER_STATE
    kinds = [cause.kind for cause in found.causes]
    assert CauseKind.OPTIMIZER not in kinds and CauseKind.SCALE in kinds
    scale = found.causes[kinds.index(CauseKind.SCALE)]
    assert f"length, {how} as large" in scale.text
    assert scale.changed_bytes == pytest.approx(found.changed_bytes, rel=0.01)
    assert [one.name for one in found.report.differences] == ["arguments"]
    assert sum(one.changed_bytes for one in found.report.by_site) == found.changed_bytes
    # Neither findings of the run that went on, nor what the request was short of, changed the peak.
    codes = {cause.code for cause in found.causes if cause.code}
    assert "UL101" not in codes and "UL154" in codes
    assert all(cause.changed_bytes == 0 for cause in found.causes if cause.code == "UL154")
    assert f"compared up to {found.report.until}" in found.text()


def test_a_recomputation_is_no_other_sequence(run_program: RunProgram) -> None:
    adam = ("--optimizer", "AdamW")
    runs = [run_program("regressions.py", *adam, *flags) for flags in ((), ("--checkpoint",))]
    for pair in (runs, runs[::-1]):
        causes = compare(*pair).causes
        assert causes[0].kind is CauseKind.CHECKPOINTING
        assert CauseKind.SCALE not in {cause.kind for cause in causes}
        # The optimizer's states are a larger share of a smaller peak, and as large as before.
        assert "UL101" not in {cause.code for cause in causes}


def test_more_process_groups_are_more_memory_outside_pytorch(run_program: RunProgram) -> None:
    options = ("--world-size", "8", "--rank", "0")
    runs = [run_program("distributed/groups.py", count, options=options) for count in ("1", "9")]
    found = compare(*runs)
    document = found.document
    assert document["changed_outside_bytes"] > 5 << 30 and found.changed_bytes == 0
    assert {cause.kind for cause in found.causes} == {CauseKind.OUTSIDE}
    assert sum(cause.changed_bytes for cause in found.causes) == document["changed_outside_bytes"]
    assert "NCCL's buffers for collectives, outside PyTorch: 1 to 9" in found.causes[0].text
    assert re.match(r"the peaks are the same: .* allocated, \+\d.\d\d GiB outside", found.text())


def test_the_same_number_of_larger_parameters_is_told_so(run_program: RunProgram) -> None:
    found = compare(run_program("regressions.py"), run_program("regressions.py", "--width", "1024"))
    assert "another model: the same 43 parameters, 3.50x as large (" in found.causes[0].text


def test_a_document_stands_for_its_snapshot_or_for_the_peaks(
    run_program: RunProgram, tmp_path: Path
) -> None:
    runs = run_program("regressions.py"), run_program("regressions.py", "--batch", "8")
    whole = compare(*runs)
    for number, run in enumerate(runs):
        (tmp_path / f"{number}.json").write_text(run.stdout)
    # The documents name the snapshots by the paths that --snapshot had.
    found = ullage.diff(tmp_path / "0.json", runs[1].directory / "snapshot.pickle")
    assert found.document == whole.document
    explained = explain_file(runs[1].directory / "snapshot.pickle").document
    (tmp_path / "explained.json").write_text(json.dumps(explained))
    found = ullage.diff(tmp_path / "0.json", tmp_path / "explained.json")
    assert found.document == whole.document
    for number, run in enumerate(runs):
        document = {**run.document, "snapshot": "gone.pickle"}
        (tmp_path / f"{number}.json").write_text(json.dumps(document))
    found = ullage.diff(tmp_path / "0.json", tmp_path / "1.json")
    for name in ("changed_allocated_bytes", "changed_reserved_bytes", "changed_outside_bytes"):
        assert found.document[name] == whole.document[name]
    sizes = {row["name"]: row["changed_bytes"] for row in found.document["by_category"]}
    assert sizes == {row["name"]: row["changed_bytes"] for row in whole.document["by_category"]}
    assert "the peaks alone" in found.text() and "  blocks" not in found.text()
    with pytest.raises(SpecError, match="a page needs both snapshots"):
        _ = found.html
    (tmp_path / "0.json").write_text('{"schema": "ullage.plan/1", "actions": []}')
    with pytest.raises(SnapshotError, match="whose snapshot is gone; expected a snapshot"):
        ullage.diff(tmp_path / "0.json", tmp_path / "1.json")


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
