"""Owners: from the record where there is one that fits, else guessed; never both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ullage.explain.owners.ownership import CATEGORIES
from ullage.explain.snapshot import SnapshotReport
from ullage.ground.units import MIB
from ullage.log.model import Category

ReportOf = Callable[..., SnapshotReport]


def owners(report: SnapshotReport) -> list[Category]:
    """The category of every block, in the order of their births."""
    return [CATEGORIES[code] for code in report.devices[0].owners.category]


def test_what_was_claimed_is_known(report_of: ReportOf) -> None:
    report = report_of("[64 w+8=parameter F a+4 t+2 t- f g+8=gradient a- S", has_record=True)
    assert report.devices[0].owners.is_known
    assert owners(report) == [
        Category.PARAMETER, Category.ACTIVATION, Category.TEMPORARY, Category.GRADIENT,
    ]  # fmt: skip
    assert report.record is not None and report.record_remark == ""


def test_a_trace_that_lost_its_beginning_is_still_known(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]]
) -> None:
    """Blocks from before the trace are found by their address, the others from the end."""
    script = "[64 w+8=parameter o+2=optimizer_state o- F a+4 f g+8=gradient S"
    whole = file_of(script, has_record=True)
    late = whole["device_traces"][0][5:]
    report = report_of("[64", **(whole | {"device_traces": [late]}))
    assert owners(report) == [Category.PARAMETER, Category.ACTIVATION, Category.GRADIENT]
    assert report.devices[0].owners.is_known


def test_a_record_of_other_events_is_not_used(
    report_of: ReportOf, file_of: Callable[..., dict[str, Any]]
) -> None:
    record = file_of("[64 x+2=parameter", has_record=True)["ullage"]
    report = report_of("[64 a+4 b+8", ullage=record)
    assert not report.devices[0].owners.is_known
    assert "not of these events" in report.record_remark


@pytest.mark.parametrize("record", [{"schema": "ullage.record/9"}, {"schema": 3}])
def test_a_record_that_cannot_be_read_is_told(report_of: ReportOf, record: dict[str, Any]) -> None:
    report = report_of("[64 a+4", ullage=record)
    assert "cannot be used" in report.record_remark
    assert not report.devices[0].owners.is_known


@pytest.mark.parametrize(
    ("stack", "category"),
    [
        ("main:9>lib/torch/optim/adamw.py/step:3>lib/torch/optim/adamw.py/_init_group:5",
         Category.OPTIMIZER_STATE),
        ("main:9>my/optimizer.py/step:3", Category.OPTIMIZER_STATE),
        ("main:9>lib/torch/autograd/__init__.py/backward:3", Category.GRADIENT),
        ("main:9>lib/torch/nn/modules/module.py/convert:3", Category.PARAMETER),
        ("main:9>forward:3", Category.ACTIVATION),
        ("main:9>lib/transformers/cache_utils.py/update:3", Category.KV_CACHE),
        ("main:9>get_batch:3", Category.INPUT),
        ("main:9", Category.UNATTRIBUTED),
    ],
)  # fmt: skip
def test_without_a_record_owners_are_guessed_from_functions(
    report_of: ReportOf, stack: str, category: Category
) -> None:
    report = report_of(f"[64 a+4@{stack} b+2 c+2 d+2 e+2 f+2 g+2 a-")
    assert owners(report)[0] is category
    assert not report.devices[0].owners.is_known


def test_parts_sum_to_the_peak(report_of: ReportOf) -> None:
    (device,) = report_of("[64 w+8=parameter F a+4 t+2 t- f", has_record=True).devices
    assert sum(device.owners_at_peak.values()) == device.peak_allocated_bytes == 14 * MIB
    assert sum(share.size_bytes for share in device.sites_at_peak) == 14 * MIB


OF_LINUX = (
    "[64 w+8@env/lib/site-packages/torch/nn/modules/module.py/_apply:2 "
    "a+4@run/train.py/main:7>env/lib/site-packages/torch/nn/modules/module.py/_call_impl:3"
    ">run/model.py/layer:5>env/lib/site-packages/einops/einops.py/einsum:9 "
    "d+1@run/train.py/main:3>env/lib/site-packages/torch/utils/data/dataloader.py/__next__:1 "
    "o+9@run/train.py/main:9>env/lib/site-packages/torch/optim/adamw.py/step:4"
)


def test_paths_of_windows_say_what_those_of_linux_say(
    file_of: Callable[..., dict[str, Any]], explained: Callable[..., SnapshotReport]
) -> None:
    here, there = file_of(OF_LINUX), file_of(OF_LINUX)
    for event in there["device_traces"][0]:
        event["frames"] = [
            {**frame, "filename": "C:\\Users\\ada\\" + frame["filename"].replace("/", "\\")}
            for frame in event["frames"]
        ]
    linux, windows = explained(here), explained(there)
    assert owners(windows) == owners(linux) == [
        Category.PARAMETER, Category.ACTIVATION, Category.INPUT, Category.OPTIMIZER_STATE,
    ]  # fmt: skip
    assert windows.sites.names == linux.sites.names
    assert "run/model.py:5 in layer" in windows.sites.names
