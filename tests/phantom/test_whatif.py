"""Requests made again: under the recorded settings they come to what was recorded, segment by
segment; under others to what the program does when it runs under those.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ullage.explain.expandable import measure_expandable
from ullage.explain.whatif import settings
from ullage.explain.whatif.engine import what_if
from ullage.explain.whatif.outcomes import WhatIfReport
from ullage.explain.whatif.replays import Decider
from ullage.explain.whatif.settings import EXPANDABLE, Family, Setting
from ullage.log.replay import replay as replay_trace
from ullage.log.snapshot_reader import read_snapshot
from ullage.players.phantom.device import choose_device

pytestmark = pytest.mark.phantom
RunProgram = Callable[..., Any]

GOLDEN = Path(__file__).parent.parent / "golden" / "snapshots"
PROGRAM = "asks_in_many_ways.py"
OTHERS = (
    EXPANDABLE,
    Setting(Family.ROUNDUP, "roundup_power2_divisions:4"),
    Setting(Family.MAX_SPLIT, "max_split_size_mb:32"),
    Setting(Family.NON_SPLIT_ROUNDING, "max_split_size_mb:32,max_non_split_rounding_mb:64"),
)


def replay(
    path: Path,
    python: Path,
    settings: tuple[Setting, ...] = (),
    gpu: str | None = None,
) -> WhatIfReport:
    return what_if(
        read_snapshot(path), python=str(python), device=choose_device(gpu), settings=settings
    )


def expandable_by_rules(path: Path) -> int | None:
    """What `ullage explain` finds without torch."""
    snapshot = read_snapshot(path)
    return measure_expandable(snapshot, replay_trace(snapshot), 0)


def test_a_file_that_contradicts_itself_is_said_to(thin_python: Path, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / "mosaic_SYNTHETIC.pickle.xz").read_bytes()))
    report = replay(path, thin_python, (EXPANDABLE,))
    assert not report.check.is_exact
    assert any("contradicts itself" in reason for reason in report.check.reasons)
    assert report.recommended is None


# What the program is told, and what it runs with.
RUNS = {
    "streams and an emptied cache": ((), ()),
    "a private pool": (("pool",), ()),
    "expandable segments": (
        ("pool",),
        (
            "--alloc-conf",
            "expandable_segments:True",
        ),
    ),
    "memory is short": (("retries",), ()),
    "blocks that are not cut": (
        (),
        (
            "--alloc-conf",
            "max_split_size_mb:32",
        ),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_comes_out_as_it_was(name: str, run_program: RunProgram, thin_python: Path) -> None:
    words, options = RUNS[name]
    outcome = run_program(PROGRAM, *words, gpu="l4", options=options)
    assert outcome.exit_code == 0, outcome.stderr
    report = replay(outcome.directory / "snapshot.pickle", thin_python)
    assert report.is_whole
    assert report.check.is_exact, report.check
    assert report.check.recorded_reserved_bytes == outcome.device["peak_reserved_bytes"]


@pytest.mark.parametrize("setting", OTHERS, ids=lambda setting: setting.text)
def test_what_another_setting_would_reserve_is_what_the_program_then_reserves(
    setting: Setting, run_program: RunProgram, thin_python: Path
) -> None:
    recorded = run_program(PROGRAM, gpu="l4")
    report = replay(recorded.directory / "snapshot.pickle", thin_python, OTHERS)
    (told,) = [one.outcome for one in report.tried if one.setting == setting]
    then = run_program(PROGRAM, gpu="l4", options=("--alloc-conf", setting.text))
    for kind in ("requested", "allocated", "reserved"):
        assert getattr(told, f"peak_{kind}_bytes") == then.device[f"peak_{kind}_bytes"]
    if setting == EXPANDABLE:
        by_rules = expandable_by_rules(recorded.directory / "snapshot.pickle")
        assert by_rules == told.peak_reserved_bytes
    assert told.peak_reserved_bytes >= report.packing.size_bytes >= report.lower_bound_bytes


def test_on_the_recorded_gpu_memory_is_short_as_it_was(
    run_program: RunProgram, thin_python: Path
) -> None:
    recorded = run_program(PROGRAM, "retries", gpu="l4")
    device = recorded.device
    assert device["num_ooms"] == 1 and device["num_alloc_retries"] == 2
    before = replay(recorded.directory / "snapshot.pickle", thin_python, gpu="l4").baseline.outcome
    assert before is not None and not before.fits
    assert before.num_failed_attempts == device["num_ooms"]
    assert before.num_retries == device["num_alloc_retries"]
    assert before.peak_reserved_bytes == device["peak_reserved_bytes"]


def test_a_larger_gpu_has_room_for_what_failed(run_program: RunProgram, thin_python: Path) -> None:
    path = run_program(PROGRAM, "retries", gpu="l4").directory / "snapshot.pickle"
    larger = replay(path, thin_python, gpu="a100-40gb")
    assert larger.baseline.outcome is not None and larger.baseline.outcome.fits
    assert not larger.is_too_small
    smaller = replay(path, thin_python, gpu="t4")
    assert smaller.baseline.outcome is not None and not smaller.baseline.outcome.fits
    assert smaller.is_too_small


def test_gpus_on_which_it_hangs_on_the_settings_are_tried(
    thin_python: Path, tmp_path: Path
) -> None:
    """A recording with 22.2 GiB reserved and 21.3 GiB live: an l4 has 21.55 GiB for it."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(lzma.decompress((GOLDEN / "nothan_train.pickle.xz").read_bytes()))
    report = replay(path, thin_python, (EXPANDABLE,))
    on_l4 = {one.tried.setting: one.tried.outcome for one in report.on_gpus if one.gpu == "l4"}
    assert [outcome is not None and outcome.fits for outcome in on_l4.values()] == [False, True]
    assert list(on_l4) == [report.baseline.setting, EXPANDABLE]
    sizes = [one.total_bytes for one in report.on_gpus]
    assert sizes == sorted(sizes) and sizes[0] > report.lower_bound_bytes


