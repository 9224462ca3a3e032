"""`ullage.guard` on several ranks: an error on some of them ends the step of all, no rank waits for
another, and the step that is run again leaves on each rank what it leaves without the error.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.conftest import RunProgram

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "programs" / "guard"
SOURCE = str(ROOT / "src")
TIMEOUT_S = 3000
# Between backward and the optimizer, where gradients of earlier micro-batches are sums already.
LOST = "a value that was computed before the error is needed"

Sweep = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def sweep(thin_python: Path) -> Sweep:
    """`sweep("ddp", "2", "cnn", "2", "9")`: the document of each rank."""

    def run(*words: str) -> list[dict[str, Any]]:
        done = subprocess.run(
            [str(thin_python), str(PROGRAMS / "ranks.py"), *words],
            check=False, capture_output=True, text=True, timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ranks: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["ranks"]
        return ranks

    return run


def check_all_recovered(ranks: list[dict[str, Any]], at_least: int) -> None:
    """Every error was recovered on every rank."""
    assert sum(ranks[0]["results"].values()) >= at_least
    for rank in ranks:
        assert list(rank["results"]) == ["equal"], rank["examples"]


def test_an_error_in_ddps_backward_on_one_rank_is_recovered_on_both(sweep: Sweep) -> None:
    """The others are in an all-reduce then, or have it behind them."""
    check_all_recovered(sweep("ddp", "2", "gpt2", "2", "12", "backward"), 4)


def test_an_error_on_both_ranks_of_a_net_with_batch_statistics_is_recovered(sweep: Sweep) -> None:
    check_all_recovered(sweep("ddp", "2", "cnn", "2", "15", "both"), 4)


def check_recovered_or_refused(ranks: list[dict[str, Any]], text: str, at_least: int) -> None:
    """Errors were recovered, or refused with one sentence."""
    for rank in ranks:
        assert rank["results"]["equal"] >= at_least
        others = [each for each in rank["results"] if each != "equal"]
        assert all(each.startswith("refused: ") and text in each for each in others), others


def test_gradients_of_a_step_with_no_sync_are_summed_once(sweep: Sweep) -> None:
    ranks = sweep("ddp", "2", "gpt2 accumulated", "2", "50")
    check_recovered_or_refused(ranks, LOST, 4)


def test_an_error_with_fsdp2_on_four_ranks_is_recovered_on_all(sweep: Sweep) -> None:
    check_all_recovered(sweep("fsdp2", "4", "gpt2", "2", "20", "backward"), 2)


@pytest.mark.parametrize(
    "words",
    [
        ("fsdp2", "2", "gpt2", "2", "3"),
        # Collectives within the step: gradients of norms are not summed before.
        ("tp", "2", "gpt2", "2", "12"),
        pytest.param(("tp", "2", "gpt2 fused", "2", "2"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "gpt2", "1", "1"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "gpt2 for loop", "1", "2"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "gpt2 for loop", "2", "2"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "llama", "1", "1"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "cnn", "1", "1"), marks=pytest.mark.nightly),
        pytest.param(("fsdp2", "2", "cnn for loop", "1", "1"), marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_an_error_in_the_step_of_a_sharded_optimizer_is_finished(
    sweep: Sweep, words: tuple[str, ...]
) -> None:
    check_all_recovered(sweep(*words, "optimizer"), 4)


@pytest.fixture(scope="session")
def shards(thin_python: Path) -> dict[str, Any]:
    """The document of shards.py."""
    done = subprocess.run(
        [str(thin_python), str(PROGRAMS / "shards.py")], check=False, capture_output=True,
        text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": SOURCE, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return document


@pytest.mark.parametrize("kind", ["lists", "fused"])
def test_a_step_of_shards_is_finished_after_an_error_at_each_operation(
    shards: dict[str, Any], kind: str
) -> None:
    """The fused update comes after the count of steps, and an error may come between."""
    found = shards[kind]
    assert found["errors"] == found["equal"] == found["operations"] > 3


def test_a_collective_of_an_optimizer_is_run_again_only_if_its_result_is_held(
    shards: dict[str, Any],
) -> None:
    assert shards["held"] is None
    assert "changed its result in place" in shards["changed"]
    assert "of torch.distributed itself" in shards["of torch.distributed"]
    assert "are not held" in shards["large"]


def test_an_average_of_sharded_weights_is_refused(shards: dict[str, Any]) -> None:
    """Its update changes detached weights, whose version counters are others."""
    assert "the average has sharded weights, so its update is not finished" in shards["average"]


def test_views_with_one_version_counter_are_refused_once_changed(shards: dict[str, Any]) -> None:
    assert "their common version counter does not say which" in shards["views"]


@pytest.mark.parametrize(
    "wrapper", ["ddp views", "fsdp2", pytest.param("fsdp2 unsynced", marks=pytest.mark.nightly)]
)
def test_gradients_of_earlier_steps_that_collectives_change_are_put_back(
    sweep: Sweep, wrapper: str
) -> None:
    check_all_recovered(sweep(wrapper, "2", "gpt2 accumulated", "2", "40", "backward"), 3)


@pytest.mark.parametrize(
    "words",
    [
        ("tp", "2", "gpt2", "2", "45"),
        pytest.param(("tp", "2", "gpt2", "1", "3"), marks=pytest.mark.nightly),
        pytest.param(("tp fsdp2", "4", "gpt2", "2", "12"), marks=pytest.mark.nightly),
    ],
    ids=" ".join,
)
def test_an_error_with_split_tensors_is_recovered_on_all_ranks(
    sweep: Sweep, words: tuple[str, ...]
) -> None:
    check_all_recovered(sweep(*words), 4)


@pytest.mark.nightly
def test_four_ranks_of_ddp_end_equal_bit_for_bit(sweep: Sweep) -> None:
    check_all_recovered(sweep("ddp", "4", "gpt2", "2", "3"), 40)


@pytest.mark.nightly
@pytest.mark.parametrize("step", ["1", "2"])
@pytest.mark.parametrize(
    "words",
    [
        ("ddp", "2", "cnn"), ("ddp", "2", "gpt2"), ("ddp", "2", "vit"),
        ("ddp", "2", "llama"), ("ddp unused", "2", "gpt2"),
        ("ddp whole", "2", "gpt2 accumulated"), ("ddp views", "2", "gpt2"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_an_error_at_every_allocation_of_ddp_is_recovered(
    sweep: Sweep, words: tuple[str, ...], step: str
) -> None:
    check_all_recovered(sweep(*words, step, "1"), 70)


@pytest.mark.nightly
@pytest.mark.parametrize("case", ["gpt2", "llama"])
def test_an_error_at_every_allocation_of_fsdp2_is_recovered(sweep: Sweep, case: str) -> None:
    check_all_recovered(sweep("fsdp2", "4", case, "2", "1"), 80)


@pytest.mark.nightly
def test_an_error_at_every_allocation_of_an_accumulated_step_is_recovered_or_refused(
    sweep: Sweep,
) -> None:
    check_recovered_or_refused(sweep("ddp", "2", "gpt2 accumulated", "2", "1"), LOST, 200)


@pytest.mark.phantom
@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp2", marks=pytest.mark.nightly)])
def test_on_the_phantom_a_rank_that_runs_out_of_memory_does_not_stop_the_others(
    run_program: RunProgram, wrapper: str
) -> None:
    outcome = run_program(
        "torchrun", "--nproc-per-node", "2", str(PROGRAMS / "long_batch_ranks.py"), SOURCE,
        wrapper, "6", options=("--gpus", "2", "--memory", "4.8GiB"), timeout_s=600,
        env=(("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),),
    )  # fmt: skip
    assert outcome.exit_code == 0, outcome.stderr
    ranks = outcome.printed
    for rank in ranks:
        rungs = [rung for _, rung, _ in rank["rows"]]
        assert rungs[1] == 0
        assert rungs[2] > 0
        assert rank["rows"][-1][2] == 2
        # No growth: the same bytes after every step.
        assert len({allocated for allocated, _, _ in rank["rows"][1:]}) == 1
    assert [rank["rows"] for rank in ranks[1:]] == [ranks[0]["rows"]]
    assert sum("out of memory (rank 1: " in line for line in ranks[0]["said"]) == 2
