"""Recordings of real GPUs, by the rules of the torch that made each; no torch is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.accuracy.addresses import read_golden
from tests.phantom.test_whatif import RECORDED_BY
from tests.rows import each

from ullage.phantom.device import choose_device
from ullage.phantom.torch_build import TorchBuild
from ullage.whatif import engine
from ullage.whatif.engine import what_if
from ullage.whatif.replays import Decider, Where


@each("name", RECORDED_BY)
def test_a_recording_of_a_real_gpu_comes_out_as_it_was(name: str) -> None:
    version = f"{RECORDED_BY[name] or '2.9.'}1"
    build = TorchBuild(version, "12.4", Path(), {}, frozenset(), frozenset())
    where = Where("no such python", build, choose_device(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "find_where", lambda *_arguments: where)
        report = what_if(read_golden(name), python=None, device=where.device, settings=())
    assert report.check.is_exact and not report.check.reasons
    assert report.baseline.outcome is not None
    assert report.baseline.outcome.decider is Decider.RULES
