"""Rules: what each finds, what it says of it, and where it keeps still; sizes in MiB, by hand."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.rows import each

from ullage.explain.rules.registry import RULES, find_findings, find_rule
from ullage.explain.rules.rule import Finding, Kind
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.errors import SpecError
from ullage.ground.units import MIB
from ullage.log.record_schema import PRECISIONS

ReportOf = Callable[..., SnapshotReport]


def repeat(pattern: str, count: int, before: str = "") -> str:
    """A pattern repeated, # standing for the number of the turn, after a segment of 64 GiB."""
    turns = " ".join(pattern.replace("#", str(number)) for number in range(count))
    return f"[65536 {before} {turns}"


def found(report: SnapshotReport) -> dict[str, Finding]:
    """The findings by their codes."""
    return {finding.rule.code: finding for finding in find_findings(report)}


STEP = "F x#+64@main:5>forward:2 f B g#+100=gradient x#- b O o g#- S"
WEIGHTS = "w+100@main:1=parameter"
USED_ONCE = "r+90@main:2 r~ w+9=parameter a+1 b+1 c+1 a- b- c-"
CASTS = (
    "F " + " ".join(f"c{n}_#+{n}@main:5" for n in range(8, 14)) + " x#+9 y#+9 z#+9 v#+9 fa B b O o "
    + " ".join(f"c{n}_#-" for n in range(8, 14)) + " x#- y#- z#- v#- S"
)  # fmt: skip


CONVERTED = (
    " ".join(f"w{n}+{2 * n}=parameter" for n in range(40, 46))
    + " "
    + " ".join(f"h{n}+{n}=parameter w{n}-" for n in range(40, 46))
)


def model_of(name: str) -> str:
    """The parameters of a model."""
    key = name.replace("#", "_")
    return " ".join(f"{key}_{n}+{n}@main:3=parameter/{name}.{n}.weight" for n in range(40, 44))


def cast_weights(times: int) -> str:
    """Weights that are so many times as large as what CASTS makes of them."""
    return " ".join(f"w{n}+{times * n}@main:1=parameter" for n in range(8, 14))


WIDE = (
    "F a#+$@f:1 b#+$@f:2 c#+$@f:3 f B t#+1 t#- u#+1 u#- v#+1 v#- y#+1 y#- a#- b#- c#- "
    "g#+100=gradient b O o g#- S"
)


