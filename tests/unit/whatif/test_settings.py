"""The table of settings: what is tried, and how a file's own settings are read."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.explain.whatif.settings import (
    MEANINGS,
    Family,
    UnknownSettingError,
    list_settings,
    parse_settings,
    recorded_settings,
)
from ullage.ground.units import MIB

DEFAULT_DIVISIONS = {str(2**power): 0 for power in range(16)}
DEFAULTS: dict[str, Any] = {
    "PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1, "garbage_collection_threshold": 0.0,
    "expandable_segments": False, "roundup_power2_divisions": DEFAULT_DIVISIONS,
}  # fmt: skip


def test_at_least_twelve_settings_are_tried_beside_the_recorded_one() -> None:
    for is_limited in (False, True):
        assert len(list_settings("", is_limited=is_limited)) >= 13


@pytest.mark.parametrize("recorded", ["", "expandable_segments:True", "max_split_size_mb:77"])
def test_the_recorded_setting_is_the_first_and_is_not_tried_again(recorded: str) -> None:
    texts = [(one.text, one.fraction) for one in list_settings(recorded, is_limited=True)]
    assert texts[0] == (recorded, None)
    assert len(set(texts)) == len(texts)
    assert ("", None) in texts


def test_every_family_says_what_it_does() -> None:
    assert set(MEANINGS) == set(Family)


def test_collection_is_tried_where_memory_ends_and_with_the_fraction_it_needs() -> None:
    def collecting(*, is_limited: bool) -> list[float | None]:
        tried = list_settings("", is_limited=is_limited)
        return [one.fraction for one in tried if one.family is Family.COLLECTION]

    assert collecting(is_limited=False) == []
    assert set(collecting(is_limited=True)) == {1.0}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, ""),
        ({"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        ({"PYTORCH_ALLOC_CONF": " max_split_size_mb:64 "}, "max_split_size_mb:64"),
        ({"expandable_segments": True}, "expandable_segments:True"),
        ({"max_split_size": 128 * 2**20}, "max_split_size_mb:128"),
        ({"max_split_size": 2**64 - 1}, ""),
        ({"garbage_collection_threshold": 0.8}, "garbage_collection_threshold:0.8"),
        (
            {"roundup_power2_divisions": {"1": 0, "2": 4, "4": 8}},
            "roundup_power2_divisions:[1:0,2:4,>:8]",
        ),
    ],
)
def test_the_settings_of_a_file_become_the_variable(changes: dict[str, Any], expected: str) -> None:
    assert recorded_settings(DEFAULTS | changes) == expected


def test_a_file_that_does_not_say_had_no_setting() -> None:
    assert recorded_settings({}) == ""


def test_the_rules_know_every_setting_that_is_tried() -> None:
    for setting in list_settings("backend:native", is_limited=True):
        parse_settings(setting.text, (2, 15))


def test_a_text_is_read_as_torch_reads_it() -> None:
    settings = parse_settings(
        " max_split_size_mb:64, roundup_power2_divisions:[2:4, 8:2,>:16],expandable_segments:True,"
        "garbage_collection_threshold:0.25",
        (2, 15),
    )
    assert (settings.max_split, settings.max_unused) == (64 * MIB, 20 * MIB)
    assert list(settings.divisions) == [4, 4, 0, 2, *[16] * 12]
    assert (settings.is_expandable, settings.collection_share) == (1, 0.25)
    assert parse_settings("large_segment_size_mb:64", (2, 15)).max_unused == 64 * MIB
    assert list(parse_settings("roundup_power2_divisions:8", (2, 6)).divisions) == [8] * 16


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("no_such_option:1", (2, 15)), ("expandable_segments", (2, 15)),
        ("expandable_segments:true", (2, 15)), ("max_split_size_mb:20", (2, 15)),
        ("large_segment_size_mb:64", (2, 11)), ("large_segment_size_mb:33", (2, 15)),
        ("large_segment_size_mb:64,max_split_size_mb:32", (2, 15)),
        ("roundup_power2_divisions:3", (2, 15)), ("roundup_power2_divisions:[3:4]", (2, 15)),
        ("roundup_power2_divisions:[1:4,>:2]", (2, 6)),
        ("garbage_collection_threshold:1.5", (2, 15)), ("", (2, 16)), ("", (2, 5)), ("", None),
    ],
)  # fmt: skip
def test_what_the_rules_do_not_know_is_named(text: str, release: tuple[int, int] | None) -> None:
    with pytest.raises(UnknownSettingError, match=r"rules|may refuse"):
        parse_settings(text, release)
