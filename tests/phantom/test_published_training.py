"""The loop that the page's check runs on the phantom, with a model of timm."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ullage.ground.programs import program_path
from ullage.players.eager.training.recipe import Recipe

pytestmark = pytest.mark.phantom


def test_it_trains_the_model_that_it_is_given(
    run_program: Callable[..., Any], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"architecture": "resnet18", "num_classes": 10}), "utf-8")
    recipe = json.dumps(asdict(Recipe(batch=2, image=64, accumulation=2)))
    outcome = run_program(str(program_path("published_training")), str(config), recipe)
    assert outcome.exit_code == 0, outcome.stderr
    assert len(outcome.device["steps"]) == 3
    # Those of ResNet-18 in bfloat16, with a head for ten classes in place of a thousand, and what
    # the allocator gives blocks more.
    parameters = 2 * (11_689_512 - 990 * 513)
    held = outcome.device["at_peak"]
    assert parameters <= held["parameter"] < 1.06 * parameters
    assert 2 * parameters <= held["optimizer_state"] < 2.12 * parameters