# code: what has it, and the same without the fault; both with a record.
CASES = {
    "UL101": (
        repeat(STEP, 4, WEIGHTS + " m+200@main:7=optimizer_state"),
        repeat(STEP, 4, WEIGHTS + " m+100@main:7=optimizer_state"),
    ),
    "UL102": (
        repeat("F x#+4 f B g#+100=gradient x#- b O t#+100@main:7 t#- o g#- S", 3, WEIGHTS),
        repeat("F x#+4 f B g#+100=gradient x#- b O t#+9@main:7 t#- o g#- S", 3, WEIGHTS),
    ),
    "UL103": (
        repeat("F x#+64 f B x#- t+1 t- u+1 u- b O o S", 4,
               WEIGHTS + " F y+64 f B y- t+1 t- g+100=gradient u+1 u- b O o S"),
        repeat(STEP, 4, WEIGHTS),
    ),
    "UL105": (
        repeat(STEP, 3, " ".join(f"w{n}+{n}@main:1=parameter c{n}+{n}@main:2"
                                 for n in range(8, 14))),
        repeat(STEP, 3, " ".join(f"w{n}+{n}@main:1=parameter c{n}+{n + 1}@main:2"
                                 for n in range(8, 28, 2))),
    ),
    "UL106": (repeat(CASTS, 3, cast_weights(2)), repeat(CASTS, 3, cast_weights(3))),
    "UL107": (
        repeat(STEP, 3, CONVERTED),
        repeat(STEP, 3, CONVERTED.replace("=parameter", "")),
    ),
    "UL108": (
        repeat(STEP, 3, model_of("Net") + " F a+9 f a- " + model_of("Net#2")),
        repeat(STEP, 3, model_of("Net") + " F a+9 f a- " + model_of("Other#2")),
    ),
    "UL111": (
        repeat("F x#+9@main:5>forward:1 y#+9@main:5>forward:2 z#+9@main:5>forward:3 f S", 6),
        repeat("F x#+9@main:5>forward:1 y#+9@main:5>forward:2 z#+9@main:5>forward:3 f B b x#- y#- "
               "z#- S", 6),
    ),
    "UL112": (
        repeat("N x#+9@main:5>forward:1 y#+9@main:5>forward:2 f x#- S", 6),
        repeat("N x#+9@main:5>forward:1 y#+9@main:5>forward:2 f x#- y#- S", 6),
    ),
    "UL113": (
        repeat("F a#+50@forward:5 f l#+1k F b#+50@forward:5 f B a#- b#- b l#- O o S", 4),
        repeat("F a#+50@forward:5 f B a#- b F b#+50@forward:5 f B b#- b O o S", 4),
    ),
    "UL114": (
        repeat("F a#+20@f:1 f B a#- b O o S F b#+50@f:1 c#+50@f:2 d#+50@f:3 e#+1@f:4 f b#- c#- d#- "
               "e#-", 3),
        repeat("F a#+20@f:1 f B a#- b O o S N b#+50@f:1 c#+50@f:2 b#- d#+50@f:3 c#- e#+1@f:4 f d#- "
               "e#-", 3),
    ),
    "UL115": (
        repeat("F x#0+9@f:1 f S F x#1+9@f:1 f S F x#2+9@f:1 f S F x#3+9@f:1 f x#0- x#1- x#2- x#3- "
               "S", 4),
        repeat("F x#0+9@f:1 f x#0- S F x#1+9@f:1 f x#1- S", 8),
    ),
    "UL116": (
        repeat("F x#+40@f:1 f B x#~ b x#- S", 4, USED_ONCE),
        repeat("F x#+40@f:1 f B x#~ r~ b x#- S", 4, USED_ONCE),
    ),
    "UL117": (
        repeat(STEP, 3, WEIGHTS + " x+90@main:3 x?v y+1 x?e z+20@main:3 z?o"),
        repeat(STEP, 3, WEIGHTS + " x+90@main:3 x?v x?e z+20@main:3 z?o z?v"),
    ),
    "UL121": (
        repeat("F a#+50@f:1 b#+100@f:2>cross_entropy:3 c#+100@f:3 f B a#- b#- c#- b S", 3),
        repeat("F a#+50@f:1 b#+100@f:2>project:3 c#+100@f:3 f B a#- b#- c#- b S", 3),
    ),
    "UL122": (
        repeat("F h#+10@norm:1 a#+20@norm:2 b#+20@norm:3 c#+10@norm:4 d#+3@main:9 f B a#- b#- c#- "
               "h#- d#- b S", 3),
        repeat("F h#+10@norm:1 a#+10@norm:2 b#+10@norm:3 c#+10@norm:4 d#+3@main:9 f B a#- b#- c#- "
               "h#- d#- b S", 3),
    ),
    "UL123": (
        repeat("F a#+9@f:1 b#+9@f:2 c#+90@f:3>attention:4 d#+90@f:3>attention:5 f B a#- b#- c#- "
               "d#- b S", 3),
        repeat("F a#+9@f:1 b#+9@f:2 c#+9@f:3>attention:4 d#+9@f:3>attention:5 f B a#- b#- c#- d#- "
               "b S", 3),
    ),
    "UL124": (
        repeat("F a#+9@f:1>make_mask:2 b#+9@f:2 f B a#- b#- b S", 3),
        repeat("F a#+9@f:1>make_plan:2 b#+9@f:2 f B a#- b#- b S", 3),
    ),
    "UL125": (
        repeat("F " + " ".join(f"a{n}_#+9@f:{n % 2}" for n in range(24)) + " f B "
               + " ".join(f"a{n}_#-" for n in range(24)) + " b S", 3),
        repeat("F " + " ".join(f"a{n}_#+9@f:{n}" for n in range(24)) + " f B "
               + " ".join(f"a{n}_#-" for n in range(24)) + " b S", 3),
    ),
    "UL126": (
        repeat(WIDE.replace("$", "90"), 3, WEIGHTS), repeat(WIDE.replace("$", "30"), 3, WEIGHTS),
    ),
    "UL131": (
        repeat("N c#1+1#0@cat:9 f c#- S", 8, "c+90@cat:9").replace("c0-", "c-").replace(
            "c1-", "c01-").replace("c2-", "c11-").replace("c3-", "c21-").replace(
            "c4-", "c31-").replace("c5-", "c41-").replace("c6-", "c51-").replace("c7-", "c61-"),
        repeat("N x#+4@cat:9 f x#- S", 8, "c+90@cat:9"),
    ),
    "UL132": (
        repeat(STEP, 3, " ".join(f"mask{n}+40@main:2=buffer" for n in range(5))),
        repeat(STEP, 3, "mask+40@main:2=buffer mask1+41@main:2=buffer mask2+42@main:2=buffer"),
    ),
    "UL133": (
        repeat(STEP, 3, WEIGHTS + " d+300@main:2"),
        repeat("d#+300@main:2 " + STEP + " d#-", 3, WEIGHTS),
    ),
    "UL136": (
        repeat("N a#+9@f:1 a#- f S", 3, "w+90@main:1=parameter c+90@main:2=kv_cache"),
        repeat("N a#+9@f:1 a#- f S", 3, "w+90@main:1=parameter c+40@main:2=kv_cache"),
    ),
    "UL144": (
        repeat(STEP, 4, WEIGHTS + " F x+300@f:1 f B b x- S"),
        repeat(STEP, 4, WEIGHTS),
    ),
    "UL147": (
        repeat("N a#+9@f:1 t#+400@f:2 b#+9@f:3 t#- a#- b#- f S", 3, WEIGHTS),
        repeat("N a#+90@f:1 t#+400@f:2 b#+90@f:3 t#- a#- b#- f S", 3, WEIGHTS),
    ),
}  # fmt: skip


