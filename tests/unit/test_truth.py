"""The net for truth: which verdicts it calls wrong, and how a day differs from the last commit."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from benchmarks.results import published
from benchmarks.truth.__main__ import TABLE
from benchmarks.truth.case import (
    FAILED,
    NOT_RUN,
    Case,
    Key,
    Meaning,
    compare,
    read_table,
    with_recorded,
    write_table,
)
from benchmarks.truth.page import total

KEY = Key("workloads", "gpt2", "reserved")
TODAY = "now 2026-11-28"


def make(truth: int, meaning: Meaning = Meaning.NEED, name: str = "gpt2") -> Case:
    """A truth beside an interval from 90 to 110."""
    return Case.of(KEY._replace(name=name), truth, (90, 100, 110), meaning, TODAY)


def judged(case: Case) -> tuple[bool | None, bool | None, bool | None]:
    return case.is_inside, case.is_wrong_fit, case.is_false_alarm


def test_too_little_for_a_job_or_too_much_for_a_cache_is_a_wrong_fit() -> None:
    expected = {
        Meaning.NEED: [(False, False, True), (True, False, False), (False, True, False)],
        Meaning.ROOM: [(False, True, False), (True, False, False), (False, False, True)],
        Meaning.NEITHER: [(False, None, None), (True, None, None), (False, None, None)],
    }
    found = {m: [judged(make(truth, m)) for truth in (89, 110, 111)] for m in Meaning}
    assert found == expected


def test_the_rounding_of_a_source_decides_what_is_inside() -> None:
    for truth in (89, 111):
        rounded = Case.of(KEY, truth, (90, 100, 110), Meaning.NEED, TODAY, is_inside=True)
        assert judged(rounded) == (True, False, False)
    alone = Case.of(KEY, 50, (None, 100, None), Meaning.NEED, TODAY)
    assert judged(alone) == (None, None, None) and alone.error == 1


def test_a_verdict_is_judged_by_what_the_job_did() -> None:
    found = {
        (did, says): judged(Case.of_verdict(KEY, did_fit=did, fits=says, run=TODAY))[1:]
        for did in (True, False)
        for says in (True, False, None)
    }
    assert [pair for pair, (wrong, _) in found.items() if wrong] == [(False, True)]
    assert [pair for pair, (_, alarm) in found.items() if alarm] == [(True, False)]


def test_what_is_written_is_read_again_beside_the_last_commit() -> None:
    verdict = Case.of_verdict(KEY._replace(quantity="verdict"), did_fit=True, fits=None, run=TODAY)
    seconds = Case.of(KEY._replace(quantity="step"), 0.25, (None, 0.5, None), Meaning.NEITHER, "x")
    missing = Case.without(KEY._replace(name="other"), NOT_RUN, "needs torch 2.6")
    cases = [make(111), verdict, seconds, missing]
    before = {KEY: replace(make(100), ours=(80, 81, 82))}
    text = write_table(cases, before)
    assert list(read_table(text).values()) == cases
    assert text.splitlines()[1].endswith(",-9.910%,no,yes,no,80,81,82,now 2026-11-28,")


def test_a_case_that_does_not_run_today_keeps_the_figures_of_an_earlier_day() -> None:
    kept = {KEY: replace(make(100), run="now 2026-11-01")}
    absent, failed = (Case.without(KEY, run, "by night") for run in (NOT_RUN, FAILED))
    (found,) = with_recorded([absent], kept)
    assert found == replace(make(100), run="recorded 2026-11-01", note="by night")
    # Nor does it look fresh the day after.
    assert with_recorded([absent], {KEY: found}) == [found]
    assert with_recorded([failed], kept) == [failed]
    assert with_recorded([absent], {}) == [absent]


def test_it_is_worse_where_a_verdict_became_wrong_or_a_case_is_lost() -> None:
    good, other = make(100), make(100, name="other")
    before = {case.key: case for case in (good, other)}
    assert not compare([good, other], before).is_worse
    moved = replace(good, ours=(91, 100, 110))
    assert compare([moved, other], before).changed == ((good, moved),)
    assert not compare([moved, other], before).is_worse
    for worse, kind in ((make(111), "wrong_fits"), (make(89), "false_alarms")):
        difference = compare([worse, other], before)
        assert getattr(difference, kind) == (worse,) and difference.is_worse
        assert not compare([worse, other], {**before, KEY: worse}).is_worse
    failed = Case.without(KEY, FAILED, "no document")
    assert compare([failed, other], before).lost == ((good, "no document"),)
    assert compare([good], before).lost[0][0] == other
    assert compare([good], before).is_worse


def test_the_table_has_every_case_of_a_real_gpu_and_the_page_its_sum() -> None:
    cases = read_table(TABLE.read_text(encoding="utf-8"))
    names = {(key.source, key.name.partition(", run")[0]) for key in cases}
    expected = {
        "recordings": 6, "snapshots": 14, "workloads, H100": 11, "workloads, H200": 33, "logs": 8,
        "starts, estimate": 17, "starts, phantom": 17, "latencies, published": 46,
        "steps, published": 19,
    }  # fmt: skip
    found = Counter(source for source, _ in names)
    assert {source: found[source] for source in expected} == expected
    assert total(list(cases.values())) in published("truth-sum")[0], "--write"
