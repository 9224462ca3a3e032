"""What is told of a search: text, document and page."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from ullage.act.techniques.replaying.outcome import Replayed
from ullage.act.techniques.technique import Action
from ullage.answers.block_kinds import Plot
from ullage.answers.html import render_page
from ullage.answers.text import render
from ullage.clock.step_time import Interval
from ullage.explain.verdict import ExitCode
from ullage.facts.gpus.catalog import find_gpu
from ullage.ground.protocol.plain import document_of
from ullage.ground.units import GIB
from ullage.search.costs.blocks import Block
from ullage.search.costs.clocked import Timed
from ullage.search.findings import INTERRUPTED, Candidate, FitReport, Seen, name_plan
from ullage.search.objective import Objective
from ullage.verbs.fit.text import fit_blocks, fit_line

BLOCKS = tuple(Block(f"h.{number}", "Layer") for number in range(4))
PLAN = (
    Action("allocator", (), {"expandable_segments": True}),
    Action("checkpoint", ("h.0", "h.1", "h.2")),
)


def candidate(
    name: str, step_ms: float, used_gib: float, *actions: Action, why: str = ""
) -> Candidate:
    """A plan that was run."""
    seen = Seen("much" not in why, why, int(used_gib * GIB), int(used_gib * GIB) - GIB, 0, 0)
    peak = int(used_gib * GIB) - GIB
    return Candidate(name, actions, step_ms / 1e3, peak, int(used_gib * GIB), seen, why)


@pytest.fixture
def report() -> FitReport:
    """A search that found a plan."""
    as_it_is = candidate("unchanged", 20.0, 9.0, why="1.0 GiB too much")
    best = candidate(name_plan(PLAN, BLOCKS), 22.0, 7.75, *PLAN)
    slow = candidate("<offload>", 30.0, 6.0, why="36.4 % slower")
    return FitReport(
        program=("train.py",), torch="2.15.0", gpu=find_gpu("rtx-3070"), budget_bytes=8 * GIB,
        blocks=BLOCKS, as_it_is=as_it_is, best=best, plan=None,
        candidates=(as_it_is, best, slow),
        front=((0.020, 9 * GIB), (0.022, 8 * GIB), (0.03, 6 * GIB)), bound_s=0.0219,
        left_out={"flash_attention": "no attention"}, smallest=None, failure="",
        warnings=("something",), num_runs=9,
        wall_s=12.5, exit_code=ExitCode.FINE,
    )  # fmt: skip


def test_a_plan_is_named_by_what_it_does_and_to_how_many() -> None:
    assert name_plan(PLAN, BLOCKS) == "allocator expandable_segments, checkpoint 3 of 4 Layer"
    assert name_plan((), BLOCKS) == "unchanged"


def test_the_first_line_says_what_it_takes_and_costs(report: FitReport) -> None:
    assert fit_line(report) == (
        "fits 8.00 GiB of rtx-3070 under a plan: allocator expandable_segments, checkpoint 3 of 4 "
        "Layer; 7.75 GiB, a step takes 10.0 % more"
    )


def test_the_report_says_why_others_lost_and_how_good_it_is(report: FitReport) -> None:
    text = " ".join(render(fit_blocks(report), 120).split())
    for said in (
        "1.0 GiB too much",
        "36.4 % slower",
        "the gap is 0.5 %",
        "left out: flash_attention",
        "warning: something",
    ):
        assert said in text


def test_what_a_plan_changes_is_said_first_and_with_the_names(report: FitReport) -> None:
    kernel, states, parts = map(Action, ("optimizer_kernel", "bf16_states", "micro_batches"))
    for actions, kind, said in (
        (PLAN, "a plan", "It computes the same "),
        ((kernel,), "a plan", "It computes the same, in another order of sums: optimizer_kernel "),
        ((*PLAN, states), "a plan of other rounding", "changes: other rounding: bf16_states "),
        (
            (states, parts),
            "a plan of another training",
            "changes: another training: micro_batches; other rounding: bf16_states ",
        ),
    ):
        assert report.best is not None
        changed = replace(report, best=replace(report.best, actions=actions))
        assert f"under {kind}: " in fit_line(changed)
        assert said in " ".join(render(fit_blocks(changed), 120).split())


def test_what_was_chosen_says_by_what(report: FitReport) -> None:
    least = replace(report.candidates[2], name="checkpoint 4 of 4 Layer")
    by_memory = replace(report, best=least, candidates=(*report.candidates[:2], least))
    assert "the fastest that fits" in render(fit_blocks(report), 120)
    assert "the least memory" in render(fit_blocks(by_memory), 120)


def test_a_plan_that_takes_more_than_another_is_not_called_the_least(report: FitReport) -> None:
    tight = candidate("tight", 21.0, 7.5)
    assert tight.seen is not None
    tight = replace(tight, seen=replace(tight.seen, num_retries=3))
    beside = replace(report, candidates=(*report.candidates[:2], tight))
    text = render(fit_blocks(beside), 160)
    assert "the least memory" not in text and "without a release of the allocator's cache" in text


def test_what_no_other_beats_comes_first(report: FitReport) -> None:
    """A run that broke off within the budget shows no size, and is not on the front."""
    beaten = candidate("beaten", 21.0, 9.5, why="1.5 GiB too much")
    broken = candidate("broken off", 20.5, 1.0, why="does not fit: much is missing")
    told = replace(report, candidates=(report.as_it_is, broken, beaten, *report.candidates[1:]))
    lines = [line.split() for line in render(fit_blocks(told), 120).splitlines()]
    others = lines.index(["others"])
    names = ["unchanged", "checkpoint 3 of 4 Layer", "<offload>", "broken off", "beaten"]
    places = [[name in " ".join(line) for line in lines[1:]].index(True) + 1 for name in names]
    assert places == sorted(places)
    assert places[2] < others < places[3]


def test_of_two_plans_of_one_name_that_is_marked_which_fits(report: FitReport) -> None:
    """As many modules, and others."""
    assert report.best is not None
    others = replace(PLAN[1], modules=("h.0", "h.1", "h.3"))
    twin = replace(report.best, actions=(PLAN[0], others), why="98.0 MiB too much")
    told = replace(report, candidates=(twin, *report.candidates))
    lines = [line for line in render(fit_blocks(told), 120).splitlines() if line.startswith(">")]
    assert len(lines) == 1 and "Layer (other" not in lines[0]
    assert render(fit_blocks(told), 120).count("(other blocks)") == 1


def test_nothing_that_fits_is_said_first(report: FitReport) -> None:
    nothing = replace(report, best=None, exit_code=ExitCode.ANSWER_IS_NO)
    assert render(fit_blocks(nothing)).startswith("no plan fits 8.00 GiB of rtx-3070")
    assert document_of(nothing)["verdict"] == "does_not_fit"


def test_the_document_holds_plans_and_front(report: FitReport) -> None:
    document = json.loads(json.dumps(document_of(report)))
    assert document["schema"] == "ullage.fit/1"
    assert document["verdict"] == "fits_under_plan"
    assert document["best"]["actions"][1]["modules"] == ["h.0", "h.1", "h.2"]
    assert document["best"]["seen"]["peak_used_bytes"] <= document["budget_bytes"]
    assert document["front"][0] == {"step_s": 0.020, "peak_used_bytes": 9 * GIB}


def test_where_the_rates_are_from_is_never_left_unsaid(report: FitReport) -> None:
    assert "times of the runs by the clock" in " ".join(
        render(fit_blocks(clocked(report)), 120).split()
    )


def test_the_page_needs_no_other_file_and_asks_for_nothing(report: FitReport) -> None:
    page = render_page("train.py", fit_blocks(report), document_of(report))
    assert not re.search(r"""src=|<link[^>]+href="(?!data:)|url\(|@import|fetch\(""", page)
    assert "&lt;offload&gt;" in page and "<offload>" not in page
    held = re.search(r'id="document">(.*?)</script>', page, re.DOTALL)
    assert held is not None
    assert json.loads(held[1])["budget_bytes"] == 8 * GIB


