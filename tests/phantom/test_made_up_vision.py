"""Dummy weights beyond transformers: diffusers and timm, and where it has nothing to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytestmark = [pytest.mark.phantom, pytest.mark.slow]
RunProgram = Callable[..., Any]
OPTIONS = ("--dummy-weights",)
# So that nothing asks the network.
OFFLINE = (("HF_HUB_OFFLINE", "1"),)
UNUSED = "dummy_weights made nothing up"


@pytest.fixture(scope="module")
def loaded(run_program: RunProgram) -> Any:
    return run_program("made_up_vision.py", "diffusers", "timm", options=OPTIONS, env=OFFLINE)


def test_a_model_of_diffusers_is_loaded_from_a_directory_with_a_config_alone(loaded: Any) -> None:
    printed = loaded.printed
    assert printed["numbers"] == printed["expected"] > 10**5
    assert printed["dtype"] == "torch.float16"


def test_a_pretrained_model_of_timm_keeps_its_first_weights(loaded: Any) -> None:
    assert loaded.printed["classes"] == 7


def test_the_report_says_what_was_made_up(loaded: Any) -> None:
    warnings = loaded.document["warnings"]
    made = [text for text in warnings if "are not there and were made up" in text]
    assert [name for name in ("pipeline/unet", "resnet18") if any(name in text for text in made)]
    assert len(made) == 2 and not any(UNUSED in text for text in warnings)


def test_the_report_says_where_there_was_nothing_to_make_up(run_program: RunProgram) -> None:
    outcome = run_program("made_up_vision.py", options=OPTIONS, env=OFFLINE)
    assert [text for text in outcome.document["warnings"] if text.startswith(UNUSED)]


def test_without_the_option_the_weights_are_missed(run_program: RunProgram) -> None:
    outcome = run_program("made_up_vision.py", "diffusers", env=OFFLINE)
    assert outcome.exit_code == 3