def test_torch_s_own_allocator_decides_alike_where_the_rules_do_not_know_it(
    run_program: RunProgram, thin_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = run_program(PROGRAM, "retries", gpu="l4").directory / "snapshot.pickle"
    by_rules = replay(path, thin_python, OTHERS, gpu="l4")
    monkeypatch.setattr(settings, "_LAST_RELEASE", (2, 5))
    in_torch = replay(path, thin_python, OTHERS, gpu="l4")
    for report, decider in ((by_rules, Decider.RULES), (in_torch, Decider.TORCH)):
        assert {one.outcome.decider for one in report.tried if one.outcome} == {decider}
    assert by_rules.check == in_torch.check
    for rules, torch in zip(by_rules.tried, in_torch.tried, strict=True):
        assert rules.outcome is not None and torch.outcome is not None
        assert replace(rules.outcome, decider=Decider.TORCH) == torch.outcome
    assert "torch's own allocator was asked" in in_torch.notes[-1]


def test_a_setting_that_torch_does_not_know_is_told_and_not_recommended(
    run_program: RunProgram, thin_python: Path
) -> None:
    path = run_program(PROGRAM, gpu="l4").directory / "snapshot.pickle"
    unknown = Setting(Family.SEGMENT_SIZE, "no_such_option:1")
    (_, refused) = replay(path, thin_python, (unknown,)).tried
    assert refused.outcome is None
    assert "no_such_option" in refused.refusal


def test_the_command_line_shows_it(run_program: RunProgram, thin_python: Path) -> None:
    path = run_program(PROGRAM, gpu="l4").directory / "snapshot.pickle"
    command = [
        sys.executable, "-c", "from ullage.cli import main; main()", "what-if", str(path),
        "--python", str(thin_python), "--gpu", "l4", "--json",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["schema"] == "ullage.what_if/1"
    assert document["check"]["is_exact"] is True
    ran = [one for one in document["tried"] if one["refused"] is None]
    assert len(ran) >= 13, "the recorded settings and twelve others"
    assert document["recommended"] == "expandable_segments:True"
