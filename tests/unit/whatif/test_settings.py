"""The table of settings: what is tried, and how a file's own settings are read."""

from __future__ import annotations

from typing import Any

import pytest

from ullage.whatif.settings import MEANINGS, Family, list_settings, recorded_settings

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