def test_the_front_has_a_point_for_each_plan_and_one_more_for_the_chosen(report: FitReport) -> None:
    (front,) = [block for block in fit_blocks(report) if isinstance(block, Plot)]
    assert [len(series.points) for series in front.curves] == [3, 0, 1]
    assert front.up.marks[0].at == 8
    none = fit_blocks(replace(report, front=()))
    assert not any(isinstance(block, Plot) for block in none)


def test_a_reason_that_many_techniques_share_is_told_once(report: FitReport) -> None:
    many = {f"technique {number}": "the plan was not applied" for number in range(27)}
    text = " ".join(render(fit_blocks(replace(report, left_out=many))).split())
    assert text.count("the plan was not applied") == 1
    assert "(27 techniques)" in text


def test_what_was_replayed_is_told_and_what_was_not(report: FitReport) -> None:
    replayed = Replayed(
        done=("checkpoint on 3 of 3 Layer",),
        not_done={"autocast": "it rounds otherwise on purpose"},
        precision="float64",
        reduced="batch 2, length 16",
    )
    told = replace(report, replayed=replayed)
    text = " ".join(render(fit_blocks(told)).split())
    assert (
        "Replayed with real numbers: checkpoint on 3 of 3 Layer, in float64, batch 2, length 16; "
        "not replayed: autocast, because it rounds otherwise on purpose"
    ) in text
    assert document_of(told)["replayed"]["is_same"]
    assert "It was not replayed with real numbers" in " ".join(render(fit_blocks(report)).split())


