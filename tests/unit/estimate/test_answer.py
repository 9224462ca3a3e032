"""Which GPU, how large a batch, what would save most."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ullage.facts.families.builtin import find_model
from ullage.facts.gpus.catalog import find_gpu, load_catalog
from ullage.ground.errors import SpecError
from ullage.players.eager.training.answer import find_knobs, find_largest, rank_gpus
from ullage.players.eager.training.estimate import estimate_training
from ullage.players.eager.training.recipe import Recipe

CONFIG = find_model("tinyllama-1.1b").config
RECIPE = Recipe(batch=2, length=1024)


def test_the_largest_batch_fits_and_one_more_does_not() -> None:
    gpu = find_gpu("rtx-4090")
    largest = find_largest(CONFIG, RECIPE, gpu, "batch")
    assert largest.value is not None
    needs = [
        estimate_training(CONFIG, replace(RECIPE, batch=largest.value + more), gpu).high_bytes
        for more in (0, 1)
    ]
    assert needs[0] == largest.high_bytes <= gpu.total_bytes < needs[1]


def test_where_not_even_one_fits() -> None:
    largest = find_largest(find_model("llama-3.1-70b").config, RECIPE, find_gpu("t4"), "batch")
    assert largest.value is None


@pytest.mark.parametrize("knob", ["image", "depth"])
def test_a_knob_that_the_model_lacks_is_refused(knob: str) -> None:
    with pytest.raises(SpecError, match="largest"):
        find_largest(CONFIG, RECIPE, find_gpu("t4"), knob)


def test_gpus_are_ranked_by_how_many_it_takes() -> None:
    rows = rank_gpus(CONFIG, RECIPE, load_catalog())
    assert len(rows) == len(load_catalog())
    counts = [row.count or 10**6 for row in rows]
    assert counts == sorted(counts)
    for row in rows:
        assert (row.headroom_bytes >= 0) == (row.count is not None)
        assert row.headroom_bytes == row.capacity_bytes - row.high_bytes
    alone = next(row for row in rows if row.gpu == "h100-80gb")
    assert alone.high_bytes == estimate_training(CONFIG, RECIPE, find_gpu("h100-80gb")).high_bytes


def test_knobs_save_what_they_say() -> None:
    gpu = find_gpu("h100-80gb")
    knobs = {knob.name: knob for knob in find_knobs(CONFIG, RECIPE, gpu)}
    before = estimate_training(CONFIG, RECIPE, gpu)
    after = estimate_training(CONFIG, replace(RECIPE, checkpointing="full"), gpu)
    full = knobs["checkpointing full"]
    assert full.saved_bytes == before.bytes - after.bytes > 0
    # Forward a second time, but for the head and the last layer's end: under a third more.
    assert 0.15 < full.more_compute < 1 / 3
    assert knobs["half the batch, twice"].more_compute == pytest.approx(0, abs=1e-9)
    assert all(knob.saved_bytes > 0 for knob in knobs.values())


def test_work_is_six_times_parameters_times_tokens() -> None:
    """2 forward and 4 backward for each weight and token; the embedding multiplies nothing."""
    estimate = estimate_training(CONFIG, RECIPE)
    multiplied = estimate.num_parameters - 32000 * 2048
    assert estimate.work == pytest.approx(6 * multiplied * 2 * 1024, rel=0.01)