# What costs time and no memory: code, what has it, what has not.
TIMES = {
    "UL161": (
        repeat("x#+4@main:5 x#< " + STEP.replace("x#", "y#") + " x#-", 5),
        repeat("x#+4@main:5 x#<p " + STEP.replace("x#", "y#") + " x#-", 5),
    ),
    "UL162": (
        repeat("x#+4@main:5 x#<pw " + STEP.replace("x#", "y#") + " x#-", 5),
        "[65536 x+4@main:5 x<pw " + repeat(STEP, 5).removeprefix("[65536"),
    ),
    "UL163": (
        repeat(STEP.replace("b O", "b ^#00 O"), 8),
        repeat(STEP.replace("b O", "b ^600 O"), 8),
    ),
    "UL164": (
        repeat("x#+40@main:5 x#<p " + STEP.replace("x#", "y#") + " x#-", 5),
        repeat("x#+40@main:5 x#<ps " + STEP.replace("x#", "y#") + " x#-", 5),
    ),
}


@pytest.mark.parametrize("code", TIMES)
def test_what_costs_time_is_found_and_gains_no_memory(report_of: ReportOf, code: str) -> None:
    there, not_there = (found(report_of(script, has_record=True)) for script in TIMES[code])
    assert there[code].gain_bytes == 0
    assert there[code].rule.kind is Kind.TIME
    assert code not in not_there


