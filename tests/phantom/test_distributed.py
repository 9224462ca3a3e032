"""Ranks of distributed jobs: alone, several by themselves, and real processes under torchrun."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ullage
from ullage.phantom.rank import choose_ranks

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

PROGRAMS = Path(__file__).parents[1] / "programs" / "distributed"
FIGURES = (
    "peak_requested_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "num_allocs",
    "num_segments", "at_peak", "steps",
)  # fmt: skip


def play(run_program: RunProgram, rank: int, *program: str, world_size: int = 4) -> Any:
    """One rank alone."""
    options = ("--world-size", str(world_size), "--rank", str(rank))
    return run_program(f"distributed/{program[0]}", *program[1:], options=options)


def figures(device: dict[str, Any]) -> dict[str, Any]:
    """What two ranks must share that are alike."""
    return {name: device[name] for name in FIGURES}


@pytest.mark.parametrize("how", ["env", "tcp", "file", "store", "device"])
def test_a_rank_meets_the_others_without_a_port(run_program: RunProgram, how: str) -> None:
    found = play(run_program, 0, "exchange.py", how).printed
    assert found["listening"] == []
    assert found["cuda"] == found["cpu"] == [8.0, [0, 0, 0, 0]], "a sum of four equal values"
    assert found["objects"] == [{"from": 0}] * 4
    assert found["collected"] == [0, 0, 0, 0]
    if how == "store":
        assert found["store"] == ["here"] * 4
        assert found["arrived"] == 4


def test_objects_of_another_rank_come_from_that_rank(run_program: RunProgram) -> None:
    outcome = play(run_program, 3, "exchange.py", "env")
    found = outcome.printed
    assert found["shared"] == ["of 0"]
    assert found["part"] == ["part 3"]
    assert found["place"] == [1, 1]
    assert found["cuda"] == [8.0, [3, 3, 3, 3]]
    assert outcome.document["processes"][0]["rank"] == 3
    assert [device["rank"] for device in outcome.document["devices"]] == [3], "of four, one is used"


def test_the_basis_says_what_was_taken_for_the_others(run_program: RunProgram) -> None:
    outcome = play(run_program, 0, "exchange.py", "env")
    named = [made["what"] for made in outcome.document["basis"]["allocator"]["assumptions"]]
    assert "values from the 3 other ranks: every rank held the same" in named


@pytest.mark.parametrize(
    ("program", "argument"),
    [
        ("ddp.py", None),
        ("ddp.py", "--zero"),
        ("fsdp1.py", None),
        ("fsdp2.py", None),
        ("fsdp2.py", "--hsdp"),
        ("fsdp2.py", "--offload"),
        ("tensor_parallel.py", None),
        ("context_parallel.py", None),
        ("pipeline.py", "2"),
    ],
)  # fmt: skip
def test_every_kind_of_parallel_training_runs_on_one_rank_of_many(
    run_program: RunProgram, program: str, argument: str | None
) -> None:
    words = (program,) if argument is None else (program, argument)
    outcome = play(run_program, 1, *words, world_size=8)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.device["steps"]) == 3


@pytest.mark.parametrize("world_size", [2, 8, 64])
def test_ranks_that_are_symmetric_have_equal_numbers(thin_python: Path, world_size: int) -> None:
    ranks = [0, world_size - 1]
    run = ullage.run_ranks(
        [str(PROGRAMS / "fsdp2.py")], ranks, world_size=world_size, python=thin_python
    )
    first, last = run.document["devices"]
    assert [first["rank"], last["rank"]] == ranks
    assert figures(first) == figures(last)
    assert f"ranks 0{'-' if world_size == 2 else ', '}{world_size - 1}" in run.text()


def test_the_stages_of_a_pipeline_are_distinct_and_its_replicas_are_not(thin_python: Path) -> None:
    run = ullage.run_ranks(
        [str(PROGRAMS / "pipeline.py"), "2"], "distinct", world_size=8, python=thin_python
    )
    assert dict(run.report.covers) == {0: (0, 1, 2, 3), 4: (4, 5, 6, 7)}
    assert run.document["basis"]["allocator"]["kind"] == "assumed"


def test_real_ranks_and_one_alone_use_the_same_memory(run_program: RunProgram) -> None:
    real = run_program(
        "torchrun", "--nproc-per-node", "2", str(PROGRAMS / "ddp.py"), options=("--gpus", "2")
    )
    assert real.exit_code == 0, real.stderr
    devices = real.document["devices"]
    assert [(device["rank"], device["index"]) for device in devices] == [(0, 0), (1, 1)]
    alone = play(run_program, 0, "ddp.py", world_size=2)
    for device in devices:
        assert figures(device) == figures(alone.device)


def test_a_rank_is_told_what_torchrun_tells_it() -> None:
    """The names are those of torch.distributed.elastic's agent."""
    (rank,) = choose_ranks((5,), 8)
    assert set(rank.variables()) >= {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }  # fmt: skip
