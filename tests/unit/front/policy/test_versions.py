"""Which version a request gets."""

from __future__ import annotations

from collections import Counter

from ullage.operate.front.policy.versions import Versions


def test_each_version_gets_its_share_of_any_number_of_requests() -> None:
    versions = Versions({"m": {"old": 9.0, "new": 1.0}}, lambda name: True)
    chosen = [versions.choose("m") for _ in range(100)]
    for end in range(1, 101):
        assert abs(Counter(chosen[:end])["new"] - end / 10) <= 1


def test_a_version_that_nobody_serves_gets_none_and_catches_up_on_none() -> None:
    served = {"old"}
    versions = Versions({"m": {"old": 1.0, "new": 1.0}}, lambda name: name in served)
    assert {versions.choose("m") for _ in range(50)} == {"old"}
    served.add("new")
    assert Counter(versions.choose("m") for _ in range(20)) == {"old": 10, "new": 10}


def test_a_model_without_versions_is_itself() -> None:
    assert Versions({}, lambda name: True).choose("m") == "m"