def test_small_copies_are_no_finding(report_of: ReportOf, file_of: ReportOf) -> None:
    file = file_of(TIMES["UL161"][0], has_record=True)
    for row in file["ullage"]["copies"]:
        row[3] = 80 << 10
    assert "UL161" not in found(report_of("", **file))


def test_a_copy_on_each_stream_is_judged_by_itself(report_of: ReportOf) -> None:
    copies = "x#+40@main:5 x#<ps z#+2@main:6 z#<p "
    script = repeat(copies + STEP.replace("x#", "y#") + " x#- z#-", 5)
    assert "UL164" not in found(report_of(script, has_record=True))


def measured(step_s: float, num_steps: int = 5) -> dict[str, object]:
    """What a record on a real GPU says besides."""
    rows = [[step, 1, 0, 0, step_s] for step in range(num_steps)]
    return {"mode": "full", "driver": None, "num_lost": 0, "step_peaks": rows}


@pytest.mark.parametrize(
    ("name", "step_s", "codes"),
    [
        ("NVIDIA H100 80GB HBM3", 0.06, {"UL164"}),  # 40 MiB at 63 GB/s are 0.67 ms
        ("NVIDIA H100 80GB HBM3", 0.07, set()),
        ("NVIDIA Test", 0.07, {"UL164"}),
    ],
)
def test_where_steps_were_measured_a_copy_must_be_a_hundredth(
    report_of: ReportOf, file_of: ReportOf, name: str, step_s: float, codes: set[str]
) -> None:
    file = file_of(TIMES["UL164"][0], has_record=True)
    file["ullage"]["devices"][0]["name"] = name
    file["ullage"]["measured"] = measured(step_s)
    findings = found(report_of("", **file))
    assert findings.keys() & {"UL164"} == codes
    if codes and "H100" in name:
        evidence = findings["UL164"].evidence[1]
        assert evidence == "PCIe 5.0 x16 needs 0.666 ms for them at least, 1 % of a step of 60 ms"


def test_of_a_record_that_lost_copies_the_steps_before_do_not_count(
    report_of: ReportOf, file_of: ReportOf
) -> None:
    copies = "x#+4@main:5 x#< " + STEP.replace("x#", "y#") + " x#-"
    file = file_of(repeat(copies, 12), has_record=True)
    del file["ullage"]["copies"][:8]
    assert "UL161" not in found(report_of("", **file)), "4 of 11 steps are less than half"
    file["ullage"]["num_lost_copies"] = 8
    finding = found(report_of("", **file))["UL161"]
    assert "in 3 of the 3 steps whose copies were kept" in finding.evidence[0]


def waits(*steps: tuple[float, float, float, float], num_workers: int | None = 4) -> dict[str, Any]:
    """Waits for batches after a first step that is all wait: (seconds, waited, low, high)."""
    rows = [[0, 1, 9.0, 9.0, 9.0, 9.0], *([i, 1, *row] for i, row in enumerate(steps, 1))]
    return {"num_workers": num_workers, "waits": rows}


STARVES = (0.1, 0.05, 0.0, 0.03)


@pytest.mark.parametrize(
    ("num_workers", "words"),
    [(None, "num_workers=..."), (0, "ahead=2"), (1, "more workers"), (4, "more workers")],
)
def test_waits_for_batches_are_found_with_their_bounds(
    report_of: ReportOf, file_of: ReportOf, num_workers: int | None, words: str
) -> None:
    file = file_of(repeat(STEP, 5), has_record=True)
    file["ullage"]["batch_waits"] = waits(
        STARVES, (0.1, 0.05, 0.02, 0.03), STARVES, STARVES, num_workers=num_workers
    )
    finding = found(report_of("", **file))["UL165"]
    assert "nothing to do for 5 to 30 % of the time" in finding.what
    assert "of the 100 ms of a step 50 ms are waits" in finding.evidence[0]
    assert words in finding.change
    assert "ullage.prefetch" in finding.change
    assert finding.gain_bytes == 0


