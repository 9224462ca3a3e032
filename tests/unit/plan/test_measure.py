"""Which techniques are kept after they were measured, and what goes with what."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from ullage.act.techniques.technique import Action, Semantics
from ullage.search.costs import measure
from ullage.search.costs.blocks import Block
from ullage.search.costs.clocked import Seconds
from ullage.search.costs.measure import Measured, helps
from ullage.search.costs.profile import Profile, Stretch
from ullage.search.menu import moves, settings, treatments

HEAD = Stretch("after forward", 1)


@pytest.fixture
def base() -> Measured:
    """A program of two blocks that takes 1000 bytes and a second."""
    totals = SimpleNamespace(peak_reserved_bytes=1200, peak_allocated_bytes=1000)
    live_blocks = {HEAD: np.ones(2, dtype=np.bool_)}
    return Measured(
        (),
        cast("Any", SimpleNamespace(totals=totals)),
        Profile(np.array([300, 300]), {HEAD: 400}, live_blocks, 1000),
        Seconds(np.array([0.4, 0.4]), 1.0),
    )


def test_what_changes_nothing_does_not_help(base: Measured) -> None:
    assert not helps(base, base)


def test_what_blocks_keep_a_stretch_the_cache_or_the_time_less_helps(base: Measured) -> None:
    kept = replace(base.profile, kept_bytes=np.array([300, 290]))
    rest = replace(base.profile, rest_bytes={HEAD: 390})
    device = SimpleNamespace(
        totals=SimpleNamespace(peak_reserved_bytes=1100, peak_allocated_bytes=1000)
    )
    assert helps(replace(base, profile=kept), base)
    assert helps(replace(base, profile=rest), base)
    assert helps(replace(base, device=cast("Any", device)), base)
    assert helps(replace(base, seconds=Seconds(base.seconds.blocks, 0.99)), base)


def test_what_takes_more_of_all_does_not_help(base: Measured) -> None:
    more = replace(base.profile, kept_bytes=np.array([310, 310]), rest_bytes={HEAD: 500})
    worse = replace(base, profile=more, seconds=Seconds(base.seconds.blocks, 1.1))
    assert not helps(worse, base)


def test_settings_hold_each_technique_once_and_none_that_exclude_each_other() -> None:
    chosen = [one[0] for one in moves(Semantics.ROUNDING)]
    made = list(settings(chosen))
    assert made[0] == ()
    for setting in made:
        names = [one.technique for one in setting]
        assert len(set(names)) == len(names)
        assert len({"optimizer_offload", "bf16_states"} & set(names)) <= 1
    assert any(len(setting) > 1 for setting in made)


def test_only_what_is_allowed_is_offered() -> None:
    same = {one[0].technique for one in moves(Semantics.SAME)}
    assert "bf16_states" not in same
    assert "bf16_states" in {one[0].technique for one in moves(Semantics.ROUNDING)}


def test_checkpointing_and_offload_are_a_treatment_together_checkpoint_first() -> None:
    paths = ("h.0", "h.1")
    pair = (Action("checkpoint", paths), Action("offload_activations", paths))
    assert pair in list(treatments(Semantics.SAME, paths))


def test_blocks_of_one_class_that_keep_about_as_much_are_alike(base: Measured) -> None:
    """As in GPT-2, whose equal blocks differ by 1 %, and in a U-Net, whose stages do not."""
    sizes = {"Block": (1000, 990, 1040, 1060, 500), "Other": (1000,)}
    blocks = [Block(f"{kind}.{size}", kind) for kind, of in sizes.items() for size in of]
    kept_bytes = np.array([size for of in sizes.values() for size in of])
    profile = replace(base.profile, kept_bytes=kept_bytes)
    assert measure._group(blocks, profile).tolist() == [0, 0, 0, 1, 2, 3]
    assert measure._group((), replace(base.profile, kept_bytes=np.zeros(0))).tolist() == []
