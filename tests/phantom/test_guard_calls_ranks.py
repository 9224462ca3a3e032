"""`ullage exec --guard` on several ranks under DistributedDataParallel: the rank that runs out of
memory runs its own call or backward again, no rank waits for ever, and each is told.

That each rank leaves what it leaves without the error is in test_error_at_allocations.py.
"""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE, run_alone
from tests.phantom.conftest import RunProgram, find_program

pytestmark = pytest.mark.slow

LAUNCHER = ("-m", "torch.distributed.run")


def run_ranks(python: Path, share: str, launcher: tuple[str, ...], **verb: Any) -> dict[str, Any]:
    """The document of a script on two ranks that torchrun starts, and what was said."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    start = (*launcher, "--nproc-per-node", "2", "--master-port", port)
    script = (find_program("guard/unmodified_ranks.py"), "ddp", share)
    done = run_alone(python, *start, *script, **verb)
    assert done.returncode == 0, done.stderr
    line = next(each for each in done.stdout.splitlines() if each.startswith('{"loop"'))
    return {**json.loads(line), "stderr": done.stderr}


def test_ranks_that_torchrun_starts_are_guarded_and_leave_the_same_as_without(
    thin_python: Path,
) -> None:
    guarded = run_ranks(thin_python, "0:12", ("torchrun",), verb=("exec", "--guard"))
    # No allocation is within what is guarded.
    plain = run_ranks(thin_python, "1", LAUNCHER)
    assert [list(rank["results"]) for rank in guarded["ranks"]] == [["equal"]] * 2
    digests = [[rank["digest"] for rank in each["ranks"]] for each in (guarded, plain)]
    assert digests[0] == digests[1]
    for text in ("in forward on rank", "in backward on rank", "in the optimizer"):
        assert f"out of memory {text}" in guarded["stderr"]


@pytest.mark.phantom
def test_on_the_phantom_a_rank_that_runs_out_of_memory_recovers_while_the_other_waits(
    run_program: RunProgram,
) -> None:
    outcome = run_program(
        "torchrun", "--nproc-per-node", "2", find_program("guard/long_batch_ranks.py"), SOURCE,
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
