"""The page's check on the phantom: the real thing, in the background, beside the estimate."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus import find_gpu
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.recipe import Lora, Recipe
from ullage.verbs.ui.check import Check
from ullage.verbs.ui.shape import reshape

# asyncio waits for what it starts by itself.
pytestmark = [pytest.mark.phantom, pytest.mark.fresh]
RECIPES = {
    "checkpointed": Recipe(batch=2, length=256, checkpointing="full", optimizer="sgd"),
    "autocast": Recipe(batch=2, length=256, precision="amp-bf16", accumulation=2),
    "adapters": Recipe(batch=2, length=256, lora=Lora(rank=8, targets=("all-linear",))),
}


def check(python: Path, model: str, recipe: Recipe, **turned: int) -> tuple[Any, Any]:
    """What the phantom has of a built-in model, and the estimate of the same."""
    config = reshape(find_model(model).config, **turned)
    asked = {
        "config": dict(config.fields), "recipe": asdict(recipe), "gpu": "h100-80gb",
        "python": str(python),
    }  # fmt: skip

    async def play() -> Check:
        started = Check()
        await started.start([sys.executable, "-m", "ullage.verbs.ui.check_child"], asked)
        while started.is_running:
            await asyncio.sleep(0.1)
        return started

    found = asyncio.run(play())
    if found.error is not None and "No module named" in found.error:
        pytest.skip(found.error.splitlines()[-1])
    assert found.error is None, found.error
    assert found.document is not None
    return found.document, estimate_training(config, recipe, find_gpu("h100-80gb"))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_both_answers_are_of_the_same_loop(thin_python: Path, name: str) -> None:
    document, estimate = check(thin_python, "smollm2-135m", RECIPES[name], depth=4)
    assert document["verdict"] == "fits"
    device = document["devices"][0]
    assert len(device["steps"]) == 3
    terms = {term.category.value: term.bytes for term in estimate.terms}
    for category in ("parameter", "optimizer_state"):  # blocks of small models have some slack
        assert terms.get(category, 0) == pytest.approx(device["at_peak"][category], rel=0.02)
    assert estimate.peak.allocated_bytes == pytest.approx(device["peak_allocated_bytes"], rel=0.08)


@pytest.mark.slow
def test_images_are_trained_on_as_well(thin_python: Path) -> None:
    document, estimate = check(thin_python, "vit-base", Recipe(batch=2, image=224), depth=2)
    device = document["devices"][0]
    assert estimate.peak.allocated_bytes == pytest.approx(device["peak_allocated_bytes"], rel=0.08)
