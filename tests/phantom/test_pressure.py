"""Real programs under `ullage record`: retries beside their slow steps, and requests with the
memory of what they generate.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.bare_gpu import bare_environment
from tests.phantom.conftest import MAIN, Outcome, execute, find_program

from ullage.log.durations import RELATIVE_ERROR

pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RecordProgram = Callable[..., Outcome]
SLOW_S = 0.05  # of the program: a step with a larger batch takes longer


@pytest.fixture
def record(thin_python: Path, tmp_path: Path) -> RecordProgram:
    """`record("counters", "retries.py", "24")` on a T4; the programs may import ullage."""
    source = str(Path(sys.modules["ullage"].__file__ or "").parents[1])

    def run(mode: str, program: str, *arguments: str, options: tuple[str, ...] = ()) -> Outcome:
        command = [
            sys.executable, "-c", MAIN, "record", "--json", "--python", str(thin_python),
            "--snapshot", str(tmp_path / "snapshot.pickle"), "--mode", mode, *options,
            "--", find_program(f"recording/{program}"), *arguments,
        ]  # fmt: skip
        env = {"XDG_RUNTIME_DIR": str(tmp_path), "PYTHONPATH": source}
        variables = dict(bare_environment(thin_python, gpu="t4", **env))
        return Outcome(*execute(command, tmp_path, variables), tmp_path)

    return run


def pressure_of(outcome: Outcome) -> dict[str, Any]:
    """What the document says of it."""
    assert outcome.exit_code in {0, 3}, outcome.stderr
    (process,) = outcome.document["processes"]
    pressure: dict[str, Any] = process["pressure"]
    return pressure


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["counters", "events"])
def test_retries_are_shown_beside_their_slow_steps(
    record: RecordProgram, tmp_path: Path, mode: str
) -> None:
    plot = tmp_path / "pressure.svg"
    outcome = record(mode, "retries.py", "24", options=("-o", str(plot)))
    pressure = pressure_of(outcome)
    # The program prints the allocator's own counts to stderr under --json.
    counts = [line.split() for line in outcome.stderr.splitlines() if line.startswith("counts ")]
    ((_, retries, frees),) = counts
    assert pressure["num_alloc_retries"] == int(retries) == 5
    assert pressure["num_device_frees"] == int(frees) >= 5
    assert pressure["step_s"]["num"] == pressure["last_steps_s"]["num"] == 24
    assert pressure["comparison"].startswith("5 of 24 steps had a retry: their median is ")
    measured = outcome.record.measured
    assert measured is not None and measured.pressure is not None
    slow = measured.pressure.steps.with_retry
    assert slow.num == 5
    assert (slow.percentile(0) or 0) >= SLOW_S / (1 + RELATIVE_ERROR)
    rows = measured.pressure.windows
    assert [row.first for row in rows if row.num_alloc_retries] == [4, 8, 12, 16, 20]
    most = max(row.allocated_bytes for row in rows)
    assert most == outcome.device["peak_allocated_bytes"]
    assert all(0 < row.inactive_split_bytes < row.reserved_bytes for row in rows)
    assert plot.read_bytes().startswith(b"<?xml")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["counters", "events"])
def test_requests_have_their_times_and_peaks_and_tokens_their_memory(
    record: RecordProgram, mode: str
) -> None:
    pressure = pressure_of(record(mode, "answers.py", "4", "40"))
    requests = {row["name"]: row["latency_s"]["num"] for row in pressure["requests"]}
    assert requests == {"chat": 2, "fails": 1}
    short, long, failed = pressure["last_requests"]
    row_bytes, rest_bytes = 2048 * 256 * 4, 2048 * 256 * 4
    for request, num_tokens in ((short, 4), (long, 40)):
        assert request["num_tokens"] == num_tokens
        cache_bytes = request["end_bytes"] - request["begin_bytes"]
        assert cache_bytes >= num_tokens * row_bytes
        assert 0 < request["peak_bytes"] - request["end_bytes"] <= 2 * rest_bytes
        assert (request["num_beside"], request["has_failed"]) == (0, False)
    assert (failed["has_failed"], failed["num_tokens"]) == (True, None)
    if mode == "counters":
        assert pressure["tokens"] is None, "nothing is called when the model is"
    else:
        assert (short["num_calls"], long["num_calls"]) == (4, 40)
        assert pressure["tokens"]["bytes_per_call"] == row_bytes
        assert pressure["tokens"]["growth"][-1] == {"call": 40, "bytes": long["end_bytes"]}


@pytest.mark.nightly
def test_generate_of_transformers_is_a_request_with_its_tokens(record: RecordProgram) -> None:
    pressure = pressure_of(record("counters", "answers.py", "transformers"))
    (request,) = pressure["last_requests"]
    assert (request["name"], request["num_tokens"]) == ("generate", 2 * 3)
