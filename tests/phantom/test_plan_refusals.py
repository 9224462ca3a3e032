"""Where a plan cannot be applied, or would not be exact, it says so in a sentence."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.phantom.alone import printed_by

CHANGED = "and would not compute the same when it runs again; take it out of the plan"
SAID = {
    "nothing_is_wrong": None,
    "batch_norm_in_evaluation": None,
    "applied_again_after_its_end": None,
    "needs_this_torch": None,
    "input_changed_in_place": f"a InPlace changes its input in place, {CHANGED}",
    "buffer_changed": f"a Counts changes its buffer 'calls', {CHANGED}",
    "spectral_norm": r"a ParametrizedLinear changes its buffer 'parametrizations\.weight",
    "parameter_changed_before_backward": "a Linear has inputs or parameters that were changed",
    "switched_to_evaluation_before_backward": "a Dropout was switched between training and",
    "applied_twice": "a plan is already applied to Stack; put all actions into one plan",
    "module_not_there": r"Stack has no module 'block\.0'; it has, for example: ",
    "another_model": "the model is Linear, and was Stack; the number of parameters is 2, and was",
    "several_optimizers": "the optimizer is AdamW, SGD, and was AdamW; make one",
    "needs_what_is_not_installed": "'needy' needs no-such-package, which is not installed here",
    "needs_a_newer_torch": r"'needy' needs torch>=99\.1; this is torch 2",
}


@pytest.fixture(scope="session")
def said(thin_python: Path) -> dict[str, str | None]:
    """The error of each case, None where there was none."""
    found: dict[str, str | None] = printed_by(thin_python, "plans/refusals.py")
    return found


def test_every_case_is_known(said: dict[str, str | None]) -> None:
    assert set(said) == set(SAID)


@pytest.mark.parametrize("case", SAID)
def test_what_a_plan_cannot_do_it_refuses(case: str, said: dict[str, str | None]) -> None:
    expected, found = SAID[case], said[case]
    if expected is None:
        assert found is None
    else:
        assert found is not None and re.search(expected, found), found
