"""`ullage.guard_inference`: a request that runs out of memory is answered under a leaner cache with
the same result, or refused with what it needs; the process and other requests go on.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.phantom.alone import SOURCE, printed_by
from tests.phantom.conftest import RunProgram

PROGRAM = "guard/answers.py"
LLAMA_TOKEN_BYTES = 2 * 2 * 16 * 4 * 3  # keys and values, 2 heads of 16, float32, 3 layers


@pytest.fixture(scope="session")
def answers(thin_python: Path) -> dict[str, Any]:
    """What each scenario without transformers answered."""
    names = ("threads_at_once", "waits_for_another", "wait_for_each_other", "refused", "needs")
    document: dict[str, Any] = printed_by(thin_python, PROGRAM, *names)
    return document


def test_requests_of_other_threads_are_untouched(answers: dict[str, Any]) -> None:
    # Nine at once: eight are answered, four of them in a second try, and one is refused.
    assert answers["threads_at_once"] == [True, "RequestTooLarge", 8, 4, 1]


def test_a_request_that_does_not_fit_beside_another_waits_for_it(answers: dict[str, Any]) -> None:
    ends, tries = answers["waits_for_another"]
    assert ends == ["RequestTooLarge", "large", "large", "small"]
    assert tries == [None, "lean", "lean"]


def test_of_two_that_fail_beside_each_other_none_is_refused(answers: dict[str, Any]) -> None:
    ends, tries = answers["wait_for_each_other"]
    assert ends == ["first", "last"]
    assert tries == {"first": [None, "lean", "lean"], "last": [None, "lean", "lean"]}


def test_what_cannot_be_run_again_is_refused_and_the_next_is_answered(
    answers: dict[str, Any],
) -> None:
    ends = answers["refused"]
    assert ends["change_weights"].startswith("GuardError: 'head.weight' and 0 more tensors were ch")
    assert ends["change_prompt"].startswith("GuardError: 'argument 0 of the request'")
    assert ends["cache"].startswith("GuardError: the request has past_key_values=, which the first")
    assert ends["all rungs"].startswith(
        "RequestTooLarge: the request ran out of memory with the unchanged request"
    )
    assert ends["no keyword"].startswith("SpecError: the handler does not take cache=")
    assert ends["own error"].startswith("IndexError")
    assert ends["next"]
    assert ends["counts"] == [1, 0, 4]
    assert ends["closed"].startswith("SpecError: the guard is closed")
    assert ends["empty rung"].startswith("SpecError: rungs=[{}] has a rung without keywords")


def test_what_a_cache_needs_is_the_closed_form(answers: dict[str, Any]) -> None:
    assert answers["needs"] == {
        "new tokens": [2, 2 * 16 * LLAMA_TOKEN_BYTES],
        "beams": [6, 6 * 16 * LLAMA_TOKEN_BYTES],
        "length": [2, 2 * 20 * LLAMA_TOKEN_BYTES],
        "no prompt": None,
    }


def has_transformers(python: Path) -> bool:
    """Whether an environment has transformers."""
    code = "from importlib.util import find_spec; print(find_spec('transformers'))"
    command = [str(python), "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return done.stdout.strip() != "None"


@pytest.mark.nightly
def test_generate_is_run_again_under_another_cache(thin_python: Path) -> None:
    if not has_transformers(thin_python):
        pytest.skip("needs transformers")
    equal, num_recoveries, text = printed_by(thin_python, PROGRAM, "generated")["generated"]
    assert equal == [True] * 8
    assert num_recoveries == 8
    assert "the cache of 2 x (6 + 5) tokens takes 16.5 KiB" in text


@pytest.fixture
def requests(thin_python: Path, run_program: RunProgram) -> dict[str, Any]:
    """Short and long requests to a Llama, where the cache of a long one does not fit."""
    if not has_transformers(thin_python):
        pytest.skip("needs transformers")
    document: dict[str, Any] = run_program("guard/long_request.py", SOURCE, timeout_s=900).printed
    return document


@pytest.mark.slow
@pytest.mark.phantom
def test_on_the_phantom_a_long_request_is_answered_with_an_offloaded_cache(
    requests: dict[str, Any],
) -> None:
    short, long, _, again = requests["rows"]
    assert [row["result"] for row in (short, long, again)] == [[1, 66], [8, 4098], [1, 66]]
    assert [row["recoveries"] for row in requests["rows"]] == [0, 1, 0, 0]
    # Of the failed tries nothing is left, and the next request begins with the cache as it is.
    assert [row["allocated"] for row in requests["rows"]] == [0, 0, 0, 0]
    assert again["peak"] == short["peak"]
    assert requests["reserved"] < 32 << 20


@pytest.mark.slow
@pytest.mark.phantom
def test_on_the_phantom_a_request_that_fits_no_cache_says_what_it_needs(
    requests: dict[str, Any],
) -> None:
    row = requests["rows"][2]
    # Keys and values of 6 layers of width 256 in bfloat16.
    assert row["needed"] == 8 * (32768 + 2) * 6 * 2 * 256 * 2
    assert 0 < row["free"] < 290 << 20
    assert "the cache of 8 x (32,768 + 2) tokens takes 1.5 GiB" in row["text"]
    assert "is free; ask for fewer tokens, or for fewer rows at once" in row["text"]


@pytest.mark.slow
@pytest.mark.phantom
def test_on_the_phantom_another_thread_goes_on(requests: dict[str, Any]) -> None:
    assert requests["beside"] == [[8, 4098], [[1, 64, 512]] * 2]
    assert requests["said"][-1].endswith(" recoveries and 1 refusals in 6 requests")
