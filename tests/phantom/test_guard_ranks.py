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


def test_an_error_in_an_optimizer_of_shards_is_refused_on_every_rank(sweep: Sweep) -> None:
    for number, rank in enumerate(sweep("fsdp2", "2", "gpt2", "2", "1000", "optimizer")):
        (result,) = rank["results"]
        assert result.startswith("refused: " if number else "refused: rank 1 cannot go on: AdamW")
        assert "AdamW has sharded parameters, so its step is not finished" in result
        assert "go back to the last checkpoint" in result


def test_gradients_in_ddps_buckets_are_refused_on_every_rank(sweep: Sweep) -> None:
    texts = ("pass all micro-batches of an optimizer's step to one", "a gradient that it has freed")
    for rank in sweep("ddp views", "2", "gpt2 accumulated", "2", "40", "backward"):
        refusals = [each for each in rank["results"] if each != "equal"]
        assert refusals
        assert all(each.startswith("refused: ") for each in refusals)
        assert all(any(text in each for text in texts) for each in refusals), refusals


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
def test_an_error_at_every_allocation_of_fsdp2_is_recovered_or_refused(
    sweep: Sweep, case: str
) -> None:
    ranks = sweep("fsdp2", "4", case, "2", "1")
    check_recovered_or_refused(ranks, "AdamW has sharded parameters", 80)


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
