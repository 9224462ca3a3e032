"""`ullage serve`: what it refuses before anything starts, and what it prints of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.serve.test_measures import outcome_of

import ullage.operate.serve.run
from ullage.answers.text import render
from ullage.ground.errors import SpecError
from ullage.ground.protocol.plain import document_of
from ullage.ground.units import GIB
from ullage.operate.serve.measures import measure
from ullage.operate.serve.outcome import Engine, Outcome
from ullage.operate.serve.report import ServeReport
from ullage.operate.serve.run import Served, check_command, tensor_parallel
from ullage.operate.serve.slo import parse_slo
from ullage.operate.serve.traffic import load_traffic
from ullage.verbs.serve.command import serve_command
from ullage.verbs.serve.text import serve_blocks, serve_line

COMMAND = ("vllm", "serve", "llama-3.1-8b", "--max-model-len", "8192")


def report_of(
    outcome: Outcome, slo: str | None = "ttft=1s,tpot=200ms", first: Engine | None = None
) -> ServeReport:
    objective = None if slo is None else parse_slo(slo)
    run: Any = SimpleNamespace(devices=(), torch="2.13.0", program=SimpleNamespace(exit_code=0))
    served = Served(COMMAND, "h100-80gb", outcome, run, first=first)
    return ServeReport(served, measure(outcome, objective), objective)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("train.py",), "expected a server's command: vllm serve MODEL"),
        (("vllm", "serve"), "names no model"),
        (("vllm", "serve", "--max-model-len", "8192"), "names no model"),
        ((*COMMAND, "--pipeline-parallel-size", "2"), "several GPUs are not simulated"),
        ((*COMMAND, "-dp=2"), "several GPUs are not simulated"),
        ((*COMMAND, "--kv-transfer-config", "{}"), "connectors are not simulated"),
    ],
)
def test_a_command_that_cannot_be_served_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_command(words)


@pytest.mark.parametrize(
    ("words", "ranks"), [((), 1), (("-tp", "2"), 2), (("--tensor-parallel-size=8",), 8)]
)
def test_ranks_that_share_layers_are_read(words: tuple[str, ...], ranks: int) -> None:
    assert tensor_parallel((*COMMAND, *words)) == ranks


@pytest.mark.parametrize("words", [("-tp", "two"), ("-tp",), ("--tensor-parallel-size=0",)])
def test_no_number_of_ranks_is_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(SpecError, match="expected a number of GPUs"):
        tensor_parallel((*COMMAND, *words))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "no traffic"),
        (("--traffic", "missing.csv"), "is neither a file nor a generator"),
        (("--traffic", "azure-conv", "--slo", "fast"), "found 'fast'"),
    ],
)
def test_wrong_options_are_refused_before_anything_starts(
    options: tuple[str, ...], message: str
) -> None:
    done = CliRunner().invoke(serve_command, [*options, "--", *COMMAND])
    assert isinstance(done.exception, SpecError) and message in str(done.exception)


def test_the_report_has_the_figures() -> None:
    text = render(serve_blocks(report_of(outcome_of())), 100)
    for words in (
        "3 of 4 requests answered", "50.0 % within the objective", "1 can never be answered",
        "432,000 tokens in 27,000 blocks of 16", "ttft=1s,tpot=0.2s", "chat", "code",
        "By the cache's occupancy",
    ):  # fmt: skip
        assert words in text, words


def test_the_start_that_left_its_compile_cache_is_reported_too() -> None:
    outcome = outcome_of()
    first = replace(outcome.engine, kv_cache_bytes=50 * GIB, kv_cache_tokens=400_000)
    report = report_of(outcome, first=first)
    assert re.search(
        r"a first start +50\.00 GiB +400,000 tokens", render(serve_blocks(report), 100)
    )
    assert document_of(report)["first_start"]["kv_cache_tokens"] == 400_000
    assert document_of(report_of(outcome))["first_start"] is None


def test_transformers_has_no_later_start() -> None:
    command = ("transformers", "serve", "llama-3.1-8b", "--continuous-batching")
    traffic = load_traffic("poisson:rate=1,prompt=1,output=1,duration=5s")
    with pytest.raises(SpecError, match="no compile cache; leave --cached out"):
        ullage.operate.serve.run.serve(command, traffic, gpu="l4", is_cached=True)


def test_without_an_objective_there_is_no_goodput() -> None:
    report = report_of(outcome_of({"rejected": {"3": "too long"}}), None)
    assert "objective" not in serve_line(report) and "goodput" not in render(serve_blocks(report))
    assert "1 requests were refused" in render(serve_blocks(report))


def test_the_document_has_no_nan() -> None:
    document = document_of(report_of(outcome_of()))
    assert document["schema"] == "ullage.serve/1"
    assert json.loads(json.dumps(document, allow_nan=False))["num_stuck"] == 1
    assert document["classes"][0]["ttft_s"]["p50"] == 0.5


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """`ullage serve` with a run that has ended."""

    def of(*options: str) -> Any:
        served = report_of(outcome_of()).served
        monkeypatch.setattr(ullage.operate.serve.run, "serve", lambda *_, **__: served)
        words = ["--traffic", "poisson:rate=1,prompt=1,output=1", *options, "--", *COMMAND]
        return CliRunner().invoke(serve_command, words, standalone_mode=False)

    return of


def test_requests_that_are_never_answered_are_the_answer_no(
    invoke: Callable[..., Any], tmp_path: Path
) -> None:
    done = invoke("--json", "-o", str(tmp_path / "served.json"))
    assert done.return_value == 1
    assert json.loads((tmp_path / "served.json").read_text()) == json.loads(done.stdout)
