"""`ullage explain` and `diff` of a server's logs; `ullage capacity --traffic` and `smallest`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.cli import run_cli
from ullage.ground.errors import SpecError

LOGS = Path(__file__).parents[1] / "unit" / "explain" / "server_logs"
MODEL = "llama-3.1-8b"
COMMAND = ("--", "vllm", "serve", MODEL, "--max-model-len", "4096")
Say = Callable[..., tuple[int, str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Say:
    """`say(*words)`: the exit code of `ullage WORDS`, and its two outputs."""

    def run(*words: str) -> tuple[int, str, str]:
        code = run_cli(list(words))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_log_is_explained_as_text_and_as_a_document(say: Say) -> None:
    code, text, _ = say("explain", str(LOGS / "base.log"))
    assert code == 0
    for words in ("cache of 208,720 tokens", "15.00 GiB", "--kv-cache-dtype fp8"):
        assert words in text
    code, text, _ = say("explain", str(LOGS / "base.log"), "--json")
    document = json.loads(text)
    assert document["schema"] == "ullage.server/1" and document["tokens"] == 208_720
    assert sum(part["bytes"] for part in document["parts"]) == document["total_bytes"]


def test_a_server_that_did_not_start_is_the_answer_no(say: Say) -> None:
    code, text, _ = say("explain", str(LOGS / "long.log"))
    assert code == 1
    assert text.startswith("did not start: one request of 131,072 tokens needs 16.00 GiB")


def test_a_restarted_servers_log_tells_of_both_starts(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "pod.log"
    path.write_text((LOGS / "none.log").read_text() + (LOGS / "base.log").read_text())
    code, text, _ = say("explain", str(path))
    assert code == 0 and "The last of 2 starts in the log; the one before it failed: " in text
    document = json.loads(say("explain", str(path), "--json")[1])
    assert document["num_starts"] == 2 and document["failure_before"]["remedies"]


def test_the_log_of_another_server_is_refused_in_a_sentence(say: Say, tmp_path: Path) -> None:
    path = tmp_path / "other.log"
    path.write_text("llama_model_loader: loaded meta data\nload_tensors: offloaded 33/33 layers\n")
    code, _, error = say("explain", str(path))
    assert code == 2 and "it is a log of llama.cpp; expected one of vLLM or SGLang" in error


def test_options_of_snapshots_are_refused_for_a_log(say: Say) -> None:
    code, _, error = say("explain", str(LOGS / "base.log"), "--request", "1GiB")
    assert code == 2 and "--request is for a memory snapshot" in error


def test_two_logs_are_compared(say: Say) -> None:
    words = ("diff", str(LOGS / "base.log"), str(LOGS / "util85.log"))
    code, text, _ = say(*words)
    assert code == 0 and "gpu_memory_utilization 0.92 -> 0.85" in text
    code, text, _ = say(*words, "--json")
    document = json.loads(text)
    assert document["schema"] == "ullage.server-diff/1" and document["named_frac"] >= 0.95
    assert say(*words, "-o", "page.html")[0] == 2


def test_a_log_that_does_not_say_what_the_cache_has_cannot_be_compared(say: Say) -> None:
    code, _, error = say("diff", str(LOGS / "base.log"), str(LOGS / "none.log"))
    assert code == 2 and "the second log does not say how many tokens" in error


@pytest.mark.parametrize("end", [0, 200, 900, 2000, 2600])
def test_a_log_that_breaks_off_anywhere_is_read_or_refused(
    say: Say, tmp_path: Path, end: int
) -> None:
    path = tmp_path / "cut.log"
    path.write_text((LOGS / "base.log").read_text()[:end])
    assert say("explain", str(path))[0] in (0, 1, 2)


TRAFFIC = "poisson:rate=10,prompt=600,output=200,duration=20s"


def test_a_forecast_needs_no_engine(say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("capacity", MODEL, "--gpu", "l40s", "--traffic", TRAFFIC, "--slo", "ttft=1s")
    monkeypatch.chdir(Path(__file__).parent)
    found = ullage.capacity(MODEL, gpu="l40s", traffic=TRAFFIC, slo="ttft=1s", kv_bytes="1GiB")
    assert found.exit_code == 0 and "preemptions" in found.text().splitlines()[0]
    document = found.document
    assert document["schema"] == "ullage.forecast/1" and document["tokens"] == 8192
    assert document["num_preemptions"] > 0 and document["usage_peak_frac"] > 0.95
    assert "<h1" in found.html and TRAFFIC in found.html
    code, text, _ = say(*words, "--json")
    assert code == 0 and json.loads(text)["tokens"] > 8192
    assert say(*words, "--json")[1] == text


def test_a_request_that_never_fits_the_cache_is_the_answer_no(
    say: Say,
) -> None:
    traffic = "poisson:rate=1,prompt=3000,output=200,duration=5s"
    code, text, _ = say("capacity", MODEL, "--traffic", traffic, "--kv-bytes", "256MiB")
    assert code == 1 and "the cache is too small" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("smallest",), "no objective: add --slo"),
        (("smallest", "--slo", "ttft=1s", "--allow", "int4"), "expected any of fp8-cache"),
    ],
)
def test_what_cannot_be_searched_is_refused(say: Say, words: tuple[str, ...], message: str) -> None:
    traffic = ("--traffic", "poisson:rate=1,prompt=10,output=10,duration=5s")
    code, _, error = say(*words, *traffic, *COMMAND)
    assert code == 2 and message in error


def test_a_share_of_requests_is_in_per_cent(
    say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ullage.toml").write_text('[smallest]\ntarget = "most"\n')
    code, _, error = say("smallest", *COMMAND)
    assert code == 2 and "expected per cent" in error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_bytes": "4GB of it"}, "is not a size"),
        ({"gpu": "l4", "kv_bytes": "1MiB"}, "nothing is left for the cache"),
        ({"users": 3}, "--users has no effect on traffic"),
    ],
)
def test_what_cannot_be_forecast_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ullage.capacity(MODEL, traffic=TRAFFIC, **options)
