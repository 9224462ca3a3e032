"""`ullage exec --guard` on several ranks under DistributedDataParallel: the rank that runs out of
memory runs its own call or backward again, no rank waits for ever, and what is left on each rank is
what is left without the error.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import MAIN, RunProgram

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "guard"
SOURCE = str(ROOT / "src")
TIMEOUT_S = 1800

Sweep = Callable[..., dict[str, Any]]


def free_port() -> str:
    """A port of this machine that nothing uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


@pytest.fixture(scope="session")
def sweep(thin_python: Path) -> Sweep:
    """`sweep("ddp", "9")`: the document of the ranks of a script under `ullage exec --guard`."""

    def run(*words: str, is_guarded: bool = True) -> dict[str, Any]:
        torchrun = ["torchrun", "--nproc-per-node", "2", "--master-port", free_port()]
        script = [str(PROGRAMS / "unmodified_ranks.py"), *words]
        verb = [sys.executable, "-c", MAIN, "exec", "--guard", "--python", str(thin_python), "--"]
        own = [str(thin_python), "-m", "torch.distributed.run", *torchrun[1:]]
        done = subprocess.run(
            [*verb, *torchrun, *script] if is_guarded else [*own, *script],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        line = next(each for each in done.stdout.splitlines() if each.startswith('{"loop"'))
        return {**json.loads(line), "stderr": done.stderr}

    return run


def check_all_recovered(document: dict[str, Any], least: int) -> None:
    """Every error within what is guarded was recovered, and left the same on every rank."""
    for rank in document["ranks"]:
        assert list(rank["results"]) == ["equal"], rank["examples"]
        assert rank["results"]["equal"] >= least


def check_same_as_without(sweep: Sweep, guarded: dict[str, Any]) -> None:
    """The script without a guard leaves the same on every rank."""
    plain = sweep(guarded["loop"], "1000000", is_guarded=False)
    digests = [[rank["digest"] for rank in each["ranks"]] for each in (guarded, plain)]
    assert digests[0] == digests[1]


def test_a_ddp_loop_under_exec_leaves_the_same_after_errors_on_one_rank(sweep: Sweep) -> None:
    guarded = sweep("ddp", "29")
    check_all_recovered(guarded, 15)
    check_same_as_without(sweep, guarded)
    said = guarded["stderr"]
    for text in ("in forward on rank", "in backward on rank", "in the optimizer"):
        assert f"out of memory {text}" in said


def test_parameters_that_a_call_does_not_use_and_gradients_as_views_go_with_it(
    sweep: Sweep,
) -> None:
    guarded = sweep("ddp unused views hook", "61")
    check_all_recovered(guarded, 8)
    check_same_as_without(sweep, guarded)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "words",
    [
        ("ddp", "1"), ("ddp", "5", "both"), ("ddp unused", "2"), ("ddp views", "2"),
        ("accelerate", "2"), ("transformers", "8"), ("lightning", "4"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_error_at_allocations_of_a_script_on_two_ranks_is_recovered(
    sweep: Sweep, words: tuple[str, ...]
) -> None:
    check_all_recovered(sweep(*words), 50)


@pytest.mark.phantom
def test_on_the_phantom_a_rank_that_runs_out_of_memory_recovers_while_the_other_waits(
    run_program: RunProgram,
) -> None:
    outcome = run_program(
        "torchrun", "--nproc-per-node", "2", str(PROGRAMS / "long_batch_ranks.py"), SOURCE,
        "calls", "6", options=("--gpus", "2", "--memory", "4.8GiB"), timeout_s=600,
        env=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    other, failed = outcome.printed
    assert [recoveries for _, _, recoveries in failed["rows"]] == [0, 0, 1, 1, 1, 1]
    assert [recoveries for _, _, recoveries in other["rows"]] == [0] * 6
    for rank in (other, failed):
        rungs = [rung for _, rung, _ in rank["rows"]]
        assert rungs[:2] == [0, 0]
        assert rungs[3:] == [1, 1, 1]  # also those of the rank that had memory
        # No growth: the same bytes after every step.
        assert len({allocated for allocated, _, _ in rank["rows"][1:]}) == 1
    assert sum("out of memory in backward on rank 1" in line for line in failed["said"]) == 1