def test_a_search_that_was_ended_says_so(report: FitReport) -> None:
    ended = replace(report, ended=INTERRUPTED, exit_code=ExitCode.INTERRUPTED)
    assert "The search stopped early: it was interrupted" in render(fit_blocks(ended))
    assert document_of(ended)["ended"] == "it was interrupted"
    nothing = replace(ended, best=None)
    assert fit_line(nothing).startswith("no plan found before it was ")


def clocked(report: FitReport, **ends: tuple[float, float, float]) -> FitReport:
    """The report where the clock timed each plan: 0.8 to 1.4 times the likely seconds."""

    def told(plan: Candidate) -> Candidate:
        interval = ends.get("best") if plan.actions else None
        return replace(
            plan,
            time=Timed(
                Interval(*(interval or (0.8 * plan.step_s, plan.step_s, 1.4 * plan.step_s))), 4096
            ),
        )

    assert report.best is not None
    return replace(
        report,
        as_it_is=told(report.as_it_is),
        best=told(report.best),
        candidates=tuple(map(told, report.candidates)),
    )


def test_a_difference_that_is_sure_is_told_with_its_bounds(report: FitReport) -> None:
    assert "a step takes 10.0 % more" in fit_line(clocked(report))
    wide = clocked(report, best=(0.0168, 0.022, 0.0336))
    assert fit_line(wide).endswith("a step takes 10.0 % more (5.0 to 20.0)")
    unsure = clocked(report, best=(0.0158, 0.022, 0.0336))
    assert fit_line(unsure).endswith("a step takes about as long")


def test_each_plan_has_its_bounds_and_the_text_says_what_they_rest_on(report: FitReport) -> None:
    text = " ".join(render(fit_blocks(clocked(report)), 120).split())
    assert "bounds" in text and "22.0 ms 17.6-30.8" in text
    assert "times of the runs by the clock" in text and "bounds" not in render(fit_blocks(report))
    assert "no time, as no step ended" in " ".join(render(fit_blocks(report), 120).split())
    some = clocked(report)
    some = replace(some, candidates=(*some.candidates[:2], report.candidates[2]))
    text = " ".join(render(fit_blocks(some), 120).split())
    assert "a sum" in text and "1 plans that no run timed have the sum" in text


def test_the_document_has_the_interval_and_the_front_of_the_runs(report: FitReport) -> None:
    document = document_of(clocked(report))
    assert document["best"]["time"]["step_s"] == pytest.approx([0.0176, 0.022, 0.0308])
    assert document["best"]["time"]["tokens_per_step"] == 4096
    assert document["best"]["cost"] is None and document["gpu_hour_dollars"] is None
    names = [plan["name"] for plan in document["front_of_runs"]]
    assert names == [plan.name for plan in report.candidates]
    assert document_of(report)["best"]["time"] is None


def test_at_a_price_each_plan_costs_something(report: FitReport) -> None:
    """0.022 s of a GPU at 3.60 dollars an hour are 22 microdollars, for 4096 tokens."""
    priced = replace(clocked(report), price=3.6, num_gpus=2, objective=Objective.COST)
    cost = document_of(priced)["best"]["cost"]
    assert cost["thousand_steps_dollars"][1] == pytest.approx(0.044)
    assert cost["million_tokens_dollars"][1] == pytest.approx(22e-6 / 4096 * 1e6)
    text = " ".join(render(fit_blocks(priced), 120).split())
    assert "M tokens" in text and "$0.00537" in text and "the cheapest" in text


def test_the_page_marks_what_ran_and_shows_its_bounds(report: FitReport) -> None:
    drawn = render_page("train.py", fit_blocks(clocked(report)))
    assert drawn.count("mark squares") == 3 and drawn.count("mark dots") == 3
    assert drawn.count("mark large") == 1 and "22.0 ms (17.6 to 30.8)" in drawn
    assert "mark squares" not in render_page("train.py", fit_blocks(report))


def test_without_a_bound_there_is_no_gap(report: FitReport) -> None:
    assert report.gap == pytest.approx(0.0045, abs=1e-4)
    assert replace(report, bound_s=0.0).gap == 0.0


def test_at_80_columns_a_plan_is_a_line_and_the_chosen_one_a_list_below(report: FitReport) -> None:
    """With the widest table: bounds, prices, and names that are longer than the line."""
    priced = replace(clocked(report), price=3.6)
    long = tuple(replace(each, why="too much " * 20) for each in priced.candidates)
    lines = render(fit_blocks(replace(priced, candidates=long)), 80).splitlines()
    head = next(n for n, line in enumerate(lines) if line.endswith("plan, Pareto front"))
    table = lines[head + 1 : lines.index("", head)]
    assert len([line for line in table if line.split() != ["others"]]) == len(long)
    assert all("ms" in line or line.split() == ["others"] for line in table)
    place = next(n for n, line in enumerate(lines) if line.startswith("The plan, "))
    assert place > head
    assert lines[place + 1 : place + 3] == [
        "  allocator expandable_segments", "  checkpoint 3 of 4 Layer",
    ]  # fmt: skip
