"""The text and the document of replays under other settings."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ullage.answers.text import render
from ullage.explain.whatif.outcomes import Check, OnGpu, Outcome, Tried, WhatIfReport
from ullage.explain.whatif.packing import Packing
from ullage.explain.whatif.replays import Decider
from ullage.explain.whatif.settings import Family, Setting
from ullage.ground.protocol.plain import document_of
from ullage.ground.units import GIB, MIB
from ullage.verbs.what_if.text import what_if_blocks, what_if_line

EXACT = Check(4 * GIB, 4 * GIB, 7, 7, has_same_segments=True, reasons=())
RECORDED = Setting(Family.RECORDED, "")
EXPANDABLE = Setting(Family.EXPANDABLE, "expandable_segments:True")
COLLECTING = Setting(Family.COLLECTION, "garbage_collection_threshold:0.8", fraction=1.0)
LONG = Setting(Family.NON_SPLIT_ROUNDING, "max_split_size_mb:128,max_non_split_rounding_mb:128")
UNKNOWN = Setting(Family.SEGMENT_SIZE, "large_segment_size_mb:64")


def outcome(reserved_bytes: int, **changes: Any) -> Outcome:
    fields = {
        "peak_requested_bytes": 3 * GIB - MIB, "peak_allocated_bytes": 3 * GIB,
        "peak_reserved_bytes": reserved_bytes, "segments": (2 * MIB, reserved_bytes - 2 * MIB),
        "num_retries": 0, "num_device_allocs": 9, "failed_event": None, "stopped_at": None,
        "num_failed_attempts": 0,
        "decider": Decider.RULES,
    }  # fmt: skip
    return Outcome(**{**fields, **changes})


def report(**changes: Any) -> WhatIfReport:
    fields: dict[str, Any] = {
        "device": 0, "num_requests": 12345, "torch": "2.15.0+cu132", "gpu": None,
        "total_bytes": None, "context_bytes": None, "is_whole": True,
        "check": EXACT, "lower_bound_bytes": 3 * GIB - MIB,
        "packing": Packing(3 * GIB, "largest first"),
        "tried": (
            Tried(RECORDED, outcome(4 * GIB)),
            Tried(EXPANDABLE, outcome(3 * GIB + 20 * MIB)),
            Tried(LONG, outcome(5 * GIB, num_retries=2)),
            Tried(UNKNOWN, None, "Unrecognized key"),
        ),
        "on_gpus": (), "contradictions": (), "notes": (),
    }  # fmt: skip
    return WhatIfReport(**{**fields, **changes})


CONFLICT = (
    Tried(RECORDED, outcome(4 * GIB)),
    Tried(EXPANDABLE, outcome(3 * GIB), conflicts=("it has graphs",)),
)
LIMITED = {"gpu": "l4", "total_bytes": 4 * GIB, "context_bytes": GIB // 2}
FAILED = (
    Tried(RECORDED, outcome(3 * GIB, failed_event=1234, num_retries=1)),
    Tried(COLLECTING, outcome(3 * GIB)),
)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "expandable_segments:True reserves 1004.00 MiB less (3.02 GiB)"),
        ({"tried": CONFLICT}, "no setting that was tried is worth a change"),
        (
            {"contradictions": ("event 3",)},
            "nothing is recommended: the snapshot contradicts itself",
        ),
        (
            {**LIMITED, "tried": FAILED},
            f"{COLLECTING.text}, process fraction 1 has memory for it all (3.00 GiB reserved)",
        ),
        (
            {**LIMITED, "total_bytes": 3 * GIB},
            "no setting can help on l4: 3.00 GiB are live at once, and there are 2.50 GiB",
        ),
    ],
)  # fmt: skip
def test_the_first_line_says_what_it_comes_to(changes: dict[str, Any], expected: str) -> None:
    assert what_if_line(report(**changes)) == expected
    assert render(what_if_blocks(report(**changes)), 100).splitlines()[0] == expected


@pytest.mark.parametrize("changes", [{}, {"tried": CONFLICT}, {**LIMITED, "tried": FAILED}])
def test_nothing_is_cut_and_no_line_is_wider_than_80_columns(changes: dict[str, Any]) -> None:
    text = render(what_if_blocks(report(**changes)))
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_of_the_numbers_nothing_is_cut_however_long_a_setting_is() -> None:
    whole = Setting(Family.RECORDED, "roundup_power2_divisions:[" + ":".join(["256"] * 30) + "]")
    tried = Tried(whole, outcome(4 * GIB)), Tried(EXPANDABLE, outcome(3 * GIB + 20 * MIB))
    gpus = (OnGpu("rtx-pro-6000-blackwell-max-q", 95 * GIB, tried[0]),)
    lines = render(what_if_blocks(report(tried=tried, on_gpus=gpus))).splitlines()
    assert max(map(len, lines)) <= 80
    rows = " ".join(" ".join(lines).split())
    for numbers in ("4.00 GiB 25.0 %", "3.02 GiB -1004.00 MiB 0.6 %", "3.00 GiB", "95.00 GiB"):
        assert numbers in rows
    shown = "".join("".join(line.split()[:1]) for line in lines)
    assert whole.text in shown


def test_rows_come_with_the_least_reserved_first_below_the_recorded_one() -> None:
    lines = render(what_if_blocks(report())).splitlines()
    begin = lines.index("Reserved at the peak")
    names = [line[:38].strip() for line in lines[begin + 2 : begin + 9]]
    assert names == [
        "no setting (as recorded)", "expandable_segments:True", "max_split_size_mb:128,",
        "max_non_split_rounding_mb:128", "releases its cache 2x",
        "best packing found (largest first)", "lower bound: live at once",
    ]  # fmt: skip
    assert "+1.00 GiB" in lines[begin + 4]


@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({"is_whole": False}, "begun as those below"),
        ({"gpu": "l4", "total_bytes": 8 * GIB, "context_bytes": GIB}, "on l4"),
        ({}, "memory without end"),
    ],
)
def test_what_is_as_recorded_is_what_the_check_says(changes: dict[str, Any], origin: str) -> None:
    """Where the others begin without holes, with another row to compare them with."""
    checked = Check(5 * GIB, 5 * GIB, 7, 7, has_same_segments=True, reasons=())
    lines = render(what_if_blocks(report(check=checked, **changes)), 100).splitlines()
    begin = lines.index("Reserved at the peak")
    assert lines[begin + 2].split() == ["no", "setting", "(as", "recorded)", "5.00", "GiB"]
    assert lines[begin + 3].startswith(f"  no setting ({origin})")
    assert "4.00 GiB" in lines[begin + 3] and "-1004.00 MiB" in lines[begin + 4]


def test_a_check_that_fails_says_by_how_much_and_why() -> None:
    check = Check(
        4 * GIB, 5 * GIB, 7, 9, has_same_segments=False, reasons=("it begins in the middle",)
    )
    text = " ".join(render(what_if_blocks(report(check=check))).split())
    assert "5.00 GiB reserved at the peak, recorded 4.00 GiB" in text
    assert "Why they may differ: it begins in the middle" in text
    assert document_of(report(check=check))["check"]["is_exact"] is False


def test_what_cannot_be_used_is_told_with_the_reason() -> None:
    text = " ".join(render(what_if_blocks(report(tried=CONFLICT))).split())
    assert "expandable_segments:True: not for this program: it has graphs" in text
    assert "large_segment_size_mb:64: refused by torch 2.15.0+cu132: Unrecognized key" in " ".join(
        render(what_if_blocks(report())).split()
    )


def test_how_to_use_it_names_the_variable_of_older_versions_and_the_call() -> None:
    text = " ".join(render(what_if_blocks(report())).split())
    assert (
        "PYTORCH_ALLOC_CONF=expandable_segments:True (torch 2.9 and earlier: "
        "PYTORCH_CUDA_ALLOC_CONF)" in text
    )
    failed = " ".join(render(what_if_blocks(report(**LIMITED, tried=FAILED))).split())
    assert "call torch.cuda.set_per_process_memory_fraction(1)" in failed
    assert "no memory at event 1,234" in failed


def test_max_split_size_is_told_the_right_way_round() -> None:
    text = " ".join(render(what_if_blocks(report(tried=(
        Tried(RECORDED, outcome(4 * GIB)),
        Tried(Setting(Family.MAX_SPLIT, "max_split_size_mb:64"), outcome(4 * GIB)),
    )))).split())  # fmt: skip
    assert "A free block of this size or more is never cut" in text
    assert "It does not limit the size of blocks" in text


def test_the_document_holds_every_figure() -> None:
    gpus = (OnGpu("l4", 4 * GIB, Tried(EXPANDABLE, outcome(3 * GIB))),)
    document = json.loads(json.dumps(document_of(report(on_gpus=gpus))))
    assert document["schema"] == "ullage.what_if/1"
    assert document["recommended"] == "expandable_segments:True"
    assert [one["settings"] for one in document["tried"]] == [
        "", "expandable_segments:True", "max_split_size_mb:128,max_non_split_rounding_mb:128",
        "large_segment_size_mb:64",
    ]  # fmt: skip
    assert document["tried"][0]["unused_bytes"] == GIB
    assert document["tried"][3]["refused"] == "Unrecognized key"
    assert document["lower_bound_bytes"] < document["packing"]["bytes"]
    assert document["on_gpus"][0]["gpu"] == "l4" and document["on_gpus"][0]["fits"] is True
    assert set(document["meanings"]) == {
        "expandable_segments",
        "max_non_split_rounding_mb",
        "large_segment_size_mb",
    }