def test_what_is_idle_at_the_end_of_a_run_counts_after_two_steps(report_of: ReportOf) -> None:
    step = "F x#+40@f:1 f B x#~ b x#- S"
    for num_steps, is_found in ((2, False), (3, True)):
        script = repeat(step.replace("x#~", "x#~ r~", 1), 1, USED_ONCE) + " d+1 d- e+1 e- g+1 g- "
        script += " ".join(
            step.replace("x#", f"y{number}").replace("40", "50") for number in range(num_steps - 1)
        )  # fmt: skip
        assert ("UL116" in found(report_of(script, has_record=True))) is is_found


@each("code", CASES)
def test_a_fault_is_found(report_of: ReportOf, code: str) -> None:
    finding = found(report_of(CASES[code][0], has_record=True)).get(code)
    assert finding is not None
    assert finding.gain_bytes > 0
    assert not finding.is_guess


@each("code", CASES)
def test_without_the_fault_nothing_is_found(report_of: ReportOf, code: str) -> None:
    assert code not in found(report_of(CASES[code][1], has_record=True))


def test_of_lbfgs_a_shorter_history_is_advised(report_of: ReportOf) -> None:
    notes = [{"name": "Optimizer.step#LBFGS.step", "stage": "END", "time_us": 9000, "device": 0}]
    report = report_of(CASES["UL101"][0], has_record=True, external_annotations=notes)
    finding = found(report)["UL101"]
    assert "history_size" in finding.change
    assert finding.gain_bytes == 200 * MIB // 2
    assert "8bit" in found(report_of(CASES["UL101"][0], has_record=True))["UL101"].change


