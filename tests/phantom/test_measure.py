"""`ullage.measure`: a function of this process, called on a simulated GPU in another."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import ullage
from ullage.ground.errors import EnvironmentProblem, SpecError
from ullage.verbs.run import measure_function as module

MIB = 2**20


@pytest.fixture
def own_torch(thin_python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The child is of the environment with torch; this process needs none."""
    make_job = module.make_run_job
    monkeypatch.setattr(
        module, "make_run_job", lambda options: make_job(replace(options, python=thin_python))
    )


@pytest.mark.phantom
def test_a_function_and_what_it_refers_to_are_measured(own_torch: None) -> None:
    num_bytes = 40 * MIB

    def allocate() -> None:
        import torch

        kept = torch.empty(num_bytes, dtype=torch.uint8, device="cuda")
        del kept

    run = ullage.measure(allocate, gpu="l4")
    assert (run.verdict.value, run.peak_allocated_bytes) == ("fits", num_bytes)
    assert run.document["program"][0] == "ullage.measure"


@pytest.mark.phantom
def test_more_than_a_pipe_holds_arrives_and_memory_can_run_out(own_torch: None) -> None:
    content = bytes(4 * MIB)

    def allocate() -> None:
        import torch

        torch.empty(len(content) * 8192, dtype=torch.uint8, device="cuda")  # 32 GiB

    run = ullage.measure(allocate, gpu="l4")
    assert (run.verdict.value, run.exit_code) == ("out_of_memory", 1)


@pytest.mark.phantom
def test_an_error_of_the_function_is_that_of_a_program(own_torch: None) -> None:
    def fail() -> None:
        raise ValueError("no batch")

    run = ullage.measure(fail, gpu="l4")
    assert (run.verdict.value, run.exit_code) == ("failed", 3)


def test_what_cannot_be_sent_is_refused_with_the_reason() -> None:
    stream = sys.stderr.buffer
    with pytest.raises(SpecError, match=r"cannot be sent to a process of its own: .*pickle"):
        ullage.measure(lambda: stream.write(b""), gpu="l4")
    with pytest.raises(SpecError, match="found 3; expected a function without arguments"):
        ullage.measure(3, gpu="l4")  # type: ignore[arg-type]


def test_without_cloudpickle_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(EnvironmentProblem, match=r"pip install 'ullage\[measure\]'"):
        module.measure(print)
