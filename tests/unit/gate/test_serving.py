"""Scenarios with a server: what they may say, and what fails them; the engine is a stub."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.explain.basis import BasisKind
from ullage.verbs.check.document import check_document
from ullage.verbs.check.gate.budget import NO_BUDGET, Amount
from ullage.verbs.check.gate.cache import CaseFigures
from ullage.verbs.check.gate.cases import CaseResult
from ullage.verbs.check.gate.compare import GOOD, TOKENS, compare
from ullage.verbs.check.gate.config import load_configuration
from ullage.verbs.check.gate.figures import Measured
from ullage.verbs.check.gate.lock import (
    Entry,
    Key,
    Lock,
    Peaks,
    ServedFigures,
    parse_lock,
    render_lock,
)
from ullage.verbs.check.gate.scenario import Case, Serving, expand
from ullage.verbs.check.gate.verdicts import State, judge
from ullage.verbs.check.text import check_blocks, describe
from ullage.verbs.views.views import CheckView

CONFIGURATION = """[scenario.api]
serve = "vllm serve llama-3.1-8b --max-num-seqs {seqs}"
traffic = "poisson:rate={rate},prompt=1000,output=100,duration=1m"
slo = "ttft=1s,tpot=50ms"
goodput = "95%"
gpu = "h100-80gb"
matrix = { seqs = [64, 128], rate = [2] }
"""
Refuse = Callable[[Path, str, int, str], None]


def entry(tokens: int, good: int = 100, number: int = 100) -> Entry:
    key = Key(command="vllm serve m", gpu="h100-80gb", torch="2.13.0", cuda="13.0", ullage="0.1.0",
              allocator="", ranks="")  # fmt: skip
    figures = ServedFigures(tokens, good, number)
    return Entry(key, Peaks(1, 1, 1, 1), BasisKind.EXACT, served=figures)


def held(now: Entry, was: Entry | None, serving: Serving, tolerance: Amount | None = None) -> Any:
    return compare(
        "api", now, was, budget=NO_BUDGET, tolerance=tolerance, total_bytes=None, serving=serving
    )


def test_a_scenario_becomes_a_case_for_each_value(tmp_path: Path) -> None:
    (tmp_path / "ullage.toml").write_text(CONFIGURATION)
    scenario = load_configuration(tmp_path).scenarios["api"]
    first, second = expand(scenario)
    assert first.scenario.command == ("vllm", "serve", "llama-3.1-8b", "--max-num-seqs", "64")
    assert second.scenario.serving is not None and second.scenario.serving.traffic.startswith(
        "poisson:rate=2,"
    )
    assert second.scenario.serving.goodput_frac == 0.95
    assert second.text.endswith("duration=1m, ttft=1s,tpot=50ms")


@pytest.mark.parametrize(
    ("line", "number", "message"),
    [
        ("steps = 3\n", 8, "does not go with serve"),
        ('command = "train.py"\n', 8, "does not go with serve"),
    ],
)
def test_what_does_not_go_with_a_server_is_refused(
    tmp_path: Path, refuse: Refuse, line: str, number: int, message: str
) -> None:
    refuse(tmp_path, CONFIGURATION + line, number, message)


@pytest.mark.parametrize(
    ("before", "after", "number", "message"),
    [
        ("vllm serve", "sglang serve", 2, "SGLang is not served here"),
        ("vllm serve", "tgi serve", 2, "expected a server's command"),
        ("tpot=50ms", "speed=1s", 4, "expected each of ttft"),
        ("duration=1m", "length=3", 3, "expected KEY=VALUE"),
        ('"95%"', '"all"', 5, 'expected a share, such as "95%"'),
        ('gpu = "h100-80gb"\n', "", 1, "a server needs one"),
        ('traffic = "poisson:rate={rate},prompt=1000,output=100,duration=1m"\n', "", 1,
         'is missing; add it, for example: traffic = "trace.csv", or a generator'),
    ],
)  # fmt: skip
def test_a_mistake_is_an_error_before_any_run(
    tmp_path: Path, refuse: Refuse, before: str, after: str, number: int, message: str
) -> None:
    text = CONFIGURATION.replace(before, after)
    if "{rate}" not in text:
        text = text.replace(", rate = [2]", "")
    refuse(tmp_path, text, number, message)


def test_traffic_without_a_server_is_refused(tmp_path: Path, refuse: Refuse) -> None:
    text = '[scenario.train]\ncommand = "train.py"\ntraffic = "trace.csv"\n'
    refuse(tmp_path, text, 3, "is for a server")


def test_a_lock_keeps_tokens_and_good_requests() -> None:
    lock = Lock({"api": entry(462_272, 99)})
    text = render_lock(lock)
    assert "cache_tokens = 462272\n" in text  # no bytes: no size in words
    assert parse_lock(text) == lock


@pytest.mark.parametrize(("tokens", "is_kept"), [(100_000, True), (99_500, True), (99_499, False)])
def test_a_change_that_loses_cache_tokens_fails(tokens: int, is_kept: bool) -> None:  # noqa: FBT001
    comparison = held(entry(tokens), entry(100_000), Serving("t"))
    assert comparison.is_kept is is_kept
    if not is_kept:
        (broken,) = comparison.broken
        assert broken.name == TOKENS
        assert describe(broken) == "cache of 99,499 tokens, 1 fewer than the lock asks for"


def test_another_engine_is_named_beside_the_tokens_that_it_lost() -> None:
    was, now = (
        replace(entry(tokens), key=replace(entry(tokens).key, engine=f"vllm {version}"))
        for tokens, version in ((100_000, "0.32.0"), (90_000, "0.33.0"))
    )
    assert parse_lock(render_lock(Lock({"api": was}))).scenarios["api"] == was
    comparison = held(now, was, Serving("t"))
    assert comparison.changes.keys == (("engine", "vllm 0.32.0", "vllm 0.33.0"),)


def test_a_tolerance_is_a_share_of_the_tokens() -> None:
    tolerance = Amount.parse("10%")
    assert held(entry(90_000), entry(100_000), Serving("t"), tolerance).is_kept
    assert not held(entry(89_999), entry(100_000), Serving("t"), tolerance).is_kept


@pytest.mark.parametrize(("good", "is_kept"), [(990, True), (989, False)])
def test_a_change_that_misses_the_objective_fails(good: int, is_kept: bool) -> None:  # noqa: FBT001
    comparison = held(entry(1, good, 1000), None, Serving("t", "ttft=1s"))
    assert comparison.is_kept is is_kept
    if not is_kept:
        (broken,) = comparison.broken
        assert broken.name == GOOD
        assert "989 requests within the objective, and the budget asks for 990" in describe(broken)


def test_a_server_that_does_not_start_fails_the_check(tmp_path: Path) -> None:
    (tmp_path / "ullage.toml").write_text(CONFIGURATION)
    scenario = load_configuration(tmp_path).scenarios["api"]
    case, nothing = Case("api", scenario, None), CaseFigures({}, (), 0.0)
    judged = judge(CaseResult(case, None, None, nothing, problem="no vLLM there"), {})
    assert judged.state is State.FAILED and judged.reason == "no vLLM there"
    assert not judged.is_kept


def test_the_engine_is_run_with_the_traffic_of_its_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ullage.verbs.check.gate import serving

    (tmp_path / "ullage.toml").write_text(CONFIGURATION)
    case = expand(load_configuration(tmp_path).scenarios["api"])[0]
    calls: list[tuple[tuple[str, ...], int, str]] = []

    def serve(words: tuple[str, ...], traffic: Any, *, gpu: str, **_: object) -> Any:
        calls.append((words, len(traffic), gpu))
        engine = SimpleNamespace(kv_cache_tokens=1234, name="vllm", version="0.32.0")
        return SimpleNamespace(
            report="report", outcome=SimpleNamespace(engine=engine, traffic=traffic)
        )

    row = SimpleNamespace(goodput_frac=0.5)
    monkeypatch.setattr(serving, "serve", serve)
    monkeypatch.setattr(serving, "measure", lambda *_: SimpleNamespace(classes=[row]))
    monkeypatch.setattr(serving, "_num_answered", lambda _: 0)
    result = serving.run_served(case, None)
    ((words, number, gpu),) = calls
    assert words == case.scenario.command and gpu == "h100-80gb" and number > 0
    assert result.engine == "vllm 0.32.0"
    assert result.figures == ServedFigures(1234, round(number / 2), number)


def test_the_report_says_what_a_server_held(tmp_path: Path) -> None:
    (tmp_path / "ullage.toml").write_text(CONFIGURATION)
    scenario = load_configuration(tmp_path).scenarios["api"]
    now, was = entry(90_000, 99), entry(100_000)
    figures = CaseFigures({"": Measured(now, {})}, (), 0.0)
    judged = judge(CaseResult(Case("api", scenario, None), None, None, figures), {"api": was})
    assert judged.state is State.EXCEEDED
    view = CheckView(tmp_path / "ullage.toml", (judged,), {})
    text = render(check_blocks(view), 120)
    assert "api: cache of 90,000 tokens, 99 of 100 requests within the objective" in text
    assert "cache of 90,000 tokens, 9,500 fewer than the lock asks for" in text
    (device,) = check_document(view)["scenarios"][0]["devices"]
    assert device["found"]["served"]["cache_tokens"] == 90_000
    assert {"found": 90_000, "limit": 99_500}.items() <= device["judgements"][-1].items()
