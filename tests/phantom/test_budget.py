"""`--budget`: what may be used of the device. Beyond it the program runs out of memory, as it would
where others hold the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.facts.gpus.catalog import find_gpu

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

GIB = 1 << 30
BUDGET = ("--budget", "4GiB")


def test_the_program_sees_the_device_and_what_is_free_of_the_budget(
    run_program: RunProgram,
) -> None:
    outcome = run_program("memory_api.py", gpu="rtx-4090", options=BUDGET)
    whole = run_program("memory_api.py", gpu="rtx-4090")
    assert outcome.printed["total"] == whole.printed["total"] == find_gpu("rtx-4090").total_bytes
    withheld = whole.printed["free_at_start"] - outcome.printed["free_at_start"]
    assert withheld == find_gpu("rtx-4090").total_bytes - 4 * GIB


def test_it_runs_out_of_memory_at_the_budget(run_program: RunProgram) -> None:
    outcome = run_program("linear.py", "--mib", "4096", gpu="rtx-4090", options=BUDGET)
    document = outcome.document
    assert (outcome.exit_code, document["verdict"]) == (1, "out_of_memory")
    assert "total capacity of 23.52 GiB" in document["oom"]["message"]
    assert document["devices"][0]["budget_bytes"] == 4 * GIB


def test_the_verdict_and_the_ledger_are_of_the_budget(run_program: RunProgram) -> None:
    outcome = run_program("linear.py", "--mib", "1024", gpu="rtx-4090", options=BUDGET)
    device = outcome.device
    assert (device["gpu"], device["budget_bytes"]) == ("rtx-4090 within 4.0 GiB", 4 * GIB)
    assert device["total_bytes"] == find_gpu("rtx-4090").total_bytes
    assert device["headroom_bytes"] == 4 * GIB - device["peak_used_bytes"]
    ledger = device["ledger"]
    parts = [ledger[f"{part}_bytes"] for part in ("cache", "context", "non_torch", "free")]
    assert sum(ledger["owners"].values()) + sum(parts) == ledger["total_bytes"] == 4 * GIB