@pytest.mark.parametrize(
    ("code", "gain"),
    [
        ("UL116", 49), ("UL117", 110), ("UL136", 45), ("UL102", 96),
        ("UL105", 8 + 9 + 10 + 11 + 12 + 13), ("UL106", 8 + 9 + 10 + 11 + 12 + 13),
        ("UL112", 5 * 9), ("UL113", 50), ("UL126", 270 // 2), ("UL132", 160), ("UL133", 200),
        ("UL144", 300 - 164), ("UL147", 400),
    ],
)  # fmt: skip
def test_the_gain_is_what_the_peak_would_lose(report_of: ReportOf, code: str, gain: int) -> None:
    finding = found(report_of(CASES[code][0], has_record=True))[code]
    assert finding.gain_bytes // MIB == gain


@pytest.mark.parametrize(("search", "gain"), [("x?e", [300]), ("x?e x?v", []), ("", [])])
def test_what_a_traceback_holds_when_memory_runs_out_is_missing(
    report_of: ReportOf, search: str, gain: list[int]
) -> None:
    """The peak of 900 came before the exception, the OOM after it."""
    report = report_of(f"[1000 w+100 x+300 x?v a+500 a- y+1 {search} !900:10", has_record=True)
    finding = found(report).get("UL117")
    assert [each.gain_bytes // MIB for each in (finding,) if each is not None] == gain
    if finding is not None:
        assert "300.0 MiB in 1 block held by y in train() of cell 4" in finding.evidence[0]
        assert "1/0" in finding.change and "%reset" not in finding.change


@pytest.mark.parametrize(
    ("search", "gain"), [("y?eg", 40 + 64 + 9), ("y?e", 40), ("y?eg z?vg", 40)]
)
def test_what_the_graph_of_a_leftover_saved_is_held_with_it(
    report_of: ReportOf, search: str, gain: int
) -> None:
    """An exception after a forward pass that saved 64 and 9; z is a variable's."""
    step = f"F x+64@f:1 v+9@f:2 y+40@f:3 f z+1 {search} a+300 a-"
    finding = found(report_of(f"[4096 {WEIGHTS} {step}", has_record=True))["UL117"]
    assert finding.gain_bytes // MIB == gain
    assert finding.evidence[0].startswith("40.0 MiB in 1 block held by y in train()")
    assert [line.startswith("73.0 MiB that their graphs saved") for line in finding.evidence[1:]
            ] == [True] * (gain > 40)  # fmt: skip


def test_gradients_that_are_zeroed_are_another_finding_than_those_that_are_left(
    report_of: ReportOf,
) -> None:
    notes = [{"name": "Optimizer.zero_grad#SGD.zero_grad", "stage": "START", "time_us": 9000,
              "device": 0}]  # fmt: skip
    codes = found(report_of(CASES["UL103"][0], has_record=True, external_annotations=notes))
    assert "UL104" in codes and "UL103" not in codes
    assert codes["UL104"].gain_bytes == 63 * MIB  # 100 + 100 + 64, and 100 + 100 + 1


def test_what_owners_are_guessed_for_is_called_a_guess(report_of: ReportOf) -> None:
    report = report_of(CASES["UL112"][0])
    assert found(report)["UL112"].is_guess
    assert "UL113" not in found(report_of(CASES["UL113"][0]))  # one line may be a layer


KEPT = " ".join(f"{name}#+20@main:3>forward:{line}" for line, name in enumerate("abcdef"))
GONE = " ".join(f"{name}#-" for name in "abcdef")


def test_a_whole_earlier_graph_is_found_without_a_record(report_of: ReportOf) -> None:
    """The last output is held while the next pass runs; its graph is 120 of the peak of 340."""
    later = GONE.replace("#", "0#")
    kept = " ".join(
        [KEPT.replace("#", "00")]
        + [
            f"{KEPT} {later}".replace("0#-", f"0{n - 1}-").replace("#", f"0{n}")
            for n in range(1, 4)
        ]
    )
    finding = found(report_of(f"[4096 w+100 {kept}"))["UL113"]
    assert finding.is_guess and finding.gain_bytes == 120 * MIB
    assert "120.0 MiB (35 % of the peak)" in finding.what


def test_passes_that_end_before_the_next_hold_no_earlier_graph(report_of: ReportOf) -> None:
    assert "UL113" not in found(report_of(repeat(f"{KEPT} {GONE}", 4, "w+100")))


def test_layers_of_one_pass_are_no_earlier_graph(report_of: ReportOf) -> None:
    few = repeat("a#+40@main:3>forward:5 b#+40@main:3>forward:6", 3, "w+100")
    many = repeat(KEPT, 12, "w+100")
    assert "UL113" not in found(report_of(few)) and "UL113" not in found(report_of(many))


def test_activations_that_are_two_thirds_of_the_peak_are_found_without_a_record(
    report_of: ReportOf,
) -> None:
    """As in a recording of 32 layers with 68 %: 24 layers of 9 beside 100 from elsewhere."""
    layers = " ".join(f"a{number}+9@main:3>forward:5" for number in range(24))
    finding = found(report_of(f"[4096 w+100 {layers}"))["UL125"]
    assert finding.is_guess and finding.gain_bytes == 9 * 23 * MIB


def test_what_runs_once_is_not_gained_by_checkpointing_layers(report_of: ReportOf) -> None:
    layers = " ".join(f"a{number}+9@main:3>forward:5" for number in range(24))
    finding = found(report_of(f"[4096 w+100 {layers} l+200@main:4>forward:9"))["UL125"]
    assert finding.gain_bytes == 9 * 23 * MIB
    assert "416.0 MiB (81 % of the peak)" in finding.what


LENGTHS = " ".join(f"[{n} a{n}+{n} a{n}-" for n in range(100, 200, 10))


def test_the_gain_of_expandable_segments_is_that_of_a_replay(report_of: ReportOf) -> None:
    """Ten lengths that grow: 1450 reserved, 190 allocated at most. An expandable segment has pages
    of 20, so it ends with 200, where reserved minus allocated would be 1260.
    """
    finding = found(report_of(LENGTHS))["UL141"]
    assert finding.gain_bytes == (1450 - 200) * MIB
    assert "expandable_segments" in finding.change


def test_what_expandable_segments_do_not_save_is_no_fragmentation(report_of: ReportOf) -> None:
    """1200 are reserved, 600 were ever allocated: first large blocks, then small ones, which have
    pages of their own.
    """
    small = " ".join(f"[2 s{n}+1 t{n}+1" for n in range(300))
    assert "UL141" not in found(report_of(f"[600 a+600 a- {small}"))


def test_where_segments_are_expandable_already_that_is_not_advised(report_of: ReportOf) -> None:
    assert "UL141" not in found(
        report_of(LENGTHS, allocator_settings={"expandable_segments": True})
    )


@pytest.mark.parametrize("first", [1, 2, 50, 10**6])
def test_what_cannot_be_replayed_is_no_fragmentation(
    first: int, file_of: Callable[..., Any], explained: Callable[..., SnapshotReport]
) -> None:
    """The end of a longer trace, and a state without a trace."""
    file = file_of(LENGTHS)
    assert "UL141" in found(explained(file))
    file["device_traces"] = [file["device_traces"][0][first:]]
    report = explained(file)
    assert "UL141" not in found(report) and not report.contradictions


def test_a_trace_that_no_known_allocator_made_has_no_gain(report_of: ReportOf) -> None:
    """Room enough in a free block, and yet a new segment."""
    assert "UL141" not in found(report_of(f"{LENGTHS} [400 b+150 c+300"))


def test_a_cache_that_later_steps_do_not_use_is_found(report_of: ReportOf) -> None:
    step = "F x#+64@f:2 f B x#- b S"
    script = repeat(step, 2) + " e+2000@main:9 e- " + repeat(step.replace("#", "9#"), 6).partition(
        " ")[2]  # fmt: skip
    script = script.replace("[65536", "[2048")
    finding = found(report_of(script, has_record=True))["UL142"]
    assert finding.gain_bytes == (2048 - 64) * MIB
    assert "UL142" not in found(
        report_of(repeat(step, 8).replace("[65536", "[128"), has_record=True)
    )


def test_free_memory_of_private_pools_is_found(report_of: ReportOf) -> None:
    assert "UL143" in found(report_of("[1000 w+900 {500 a+100 b+200"))
    assert "UL143" not in found(report_of("[1000 w+900 {500 a+100 b+400 c+90"))


def test_rounding_is_found_where_it_costs(report_of: ReportOf, snapshot_of: ReportOf) -> None:
    from dataclasses import replace

    from ullage.explain.rules.case import make_case
    from ullage.explain.rules.registry import RULES as rules

    report = report_of("[2048 a+1000 b+500")
    (device,) = report.devices
    blocks = device.replay.blocks
    for part, count in ((0.9, 1), (0.99, 0)):
        asked = replace(blocks, requested_bytes=(blocks.size_bytes * part).astype("int64"))
        rounded = replace(device, replay=replace(device.replay, blocks=asked))
        assert len(list(rules["UL145"].find(make_case(report, rounded)))) == count


def test_workspaces_are_found_where_they_are_large(report_of: ReportOf) -> None:
    many = " ".join(f"k{n}+32=workspace" for n in range(8))
    finding = found(report_of(repeat(STEP, 2, WEIGHTS + " " + many), has_record=True))["UL146"]
    assert finding.gain_bytes == 7 * 32 * MIB
    one = repeat(STEP, 2, WEIGHTS + " k+32=workspace")
    assert "UL146" not in found(report_of(one, has_record=True))


def test_a_cache_for_each_stream_is_found(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]]
) -> None:
    script = " ".join(f"[200 a{n}+200 a{n}-" for n in range(4)) + " k+2"
    for num_streams, count in ((4, 1), (1, 0)):
        file = file_of(script)
        for events_or_segments in (file["device_traces"][0], file["segments"]):
            for entry in events_or_segments:
                place = entry.get("addr", entry.get("address"))
                entry["stream"] = (place >> 36) % num_streams
        findings = [one for one in find_findings(report_of("", **file)) if one.rule.code == "UL148"]
        # 800 reserved, 200 in use: three streams have 200 free each, all but one of them count.
        assert [one.gain_bytes // MIB for one in findings] == [400] * count


@pytest.mark.parametrize(
    ("code", "script", "precision", "is_found"),
    [
        ("UL106", CASES["UL106"][0], "float32", True),
        ("UL106", CASES["UL106"][0], "bfloat16", False),  # the copies would be of 8 bits
        ("UL124", CASES["UL124"][0].replace("make_mask:2", "make_mask:2=buffer"), "bool", True),
        ("UL124", CASES["UL124"][0].replace("make_mask:2", "make_mask:2=buffer"), "int64", False),
    ],
)
def test_the_types_of_what_has_an_owner_count(
    report_of: ReportOf,
    file_of: Callable[..., dict[str, Any]],
    code: str,
    script: str,
    precision: str,
    *,
    is_found: bool,
) -> None:
    file = file_of(script, has_record=True)
    record = file["ullage"]
    codes = bytearray(len(record["events"]["kind"]))
    for position, *_ in record["claims"]:
        codes[position - 1] = PRECISIONS.index(precision)
    record["events"]["precision"] = bytes(codes)
    assert (code in found(report_of("", **file))) is is_found


@pytest.mark.parametrize("num_plans", [250, 4096])
def test_plans_of_ffts_are_found_past_some_hundreds(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]], num_plans: int
) -> None:
    file = file_of("[20 a+1", has_record=True)
    low, high = num_plans * 437_500, num_plans * 720_896
    (device,) = file["ullage"]["devices"]
    device["outside"] = [["outside", "cuFFT plans", "", 4200, low, high, high]]
    finding = found(report_of("", **file)).get("UL149")
    assert (finding is not None) == (num_plans > 300)
    if finding is not None:
        assert finding.gain_bytes == high
        assert "max_size" in finding.rule.change and "4,200" in finding.evidence[0]


