"""`guard.largest_batch`: the batch that the line of small batches gives runs, and a larger one does
not; the training is as it was.
"""

from __future__ import annotations

import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from benchmarks.recording.bare import bare_environment
from tests.phantom.alone import SOURCE, printed_by

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "programs" / "guard" / "largest.py"
TIMEOUT_S = 600

Look = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="session")
def look(thin_python: Path) -> Look:
    """`look("line")`: what the program prints for a kind of training on the bare phantom."""

    def run(kind: str) -> dict[str, Any]:
        done = subprocess.run(
            [str(thin_python), str(PROGRAM), str(ROOT / "src"), kind],
            env=bare_environment(thin_python), check=False, capture_output=True, text=True,
            timeout=TIMEOUT_S,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        document: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return document

    return run


@pytest.mark.phantom
@pytest.mark.parametrize(
    ("kind", "found"),
    [
        ("line", {"size": 90, "predicted": 90, "is_line": True, "failed": None, "ran": [90]}),
        # The parabola is 160 + n * n: 28 are the last even number within 1000 bytes.
        ("bent", {"size": 28, "predicted": 84, "is_line": False, "failed": None, "ran": [16, 28]}),
    ],
)
def test_the_memory_of_small_batches_leads_to_the_largest(
    thin_python: Path, kind: str, found: dict[str, Any]
) -> None:
    answer = printed_by(thin_python, "guard/lines_of_batches.py", SOURCE, kind)
    assert answer | found == answer


@pytest.mark.slow
@pytest.mark.phantom
def test_a_line_gives_the_largest_batch_and_one_run_confirms_it(look: Look) -> None:
    answer = look("line")
    size = answer["size"]
    assert answer["is_line"] and answer["failed"] is None
    # The first of the small batches runs twice, to make the optimizer's states.
    assert answer["sizes"] == [2, 2, 4, 8, size]
    assert size == answer["predicted"] > 50
    assert abs(answer["predicted_bytes"] - answer["confirmed"]) < 0.02 * answer["confirmed"]
    assert answer["confirmed"] < 1.02 * answer["limit"]
    assert (answer["fits"], answer["fits_larger"]) == (True, False)
    assert answer["same"]


@pytest.mark.slow
@pytest.mark.phantom
def test_where_it_is_no_line_batches_are_climbed_without_an_error(look: Look) -> None:
    answer = look("bent")
    assert not answer["is_line"]
    assert answer["failed"] is None
    sizes = answer["sizes"][3:]
    assert len(sizes) > 2
    assert all(small < large <= 2 * small for small, large in itertools.pairwise(sizes))
    assert (answer["fits"], answer["fits_larger"]) == (True, False)
    assert "not on straight lines" in answer["text"]
    assert answer["same"]


@pytest.mark.slow
@pytest.mark.phantom
def test_a_peak_that_does_not_grow_is_refused(look: Look) -> None:
    answer = look("flat")
    assert answer["refused"].startswith("the peak does not grow with the batch")
    assert answer["same"]


@pytest.mark.slow
def test_steps_that_were_tried_leave_the_training_as_it_was(look: Look) -> None:
    answers = look("host")
    gradients, no_gpu = answers.pop("refused")
    assert gradients.startswith("there are gradients of an earlier micro-batch")
    assert no_gpu.startswith("the model is on no GPU")
    assert answers == dict.fromkeys(["restored 0", "next 0", "restored 2", "next 2"], True)
