"""Converts between numbers of bytes and the text that people write.

GiB is 2^30 bytes and GB is 10^9, here and in every text, table and option of ullage. A bare "80G"
can mean either, and the two differ by 7 %, so it is refused with both readings offered:

    >>> parse_bytes("24GiB")
    25769803776
    >>> parse_bytes("24 GB")
    24000000000
    >>> format_bytes(13207024435)
    '12.3 GiB'
"""

from __future__ import annotations

import re
from typing import Final

from ullage.ground.errors import SpecError

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30
PIB: Final = 2**50
GB: Final = 10**9

_BINARY_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_BYTES_PER_UNIT: Final = {
    **{unit: 1024**power for power, unit in enumerate(_BINARY_UNITS)},
    **{unit: 1000**power for power, unit in enumerate(("kB", "MB", "GB", "TB", "PB"), start=1)},
}
_MAX_BYTES: Final = 2**63 - 1
_SHOWN_CHARS: Final = 40
# "gib" and "GIB" are read as GiB. "Gb" is not read as GB: it is the usual way to write gigabits.
_UNIT_OF_SPELLING: Final = {
    spelling: unit for unit in _BYTES_PER_UNIT for spelling in (unit, unit.lower(), unit.upper())
}
_SIZE: Final = re.compile(r"(?P<number>[0-9]+(?:\.[0-9]+)?)\s*(?P<unit>[A-Za-z]*)", re.ASCII)


def parse_bytes(size: str | int) -> int:
    """Parses a number of bytes.

    Args:
        size: "24GiB", "24 GB", "1.5 MiB", "512B", or whole bytes as a number or its digits. A
            fraction of a byte is dropped.

    Raises:
        SpecError: if it is not a size, or if it is ambiguous ("80G").
    """
    match = _SIZE.fullmatch(str(size).strip())
    if match is None or isinstance(size, bool):
        raise SpecError(
            f"{size!r} is not a size; write a number and a unit, such as 24GiB, 512MiB or 24GB"
        )
    number, spelling = match["number"], match["unit"]
    unit = _UNIT_OF_SPELLING.get(spelling) if spelling else "B"
    if unit is None:
        raise SpecError(_unknown_unit(str(size).strip(), number, spelling))
    if unit == "B" and "." in number:
        raise SpecError(f"{size!r} is not a whole number of bytes; write a unit, as in {number}GiB")
    from decimal import Decimal  # a megabyte that a program under `ullage run` does not need

    num_bytes = int(Decimal(number[:_SHOWN_CHARS]) * _BYTES_PER_UNIT[unit])
    if num_bytes > _MAX_BYTES:
        raise SpecError(f"{str(size)[:_SHOWN_CHARS]!r} is more than the 8 EiB that 64 bits hold")
    return num_bytes


def _unknown_unit(size: str, number: str, spelling: str) -> str:
    letter = spelling[0].upper()
    if len(spelling) > 1 or letter not in "KMGTP":
        return (
            f"{size!r} has an unknown unit {spelling!r}; "
            "use B, KiB, MiB, GiB or TiB (powers of 1024), or kB, MB, GB or TB (powers of 1000)"
        )
    readings = [f"{number}{letter}iB", f"{number}{'k' if letter == 'K' else letter}B"]
    binary, decimal = (f"{reading} ({parse_bytes(reading):,} bytes)" for reading in readings)
    return f"{size!r} can be read in two ways; write {binary} or {decimal}"


def format_bytes(num_bytes: int, digits: int = 1) -> str:
    """Formats a number of bytes for people, in the largest binary unit that fits: "12.3 GiB".

    Args:
        num_bytes: the number; may be negative, as headroom can be.
        digits: digits after the point; whole bytes have none.
    """
    sign, rest = ("-", -num_bytes) if num_bytes < 0 else ("", num_bytes)
    if rest < KIB:
        return f"{sign}{rest} B"
    power = min((rest.bit_length() - 1) // 10, len(_BINARY_UNITS) - 1)
    # 1023.96 KiB becomes 1.0 MiB, not 1024.0 KiB.
    if round(rest / 1024**power, digits) >= KIB and power < len(_BINARY_UNITS) - 1:
        power += 1
    return f"{sign}{rest / 1024**power:.{digits}f} {_BINARY_UNITS[power]}"
