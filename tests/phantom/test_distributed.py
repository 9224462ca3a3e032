"""Ranks of distributed jobs: alone, several by themselves, and real processes under torchrun."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import find_program

import ullage
from ullage.players.phantom.rank import choose_ranks

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


@pytest.mark.slow(but=("env",))
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


SIZES = (10, 4_200, 3_000_000)


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["nccl", "gloo"])
def test_objects_of_any_size_come_from_their_ranks(run_program: RunProgram, backend: str) -> None:
    launch = ("torchrun", "--nproc-per-node", "2", find_program("distributed/objects.py"))
    outcome = run_program(*launch, backend, options=("--gpus", "2"))
    lines = [json.loads(line) for line in outcome.stderr.splitlines() if line.startswith('{"')]
    first, second = sorted(lines, key=lambda line: line["rank"])
    assert first["found"].pop("alone") == ["a 5000"]
    for size in SIZES:
        both = [f"a {size}", f"b {size + 1}"]
        assert first["found"][str(size)] == {
            "gathered": both, "collected": None, "shared": [both[1]] * 2, "part": [both[0]],
            "received": None,
        }  # fmt: skip
        assert second["found"][str(size)] == {
            "gathered": both, "collected": both, "shared": [both[1]] * 2, "part": [both[1]],
            "received": [both[0]],
        }  # fmt: skip
    # Three buffers of the longest: the own one, and one for each rank.
    assert (
        (first["peak"] > 3 * SIZES[-1]) == (second["peak"] > 3 * SIZES[-1]) == (backend == "nccl")
    )


def test_objects_of_any_size_are_this_ranks_where_no_other_is(run_program: RunProgram) -> None:
    found = play(run_program, 1, "objects.py", "nccl", world_size=2).printed["found"]
    for size in SIZES:
        own, others = f"b {size + 1}", f"a {size}"
        assert found[str(size)] == {
            "gathered": [own] * 2, "collected": [own] * 2, "shared": [own] * 2, "part": [own],
            "received": [others],
        }  # fmt: skip


@pytest.mark.slow
def test_objects_of_another_rank_come_from_that_rank(run_program: RunProgram) -> None:
    outcome = play(run_program, 3, "exchange.py", "env")
    found = outcome.printed
    assert found["shared"] == ["of 0"]
    assert found["part"] == ["part 3"]
    assert found["place"] == [1, 1]
    assert found["cuda"] == [8.0, [3, 3, 3, 3]]
    assert outcome.document["processes"][0]["rank"] == 3
    assert [device["rank"] for device in outcome.document["devices"]] == [3], "of four, one is used"


@pytest.mark.slow
def test_what_a_collective_brings_of_known_values_is_as_safe_from_chance_as_they_are(
    run_program: RunProgram,
) -> None:
    found = play(run_program, 0, "counts.py").printed
    assert found["received"] == found["sent"] == list(range(4))


def test_the_basis_says_what_was_taken_for_the_others(run_program: RunProgram) -> None:
    outcome = play(run_program, 0, "exchange.py", "env")
    named = [made["what"] for made in outcome.document["basis"]["allocator"]["assumptions"]]
    assert "values from the 3 other ranks: every rank held the same" in named


@pytest.mark.slow(but=("ddp.py---zero",))
@pytest.mark.parametrize(
    ("program", "argument"),
    [
        ("ddp.py", "--zero"),
        ("fsdp2.py", "--hsdp"),
        ("fsdp2.py", "--offload"),
        ("context_parallel.py", None),
        ("pipeline.py", "2"),
    ],
)  # fmt: skip
def test_every_kind_of_parallel_training_runs_on_one_rank_of_many(
    run_program: RunProgram, program: str, argument: str | None
) -> None:
    """Those of test_distributed_jobs.py aside."""
    words = (program,) if argument is None else (program, argument)
    outcome = play(run_program, 1, *words, world_size=8)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.device["steps"]) == 3


@pytest.mark.slow
def test_every_rank_leaves_a_snapshot_and_a_page_has_them_all(
    thin_python: Path, tmp_path: Path
) -> None:
    def play_both(*, force: bool = False) -> ullage.Run:
        words = [str(PROGRAMS / "ddp.py")]
        return ullage.run_ranks(
            words, ranks=[0, 3], world_size=4, python=thin_python, snapshot=tmp_path / "ranks",
            force=force,
        )  # fmt: skip

    run = play_both()
    names = [f"rank{number}.pickle" for number in (0, 3)]
    assert sorted(path.name for path in (tmp_path / "ranks").iterdir()) == names
    assert [Path(str(process.snapshot)).name for process in run.report.processes] == names
    assert run.html.count('class="run"') == len(run.devices) == 2
    with pytest.raises(ullage.SpecError, match="exists; give another directory"):
        play_both()
    (tmp_path / "file").touch()
    with pytest.raises(ullage.SpecError, match="cannot be one"):
        ullage.run_ranks(
            [str(PROGRAMS / "ddp.py")], ranks=[0, 1], world_size=2, python=thin_python,
            snapshot=tmp_path / "file",
        )  # fmt: skip
    assert play_both(force=True).exit_code == 0


@pytest.mark.slow
def test_the_stages_of_a_pipeline_are_distinct_and_its_replicas_are_not(thin_python: Path) -> None:
    run = ullage.run_ranks(
        [str(PROGRAMS / "pipeline.py"), "2"], ranks="distinct", world_size=8, python=thin_python
    )
    assert dict(run.report.covers) == {0: (0, 1, 2, 3), 4: (4, 5, 6, 7)}
    assert run.document["basis"]["allocator"]["kind"] == "assumed"


LAUNCHERS = {
    "torchrun": "torchrun --nproc-per-node",
    "torch.distributed.run": "-m torch.distributed.run --nproc-per-node",
    "accelerate": "accelerate launch --num_processes",
    "spawn": "",
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "program", "size"),
    [
        ("torchrun", "fsdp2.py", 2),
        pytest.param("torchrun", "fsdp2.py", 4, marks=pytest.mark.nightly),
        pytest.param("torchrun", "ddp.py", 4, marks=pytest.mark.nightly),
        pytest.param("torch.distributed.run", "ddp.py", 4, marks=pytest.mark.nightly),
        pytest.param("accelerate", "fsdp2.py", 4, marks=pytest.mark.nightly),
        pytest.param("accelerate", "ddp.py", 4, marks=pytest.mark.nightly),
        pytest.param("spawn", "ddp.py", 4, marks=pytest.mark.nightly),
    ],
)
def test_real_ranks_and_one_alone_use_the_same_memory(
    run_program: RunProgram, thin_python: Path, launcher: str, program: str, size: int
) -> None:
    started = "spawned.py" if launcher == "spawn" else program
    count = [str(size)] if LAUNCHERS[launcher] else []
    words = [*LAUNCHERS[launcher].split(), *count, str(PROGRAMS / started)]
    if launcher == "accelerate" and not (thin_python.parent / "accelerate").exists():
        pytest.skip("not in the environment: accelerate")
    real = run_program(*words, options=("--gpus", str(size)))
    assert real.exit_code == 0, real.stderr
    devices = real.document["devices"]
    assert [(device["rank"], device["index"]) for device in devices] == [
        (n, n) for n in range(size)
    ]
    alone = play(run_program, size // 2, program, world_size=size)
    for device in devices:
        assert figures(device) == figures(alone.device)


@pytest.mark.nightly
@pytest.mark.parametrize("world_size", [4, 64])
@pytest.mark.parametrize("stage", ["1", "2"])
def test_zero_holds_its_part_of_the_optimizer(
    run_program: RunProgram, thin_python: Path, stage: str, world_size: int
) -> None:
    if not (thin_python.parent / "deepspeed").exists():
        pytest.skip("not in the environment: deepspeed")
    outcome = play(run_program, 0, "deepspeed_zero.py", stage, world_size=world_size)
    said, at_peak = outcome.printed, outcome.device["at_peak"]
    part = said["parameters"] // world_size  # which comes out even here
    assert [said["part"], *said["states"]] == [part] * 3
    # In bf16 all, in fp32 the part; of Adam's two averages the part. A block is a multiple of 512.
    assert 0 <= at_peak["parameter"] - (2 * said["parameters"] + 4 * part) < 512
    assert 0 <= at_peak["optimizer_state"] - 2 * 4 * part < 2 * 512 + 512


def test_a_rank_is_told_what_torchrun_tells_it() -> None:
    """The names are those of torch.distributed.elastic's agent."""
    (rank,) = choose_ranks((5,), 8)
    assert set(rank.variables()) >= {
        "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE",
        "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT",
        "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    }  # fmt: skip
