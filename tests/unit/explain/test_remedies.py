"""Whether remedies make a program fit, by arithmetic on its trace; sizes in MiB, by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ullage.explain import remedies
from ullage.explain.remedies import Room, derive_trials, derive_whole, freed_at, room_of
from ullage.explain.rules.registry import find_findings
from ullage.explain.rules.rule import Finding
from ullage.explain.snapshot import SnapshotReport
from ullage.explain.trial import MakesItFit, Relief, Trial
from ullage.explain.whatif.remedies import edit_lives
from ullage.ground.units import MIB

ReportOf = Callable[..., SnapshotReport]
LEAK = "[3900 w+100 " + " ".join(f"F y{n}+500@main:6 f S" for n in range(7)) + " !400:100"


def tried(report: SnapshotReport) -> dict[str, tuple[Finding, Trial]]:
    """The findings and what is said of their remedies, by code."""
    findings = derive_trials(report, find_findings(report))
    return {one.rule.code: (one, one.trial) for one in findings if one.trial is not None}


def test_expandable_segments_cannot_help_a_job_of_five_times_the_device(
    report_of: ReportOf,
) -> None:
    """1.4 GiB of it lie in holes, and 20 GiB are asked for of a device of 4 GiB."""
    lengths = " ".join(f"[{n} a{n}+{n} a{n}-" for n in range(100, 200, 10))
    script = f"{lengths} b+100 !20480:1400"
    finding, trial = tried(report_of(script))["UL141"]
    assert "expandable_segments" in finding.change
    assert trial.makes_it_fit is MakesItFit.NO
    assert trial.peak_bytes == (100 + 20480) * MIB
    assert "no setting of the allocator" in trial.reason


def test_a_request_that_has_room_in_pieces_is_left_open(report_of: ReportOf) -> None:
    trial = tried(report_of("[3900 a+100 w+3000 b+800 a- !150:100", has_record=True))["UL152"][1]
    assert trial.makes_it_fit is MakesItFit.NOT_KNOWN
    assert "the trace ends with it" in trial.reason


def test_what_frees_less_than_was_missing_cannot_help(report_of: ReportOf) -> None:
    few = "[3900 w+3300 " + " ".join(f"F y{n}+100@main:6 f S" for n in range(5)) + " !900:100"
    trial = tried(report_of(few, has_record=True))["UL112"][1]
    assert trial.makes_it_fit is MakesItFit.NO
    assert trial.peak_bytes == (3300 + 100 + 900) * MIB  # what the last step made stays
    enough = tried(report_of(LEAK, has_record=True))["UL112"][1]
    assert enough.makes_it_fit is MakesItFit.NOT_KNOWN


def test_a_program_that_did_not_run_out_has_its_peak_under_the_remedy(report_of: ReportOf) -> None:
    script = "[65536 " + " ".join(f"N x{n}+9@f:1 y{n}+9@f:2 f x{n}- S" for n in range(6))
    trial = tried(report_of(script, has_record=True))["UL112"][1]
    assert trial.makes_it_fit is MakesItFit.NOT_KNOWN
    assert "did not run out" in trial.reason
    assert trial.peak_bytes == 18 * MIB  # x5 and y5: the others go with their steps


def test_all_of_a_program_that_ran_out_are_looked_at_and_else_three(report_of: ReportOf) -> None:
    fits, failed = report_of("[64 a+4"), report_of(LEAK, has_record=True)
    five = [replace(find_findings(failed)[-1], relief=None)] * 5
    for report, count in ((fits, 3), (failed, 5)):
        derived = derive_trials(report, five)
        assert [one.trial is not None for one in derived] == [True] * count + [False] * (5 - count)


@pytest.mark.parametrize(("limit", "answer"), [(200, MakesItFit.NO), (700, MakesItFit.NOT_KNOWN)])
def test_of_a_whole_trace_the_peak_decides(
    report_of: ReportOf, limit: int, answer: MakesItFit
) -> None:
    report = report_of(LEAK.partition(" !")[0], has_record=True)
    (finding,) = [one for one in find_findings(report) if one.rule.code == "UL112"]
    (derived,) = derive_whole(report, [finding], limit * MIB)
    assert derived.trial is not None
    assert derived.trial.makes_it_fit is answer
    assert derived.trial.peak_bytes == 600 * MIB


def test_a_limit_of_the_process_is_less_than_the_device_has(report_of: ReportOf) -> None:
    shortage = report_of("[400 w+300 !300:900").devices[0].shortage
    assert shortage is not None
    assert room_of(shortage) == Room((400 + 300) * MIB - 1, 600 * MIB)


@pytest.mark.parametrize(
    ("relief", "freed"),
    [
        (Relief(np.array([0, 1])), 300), (Relief(np.array([0]), left_frac=0.5), 50),
        (Relief(np.array([0, 1]), np.array([1, 99])), 100), (Relief(np.array([2])), 0),
    ],
)  # fmt: skip
def test_what_a_relief_frees_is_what_is_live(
    report_of: ReportOf, relief: Relief, freed: int
) -> None:
    (device,) = report_of("[600 a+100 b+200 c+50 c- d+1").devices
    event = int(device.replay.blocks.birth[3])
    assert freed_at(relief, device.replay, event) == freed * MIB


def test_a_replay_frees_before_what_comes_in_its_place(report_of: ReportOf) -> None:
    (device,) = report_of("[600 a+100 b+200 a- b-").devices
    came = int(device.replay.blocks.birth[1])
    edited = edit_lives(device.replay, Relief(np.array([0]), np.array([came])))
    assert int(edited.blocks.death[0]) == came - 1
    smaller = edit_lives(device.replay, Relief(np.array([0]), left_frac=0.25))
    assert smaller.blocks.requested_bytes.tolist() == [25 * MIB, 200 * MIB]
    gone = edit_lives(device.replay, Relief(np.array([1])))
    assert gone.blocks.requested_bytes.tolist() == [100 * MIB, 1]


def test_steps_that_are_alike_show_what_the_next_one_needs(report_of: ReportOf) -> None:
    step = "F x#+300 f B x#- b O o S"
    alike = " ".join(step.replace("#", str(n)) for n in range(4))
    grows = " ".join(step.replace("#", str(n)).replace("300", f"{300 + 50 * n}") for n in range(4))
    for script, answer in (
        (f"[900 w+500 {alike} F z+100 !200:0", True),
        (f"[900 w+500 {alike} F z+100 !300:0", False),  # more than a step has shown to need
        (f"[1200 w+500 {grows} F z+100 !200:0", False),
        ("[900 w+500 F z+100 !200:0", False),
    ):
        (device,) = report_of(script, has_record=True).devices
        assert remedies.shows_whole_steps(None, device) is answer


# ---- Attention


LINE = "    return F.scaled_dot_product_attention(\n        q, k, v,\n        is_causal=True)\n"
SOURCE = f"import torch\nDTYPE = torch.{{dtype}}\ndef attention(q, k, v):\n{LINE}"
OWN = "import torch\ndef attention(q, k, v):\n    s = q @ k.mT\n    return s.softmax(-1) @ v\n"


def scores(file: str, line: int) -> str:
    """Steps in which a line of a file makes scores of attention."""
    turn = f"F a#+9@f:1 b#+9@f:2 c#+90@f:3>{file}/attention:{line} f B a#- b#- c#- b S"
    return "[65536 " + " ".join(turn.replace("#", str(number)) for number in range(3))


def attention(
    report_of: ReportOf, path: Path, line: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> Finding:
    """The finding about scores that a line of a file made on a device."""
    monkeypatch.setattr(
        "ullage.explain.rules.attention_path._capability_of",
        lambda _case: {"T4": (7, 5), "A100": (8, 0)}[device],
    )
    report = report_of(scores(str(path), line), has_record=True)
    (finding,) = [one for one in find_findings(report) if one.rule.code == "UL123"]
    return finding


@pytest.mark.parametrize("line", [4, 5, 6])
def test_scores_of_the_fused_function_are_of_the_math_path(
    report_of: ReportOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: int
) -> None:
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(dtype="bfloat16"))
    finding = attention(report_of, path, line, "T4", monkeypatch)
    assert "bfloat16 on compute capability 7.5" in "\n".join(finding.evidence)
    assert "float16" in finding.change and "scaled_dot_product_attention" not in finding.change


@pytest.mark.parametrize(("dtype", "device"), [("bfloat16", "A100"), ("float32", "T4")])
def test_where_the_cause_is_not_known_all_are_named(
    report_of: ReportOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, device: str
) -> None:
    path = tmp_path / "model.py"
    path.write_text(SOURCE.format(dtype=dtype))
    finding = attention(report_of, path, 4, device, monkeypatch)
    assert "math path" in "\n".join(finding.evidence)
    assert "float64" in finding.change and "enable_gqa" in finding.change


def test_scores_that_the_program_writes_out_are_its_own(
    report_of: ReportOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model.py"
    path.write_text(OWN)
    finding = attention(report_of, path, 3, "T4", monkeypatch)
    assert finding.change == finding.rule.change


def test_where_the_file_is_gone_both_are_said(
    report_of: ReportOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finding = attention(report_of, tmp_path / "gone.py", 3, "T4", monkeypatch)
    assert "where the line calls it already" in finding.change
