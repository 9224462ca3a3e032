"""`ullage.guard` on several ranks: an error on some of them ends the step of all, and no rank waits
for another. That each rank leaves what it leaves without is in test_error_at_allocations.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE, printed_by
from tests.phantom.conftest import RunProgram, find_program


@pytest.fixture(scope="session")
def shards(thin_python: Path) -> dict[str, Any]:
    """What the guard notes in a step of an optimizer with sharded parameters."""
    document: dict[str, Any] = printed_by(thin_python, "guard/shards.py")
    return document


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


@pytest.mark.slow
@pytest.mark.phantom
@pytest.mark.parametrize("wrapper", ["ddp", pytest.param("fsdp2", marks=pytest.mark.nightly)])
def test_on_the_phantom_a_rank_that_runs_out_of_memory_does_not_stop_the_others(
    run_program: RunProgram, wrapper: str
) -> None:
    outcome = run_program(
        "torchrun", "--nproc-per-node", "2", find_program("guard/long_batch_ranks.py"), SOURCE,
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
