"""Recordings of real GPUs, by the rules of the torch that made each; no torch is started."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.accuracy.addresses import read_golden
from tests.rows import each

from ullage.explain.whatif import engine
from ullage.explain.whatif.engine import what_if
from ullage.explain.whatif.replays import Decider, Where
from ullage.players.phantom.device import choose_device
from ullage.players.phantom.torch_build import TorchBuild

# Recording of a real GPU -> the torch that made it; where SOURCES.md does not know, any: the rules
# that these traces meet did not change from 2.6 on.
RECORDED_BY = {
    "silmont_probe": "2.6.", "roy_attn_h32_d1024_b": "2.6.", "roy_train256_ring": "2.6.",
    "nothan_train": "2.6.", "decomfl_opt": "2.9.", "hanfa_small_inf512": "2.9.",
    "wed_med_train256": "2.11.", "bol_xl_fwd512": "2.11.", "charan_small_fwd": "2.11.",
    "bcrafton_compiled": "", "verl_state": "", "sketchkv_state": "", "flexgen_oom": "",
}  # fmt: skip
# The traces that begin with nothing allocated.
WHOLE = {"silmont_probe", "decomfl_opt"}


@each("name", RECORDED_BY)
def test_a_recording_of_a_real_gpu_comes_out_as_it_was(name: str) -> None:
    version = f"{RECORDED_BY[name] or '2.9.'}1"
    build = TorchBuild(version, "12.4", Path(), {}, frozenset(), frozenset())
    where = Where("no such python", build, choose_device(None))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "find_where", lambda *_arguments: where)
        report = what_if(read_golden(name), python=None, device=where.device, settings=())
    assert report.check.is_exact and not report.check.reasons
    assert report.is_whole == (name in WHOLE)
    assert report.baseline.outcome is not None
    assert report.baseline.outcome.decider is Decider.RULES