def test_a_few_tensors_on_another_device_are_found(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]]
) -> None:
    for size, count in ((20, 1), (800, 0)):
        first, second = file_of(f"[{size} a+10@main:3"), file_of("[1000 b+900")
        for segment in second["segments"]:
            segment["device"] = 1
        report = report_of(
            "", segments=first["segments"] + second["segments"],
            device_traces=first["device_traces"] + second["device_traces"],
        )  # fmt: skip
        findings = [one for one in find_findings(report) if one.rule.code == "UL134"]
        assert [(one.device, one.gain_bytes // MIB) for one in findings] == [(0, 20)] * count


def test_every_rule_says_what_it_means() -> None:
    assert len(RULES) >= 30
    for code, rule in RULES.items():
        assert re.fullmatch(r"UL1[0-6]\d", code) and rule.code == code
        texts = (rule.title, rule.meaning, rule.evidence, rule.cost, rule.change)
        assert all(len(text) >= 7 and text == text.strip() for text in texts)


def test_every_rule_is_tried_here_or_where_memory_runs_out() -> None:
    others = {"UL104", "UL134", "UL141", "UL142", "UL143", "UL145", "UL146", "UL148",
              "UL149", "UL165"}  # fmt: skip
    oom = {f"UL15{number}" for number in range(1, 7)}
    assert set(RULES) == set(CASES) | set(TIMES) | others | oom


def test_a_code_that_is_none_gets_an_answer() -> None:
    assert find_rule("ul111").code == "UL111"
    with pytest.raises(SpecError, match="did you mean UL1"):
        find_rule("UL11")
    with pytest.raises(SpecError, match="there are UL101"):
        find_rule("zzz")
