"""The examples run as they are, and end as they would on that GPU: with room, or out of memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

SOURCE = Path(__file__).parents[2] / "src" / "ullage"
EXAMPLES = {
    "gpt2": ("gpt2/train.py",),
    "llama_trainer": ("llama_trainer/train.py",),
    "resnet50": ("resnet50/train.py",),
    "out_of_memory": ("out_of_memory/train.py",),
    "halve_batch": ("out_of_memory/halve_batch.py",),
}
GPUS = ("h100-80gb", "a100-80gb", "rtx-4090", "t4")
# Shorter sequences: as the tests of owners run it, so that it runs once for both.
SHORT_LLAMA = ("llama_trainer/train.py", "--seq-len", "256")
# The end of each on an H100, and on every GPU of which nothing else is said.
ENDS = {"out_of_memory": "out_of_memory"}
# Where a few MiB decide: the program ends well, or runs out of memory.
CLOSE = {("halve_batch", "t4"), ("gpt2", "t4")}
TOO_LARGE = {("llama_trainer", "t4")}


def check_whole(outcome: Any) -> None:
    """A run document that holds together, and a snapshot that torch's viewer would open."""
    document, device = outcome.document, outcome.device
    assert document["verdict"] in {"fits", "out_of_memory"}
    assert document["exit_code"] == outcome.exit_code == (document["verdict"] != "fits")
    at_peak = device["at_peak"]
    assert sum(at_peak.values()) == device["peak_allocated_bytes"]
    assert at_peak["unattributed"] <= 0.05 * device["peak_allocated_bytes"]
    assert device["peak_requested_bytes"] <= device["peak_allocated_bytes"]
    assert device["peak_allocated_bytes"] <= device["peak_reserved_bytes"]
    assert {"segments", "device_traces", "ullage"} <= set(outcome.snapshot)


def check_failure(outcome: Any) -> None:
    """The exception of an out-of-memory as the program's author would see it on a real GPU."""
    oom = outcome.document["oom"]
    assert oom["message"].startswith("CUDA out of memory. Tried to allocate")
    assert oom["requested_bytes"] > 0 and oom["where"]
    traceback = outcome.stderr[outcome.stderr.index("Traceback (most recent call last)") :]
    assert "torch.OutOfMemoryError: CUDA out of memory." in traceback
    assert 'train.py", line' in traceback or 'halve_batch.py", line' in traceback
    assert str(SOURCE) not in traceback, "a frame of ours"


def check(outcome: Any, name: str, gpu: str) -> None:
    """The example ended as it should on that GPU."""
    check_whole(outcome)
    verdict = outcome.document["verdict"]
    if (name, gpu) not in CLOSE:
        expected = "out_of_memory" if (name, gpu) in TOO_LARGE else ENDS.get(name, "fits")
        assert verdict == expected
    if verdict == "fits":
        assert "Traceback" not in outcome.stderr
    else:
        check_failure(outcome)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_an_h100(run_program: RunProgram, name: str) -> None:
    program = SHORT_LLAMA if name == "llama_trainer" else EXAMPLES[name]
    check(run_program(*program), name, "h100-80gb")


def test_an_example_that_halves_its_batch_says_how_often_it_ran_out(
    run_program: RunProgram,
) -> None:
    outcome = run_program(*EXAMPLES["halve_batch"])
    assert outcome.stderr.count("out of memory, trying batch") == outcome.device["num_ooms"] > 0
    assert any("caught it and went on" in warning for warning in outcome.document["warnings"])


@pytest.mark.nightly
@pytest.mark.parametrize("gpu", GPUS)
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_on_every_gpu(run_program: RunProgram, name: str, gpu: str) -> None:
    check(run_program(*EXAMPLES[name], gpu=gpu), name, gpu)
