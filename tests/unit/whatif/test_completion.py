"""What was held back, read off a trace; replays are in tests/phantom/test_streams.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ullage.explain.whatif import other_ends
from ullage.explain.whatif.other_ends import measure_at_once
from ullage.explain.whatif.replays import Where
from ullage.ground.units import MIB
from ullage.log.bounds import OtherPeaks, Otherwise, Peaks
from ullage.log.replay import replay
from ullage.log.snapshot import Action, Snapshot
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import TorchBuild

Make = Callable[..., Snapshot]
BUILD = TorchBuild("2.15.0", "13.2", Path(), {}, frozenset(), frozenset())
NOWHERE = Where("no such python", BUILD, choose_device(None))


@pytest.mark.parametrize(
    "script", ["+a +b -a -b", "+a ?a -a +b", "+a +b ?a ?b -a -b +c", "+a +b ?a"]
)
def test_what_is_free_before_the_next_block_comes_was_not_held_back(
    make_snapshot: Make, script: str
) -> None:
    """No replay is made, so it does not matter that there is no interpreter."""
    (found,) = measure_at_once(make_snapshot(script), None, NOWHERE)
    assert (found.num_blocks, found.block_bytes) == (0, 0)
    assert found.peaks[0].reserved_bytes == 2 * MIB * script.count("+")


@pytest.mark.parametrize(
    ("script", "num_held", "num_at_peak"),
    [
        ("+a ?a +b -a -b", 1, 1),
        ("+a ?a +b ?b +c -a -b +d", 2, 0),  # segments are never given back: the peak is the end
        ("+a ?a +b ?b +c", 2, 2),
        ("+a ?a +b -a +c ?c +d", 2, 1),
    ],
)
def test_a_block_is_held_back_where_another_comes_before_it_is_free(
    make_snapshot: Make,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    num_held: int,
    num_at_peak: int,
) -> None:
    monkeypatch.setattr(other_ends, "replay_variants", lambda *_arguments: [Peaks(7, 5)])
    (found,) = measure_at_once(make_snapshot(script), None, NOWHERE)
    held = (num_held, num_at_peak * MIB)
    assert found == OtherPeaks(Otherwise.COMPLETION, 0, (Peaks(7, 5),), *held)


def test_at_once_each_block_goes_where_the_program_let_go_of_it(make_snapshot: Make) -> None:
    snapshot = make_snapshot("+a ?a +b -a +c -b")
    late = replay(snapshot)
    let_go = other_ends.let_go(late.blocks, snapshot.events_of(0))
    actions = snapshot.events_of(0).action
    assert actions[let_go[:2]].tolist() == [Action.FREE_REQUESTED] * 2
    assert let_go[2] == len(actions), "it is there at the end"
    assert np.all(let_go <= late.blocks.death)
