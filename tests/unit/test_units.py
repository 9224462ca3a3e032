"""Sizes: GiB is 2^30, GB is 10^9, and what can be read in two ways is refused."""

from __future__ import annotations

import random

import pytest

from ullage.ground.errors import SpecError
from ullage.ground.units import GIB, MIB, format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 1024**3),
        ("24 GB", 24 * 10**9),
        ("  24gib ", 24 * 1024**3),
        ("24GB", 24_000_000_000),
        ("1.5MiB", 1_572_864),
        ("0.1GiB", 107_374_182),  # the fraction of a byte is cut off
        ("512B", 512),
        ("1kB", 1000),
        ("1KiB", 1024),
        ("2TiB", 2 * 1024**4),
        ("2 TB", 2 * 10**12),
        ("85028896768", 85_028_896_768),
        (85_028_896_768, 85_028_896_768),
        ("0", 0),
    ],
)
def test_a_size_is_read_as_written(text: str | int, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["80G", "80g", "80 G"])
def test_a_bare_g_is_refused_with_both_readings_offered(text: str) -> None:
    with pytest.raises(SpecError) as refusal:
        parse_bytes(text)
    message = str(refusal.value)
    assert "80GiB (85,899,345,920 bytes)" in message
    assert "80GB (80,000,000,000 bytes)" in message


def test_a_bare_k_is_refused_with_sizes_that_can_be_read() -> None:
    with pytest.raises(SpecError, match=r"write 4KiB \(4,096 bytes\) or 4kB \(4,000 bytes\)"):
        parse_bytes("4k")


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "24 gigs", "24Gb", "-1GiB", "1e9", "1_000", "nan", "24GiB!", "1.5", "٣GiB", True],
)
def test_what_is_no_size_is_refused_and_quoted(text: str) -> None:
    with pytest.raises(SpecError) as refusal:
        parse_bytes(text)
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (13_207_024_435, "12.3 GiB"),
        (-3 * GIB // 2, "-1.5 GiB"),
        (MIB - 1, "1.0 MiB"),  # not 1024.0 KiB
        (GIB - 1, "1.0 GiB"),
        (5000 * 1024**5, "5000.0 PiB"),
    ],
)
def test_bytes_are_written_in_the_largest_unit_that_fits(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


def test_two_digits_are_what_torch_prints_of_an_h100() -> None:
    assert format_bytes(85_028_896_768, digits=2) == "79.19 GiB"


def test_what_is_written_reads_back_to_within_half_of_its_last_digit() -> None:
    chance = random.Random(0)
    for _ in range(2000):
        num_bytes = chance.getrandbits(chance.randrange(1, 55))
        text = format_bytes(num_bytes, digits=3)
        unit_bytes = parse_bytes(f"1{text.split()[1]}")
        assert abs(parse_bytes(text) - num_bytes) <= 0.0005 * unit_bytes + 1, text
