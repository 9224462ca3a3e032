"""Remedies of programs that run out of memory, tried: what is said to help does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ullage.verbs.explain.function import explain_file

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]


def codes(outcome: Any) -> list[str]:
    """What is found in the snapshot of a run."""
    found = explain_file(outcome.directory / "snapshot.pickle").findings
    return [one.rule.code for one in found]


def test_a_leak_that_is_stopped_is_said_to_fit_and_does(run_program: RunProgram) -> None:
    outcome = run_program("faults/leaks_until_full.py", options=("--try-remedies",), gpu="t4")
    assert outcome.exit_code == 1
    findings = outcome.document["oom"]["findings"]
    tried = {one["code"]: one["tried"] for one in findings}
    assert tried["UL153"]["makes_it_fit"] == tried["UL112"]["makes_it_fit"] == "yes"
    assert tried["UL112"]["bytes"] < 1 << 30
    clean = run_program("faults/leaks_until_full.py", "--clean", gpu="t4")
    assert clean.document["verdict"] == "fits"


def test_bfloat16_on_turing_takes_the_math_path_and_float16_is_advised(
    run_program: RunProgram,
) -> None:
    outcome = run_program("gpt2/train.py", "--batch-size", "4", gpu="rtx-2060")
    findings = {one["code"]: one for one in outcome.document["oom"]["findings"]}
    attention = findings["UL123"]
    assert "bfloat16 on compute capability 7.5" in " ".join(attention["evidence"])
    assert "scaled_dot_product_attention" not in attention["change"]
    assert "float16" in attention["change"]


@pytest.mark.parametrize(
    ("pieces", "makes_it_fit", "verdict"),
    [("pages", "not_known", "fits"), ("halves", "no", "out_of_memory")],
)
def test_a_setting_is_replayed_before_it_is_advised(
    run_program: RunProgram, pieces: str, makes_it_fit: str, verdict: str
) -> None:
    findings = run_program("fragmented.py", pieces, gpu="t4").document["oom"]["findings"]
    settings = [one["tried"] for one in findings if "expandable_segments" in one["change"]]
    assert settings
    for tried in settings:
        # Where there is room, the trace ends with the request: what comes after was not seen.
        assert tried["makes_it_fit"] == makes_it_fit
        assert tried["reason"].startswith("replayed through PyTorch's allocator")
    again = run_program(
        "fragmented.py",
        pieces,
        options=(
            "--alloc-conf",
            "expandable_segments:True",
        ),
        gpu="t4",
    )
    assert again.document["verdict"] == verdict


@pytest.mark.nightly
def test_a_setting_that_was_run_and_did_not_help_says_so(run_program: RunProgram) -> None:
    program = ("gpt2/train.py", "--batch-size", "4")
    outcome = run_program(*program, options=("--try-remedies",), gpu="rtx-2060")
    findings = outcome.document["oom"]["findings"]
    settings = [one for one in findings if "expandable_segments" in one["change"]]
    assert [one["tried"]["makes_it_fit"] for one in settings] == ["no"]
    again = run_program(
        *program,
        options=(
            "--alloc-conf",
            "expandable_segments:True",
        ),
        gpu="rtx-2060",
    )
    assert again.document["verdict"] == "out_of_memory"


def test_the_forward_of_a_backward_is_no_unused_graph(run_program: RunProgram) -> None:
    assert "UL114" not in codes(run_program("linear_backward.py"))


def test_replays_of_a_file_alone_answer_too(run_program: RunProgram, thin_python: Path) -> None:
    outcome = run_program("faults/leaks_until_full.py", gpu="t4")
    path = outcome.directory / "snapshot.pickle"
    found = explain_file(path, try_remedies=True, python=thin_python).findings
    assert {one.trial.makes_it_fit.value for one in found if one.trial is not None} == {"yes"}
