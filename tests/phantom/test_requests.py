"""Scenarios that replay requests: against a function, and against a server that they start."""

from __future__ import annotations

import json
import os
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.ground.errors import EnvironmentProblem
from ullage.search.runs import server
from ullage.verbs.check.gate.lock import Entry, read_lock
from ullage.verbs.check.gate.verdicts import Judged

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]

PROGRAMS = Path(__file__).parent.parent / "programs" / "requests"
LENGTHS = [100, 1500, 300, 700, 2000]
URL = "http://127.0.0.1:{port}/v1/completions"
KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The programs, and 20 requests of five lengths."""
    for path in PROGRAMS.glob("*.py"):
        shutil.copy(path, tmp_path)
    chats = [
        {"timestamp": 10 * number, "input_length": LENGTHS[number % 5], "output_length": 4}
        for number in range(20)
    ]
    write(tmp_path / "chats.jsonl", chats)
    return tmp_path


def write(path: Path, requests: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(one)}\n" for one in requests))


def scenario(name: str, requests: str, more: str = "") -> str:
    head = f'[scenario.{name}]\ngpu = "l4"\n{more}\n'
    return f'{head}requests = {{ file = "chats.jsonl", {requests} }}\n'


def of_function(name: str, function: str, more: str = "") -> str:
    return scenario(name, f'function = "serve.py:{function}"{more}')


def of_server(name: str, mode: str = "", more: str = "", program: str = "server") -> str:
    command = f'command = "{program}.py {{port}} {mode}"'
    return scenario(name, f'url = "{URL}", body = {{ model = "m" }}{more}', command)


def check(project: Path, python: Path, *scenarios: str, **options: Any) -> dict[str, Judged]:
    """Each case by its name."""
    (project / "ullage.toml").write_text("\n".join(scenarios))
    found = ullage.check(config=project / "ullage.toml", python=python, **options)
    return {one.name: one for one in found.judged}


def entry_of(judged: Judged) -> Entry:
    (comparison,) = judged.comparisons
    return comparison.entry


@pytest.mark.slow
def test_a_function_with_one_user_and_many(project: Path, thin_python: Path) -> None:
    found = check(
        project, thin_python,
        of_function("one", "chat"), of_function("eight", "chat", ", concurrency = 8"),
        of_function("again", "chat", ", concurrency = 8"),
        of_function("leak", "chat_and_keep", ", concurrency = 2"),
        of_function("locked", "chat_one_by_one", ", concurrency = 3"),
    )  # fmt: skip
    one, eight = entry_of(found["one"]), entry_of(found["eight"])
    assert one.moment.startswith("chats.jsonl:5, ") or one.moment.startswith("chats.jsonl:10, ")
    assert eight.moment.endswith("5 more, forward")
    # Half precision: two vectors of 512 numbers a token and layer, for all requests that run.
    lengths = [LENGTHS[number % 5] + 3 for number in range(8)]
    per_token = 4 * 2 * 512 * 2
    assert one.categories["kv_cache"] >= (2000 - 1) * per_token
    assert eight.categories["kv_cache"] >= 0.9 * per_token * sum(sorted(lengths)[2:])
    assert eight.peaks.allocated_bytes > one.peaks.allocated_bytes
    assert entry_of(found["again"]).peaks == eight.peaks, "users take turns in the same order"
    assert [entry_of(found[name]).growth_bytes for name in ("one", "eight", "locked")] == [0, 0, 0]
    assert entry_of(found["leak"]).growth_bytes == 64 * KIB
    # Behind a lock one request runs at a time, whoever waits.
    assert entry_of(found["locked"]).categories["kv_cache"] < 2 * one.categories["kv_cache"]
    assert "in which order requests" in eight.assumed[-1]


@pytest.mark.slow
def test_streams_and_asyncio(project: Path, thin_python: Path) -> None:
    found = check(
        project, thin_python,
        of_function("stream", "stream", ", concurrency = 2"),
        of_function("later", "chat_later", ", concurrency = 2, limit = 6"),
        of_function("streams", "stream_later", ", concurrency = 2, limit = 6"),
    )  # fmt: skip
    assert {one.state.value for one in found.values()} == {"not locked"}, found
    assert {entry_of(one).growth_bytes for one in found.values()} == {0}
    assert "more" not in entry_of(found["later"]).moment


@pytest.mark.slow
def test_audio_chunks_grow_the_cache_with_their_length(project: Path, thin_python: Path) -> None:
    for name, seconds in (("short", 10.0), ("long", 60.0)):
        write(project / f"{name}.jsonl", [{"audio_s": seconds}] * 4)
    found = check(
        project, thin_python,
        '[scenario.audio]\ngpu = "l4"\nmatrix = { length = ["short", "long"] }\n'
        'requests = { file = "{length}.jsonl", function = "serve.py:listen" }\n',
    )  # fmt: skip
    short, long = (entry_of(found[f"audio/length={name}"]) for name in ("short", "long"))
    grown = long.categories["kv_cache"] - short.categories["kv_cache"]
    # The frames of 50 s in each of four layers; in the last one twice for a moment, as they join.
    assert 4 <= grown / (50 * 50 * 2 * 512 * 2) <= 6


@pytest.mark.slow
def test_a_request_that_fails_is_named(project: Path, thin_python: Path) -> None:
    found = check(
        project, thin_python,
        of_function("one", "chat_or_fail"),
        of_function("three", "chat_or_fail", ", concurrency = 3"),
        of_server("server", "fail"),
        of_server("died", "die"),
    )  # fmt: skip
    assert {one.state.value for one in found.values()} == {"failed"}
    for name in ("one", "three"):
        assert found[name].reason == (
            "ValueError: 300 tokens are not allowed at serve.py:88 in chat_or_fail, in request "
            "chats.jsonl:3"
        ).replace(":88", f":{line_of(project / 'serve.py', 'raise ValueError')}")
    assert found["server"].reason == (
        'HTTP 500: {"error": "300 tokens are not allowed"}, in request chats.jsonl:3'
    )
    assert "signal 9" in found["died"].reason
    assert found["died"].reason.endswith(", in request chats.jsonl:3")


def line_of(path: Path, text: str) -> int:
    return next(
        number for number, line in enumerate(path.read_text().splitlines(), 1) if text in line
    )


def test_a_context_that_is_too_long_does_not_fit(project: Path, thin_python: Path) -> None:
    write(
        project / "chats.jsonl",
        [{"input_length": length, "output_length": 2} for length in (1000, 16_000_000, 1000)],
    )
    (project / "ullage.toml").write_text(of_function("long", "chat", ", concurrency = 2"))
    found = ullage.check(config=project / "ullage.toml", python=thin_python)
    (judged,) = found.judged
    assert found.exit_code == 1
    assert judged.reason.startswith("does not fit on l4: no room for ")
    assert judged.reason.endswith("in request chats.jsonl:2")
    assert "long: the most at chats.jsonl:1, 2, " in found.text()


@pytest.mark.slow
def test_a_server_takes_what_the_function_takes(project: Path, thin_python: Path) -> None:
    found = check(
        project, thin_python,
        of_function("function", "chat"), of_server("server", more=', ready = "/health"'),
        of_server("users", more=", concurrency = 4, limit = 8"),
        of_server("leak", "leak"), of_server("oom", "oom"),
    )  # fmt: skip
    function, server = entry_of(found["function"]), entry_of(found["server"])
    assert server.peaks == function.peaks
    assert server.categories == function.categories
    assert (server.moment, server.growth_bytes) == (function.moment, 0)
    assert "{port}" in server.key.command
    assert entry_of(found["users"]).peaks.allocated_bytes <= 4 * server.peaks.allocated_bytes
    assert entry_of(found["leak"]).growth_bytes == 64 * KIB
    assert found["oom"].state.value == "out of memory"
    assert found["oom"].reason.startswith("does not fit on l4: no room for 1.0 TiB at server.py:")
    assert found["oom"].reason.endswith("in request chats.jsonl:3")


def test_audio_is_uploaded(project: Path, thin_python: Path) -> None:
    (project / "clip.wav").write_bytes(bytes(64_000))
    write(project / "chats.jsonl", [{"audio": "clip.wav"}, {"audio_s": 30.0}, {"audio_s": 2.0}])
    text = of_server("audio").replace("/v1/completions", "/v1/audio/transcriptions")
    found = check(project, thin_python, text.replace('model = "m"', 'model = "whisper"'))
    entry = entry_of(found["audio"])
    assert entry.moment.startswith("chats.jsonl:2, ")
    assert entry.categories["kv_cache"] > 29 * 50 * 4 * 2 * 512 * 2


@pytest.mark.slow
def test_a_server_that_is_not_ready_or_ends(project: Path, thin_python: Path) -> None:
    found = check(
        project, thin_python,
        of_server("unready", "unready", ', ready = "/health", ready_timeout_s = 8'),
        of_server("ends", "ends"),
        of_server("missing", "", "").replace("server.py {port}", "server.py x{port}"),
    )  # fmt: skip
    assert found["unready"].reason == (
        "the server was not ready within 8 s: /health answers with 503"
    )
    assert found["ends"].reason == "the server ended before it was ready"
    assert found["missing"].reason.startswith("ValueError: invalid literal for int()")
    assert "ValueError" in found["missing"].output
    assert {one.state.value for one in found.values()} == {"failed"}


def test_a_port_that_is_taken_is_told(project: Path, thin_python: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(EnvironmentProblem, match=f"port {port} .* is taken.*write {{port}}"):
            check(project, thin_python, of_server("server").replace("{port}", port))


@pytest.mark.slow
def test_what_is_killed_leaves_its_peaks(
    project: Path, thin_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "_PATIENCE_S", 1.0)
    found = check(
        project, thin_python,
        of_function("function", "chat"),
        of_server("stubborn", "stubborn"),
        of_server("engine", program="engine"),
    )  # fmt: skip
    whole = entry_of(found["function"])
    for name in ("stubborn", "engine"):
        one = entry_of(found[name])
        assert found[name].state.value == "not locked", found[name].reason
        assert one.peaks[1:] == whole.peaks[1:], "all but what was asked for"
        assert one.categories == {"unattributed": one.peaks.allocated_bytes}
        assert one.assumed == ("who held what in a process that was killed",)
        (warning,) = (text for text in found[name].warnings if "record" in text)
        assert warning.endswith("its peaks are known, and not who held them")
    processes = Path("/proc").glob("[0-9]*/environ")
    left = [path for path in processes if is_of(path, project)]
    assert not left


def is_of(path: Path, project: Path) -> bool:
    try:
        return f"PWD={project}" in path.read_text(errors="replace") and (
            int(path.parent.name) != os.getpid()
        )
    except OSError:
        return False


@pytest.mark.slow
def test_a_lock_is_kept_and_a_changed_request_runs_it_again(
    project: Path, thin_python: Path
) -> None:
    (project / "ullage.toml").write_text(of_function("chat", "chat") + of_server("server"))
    ullage.lock(config=project / "ullage.toml", python=thin_python)
    entry = read_lock(project / "ullage.lock").scenarios["chat"]
    assert entry.key.command == "serve.py:chat < chats.jsonl, 1 user"

    def run() -> ullage.Check:
        return ullage.check(config=project / "ullage.toml", python=thin_python)

    time.sleep(0.1)
    known = run()
    assert [one.is_kept for one in known.judged] == [True, True]
    assert "chat: the most at chats.jsonl:" in known.text()
    chats = [json.loads(line) for line in (project / "chats.jsonl").read_text().splitlines()]
    chats[7]["input_length"] = 4000
    write(project / "chats.jsonl", chats)
    changed = run()
    assert [one.is_kept for one in changed.judged] == [False, False]
    assert [one.state.value for one in changed.judged] == ["exceeded", "exceeded"]
    assert changed.exit_code == 1
    assert "the most at chats.jsonl:8" in changed.text()
