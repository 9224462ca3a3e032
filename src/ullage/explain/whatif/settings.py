"""The allocator settings that ullage tries, and what each of them does.

The meanings come from the allocator's source (c10/cuda/CUDACachingAllocator.cpp,
CUDAAllocatorConfig.h, torch 2.6 to 2.15), because descriptions elsewhere are often wrong.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from ullage.ground.protocol.plain import As
from ullage.ground.units import MIB
from ullage.log.rules import NUM_DIVISIONS, AllocatorSettings, make_settings


class Family(enum.Enum):
    """The allocator's option that a setting uses."""

    RECORDED = "recorded"
    DEFAULT = "default"
    EXPANDABLE = "expandable_segments"
    MAX_SPLIT = "max_split_size_mb"
    NON_SPLIT_ROUNDING = "max_non_split_rounding_mb"
    ROUNDUP = "roundup_power2_divisions"
    SEGMENT_SIZE = "large_segment_size_mb"
    COLLECTION = "garbage_collection_threshold"


@dataclass(frozen=True, slots=True)
class Setting:
    """One configuration of the allocator.

    Attributes:
        family: the option that it uses.
        text: the value of PYTORCH_ALLOC_CONF (PYTORCH_CUDA_ALLOC_CONF before torch 2.10).
        fraction: the argument of torch.cuda.set_per_process_memory_fraction if that is needed too.
    """

    family: Family
    text: Annotated[str, As("settings")]
    fraction: Annotated[float | None, As("memory_fraction")] = None


MEANINGS: Final[Mapping[Family, str]] = {
    Family.RECORDED: "What the program ran with.",
    Family.DEFAULT: "No setting. Up to 1 MiB come out of segments of 2 MiB, less than 10 MiB out "
    "of segments of 20 MiB, more gets a segment of its own, a multiple of 2 MiB. A free block is "
    "cut for a smaller request, whatever its size; a segment goes back only as a whole.",
    Family.EXPANDABLE: "Reserves a range of addresses for each stream and pool, and maps pages of "
    "2 MiB (small) and 20 MiB (large) into it as it grows; free pages at any place can go back. So "
    "blocks of other sizes than before find room, and few holes are left. Memory in it can be "
    "shared with other processes only in newer versions of torch.",
    Family.MAX_SPLIT: "A free block of this size or more is never cut: it is reused only for a "
    "request of this size or more that leaves less than 20 MiB of it unused; smaller requests "
    "get memory elsewhere. It does not limit the size of blocks, and does not cut large blocks "
    "into pieces. Large blocks stay whole and can go back to the device one by one; the price is "
    "more reserved memory where they could have been shared.",
    Family.NON_SPLIT_ROUNDING: "How much of a block that max_split_size_mb keeps whole may be left "
    "unused when it is reused; 20 MiB where it is not set. No effect without max_split_size_mb.",
    Family.ROUNDUP: "Rounds a request up to a multiple of a part of the power of two below it, "
    "so that requests of nearly the same size fit each other's blocks. Every block gets larger: up "
    "to 1/N of its size is lost.",
    Family.SEGMENT_SIZE: "The size of the segments that requests of more than 1 MiB share, 20 MiB "
    "where it is not set: fewer segments, more of each unused.",
    Family.COLLECTION: "Above this share of what the process may take, free segments that were not "
    "used for long go back before a new one is made. Has no effect unless "
    "torch.cuda.set_per_process_memory_fraction() was called, and none on expandable segments.",
}

EXPANDABLE: Final = Setting(Family.EXPANDABLE, "expandable_segments:True")
_TRIED: Final = (
    Setting(Family.DEFAULT, ""),
    EXPANDABLE,
    *(Setting(Family.MAX_SPLIT, f"max_split_size_mb:{size}") for size in (32, 64, 128, 256, 512)),
    *(
        Setting(
            Family.NON_SPLIT_ROUNDING,
            f"max_split_size_mb:{size},max_non_split_rounding_mb:{rounding}",
        )
        for size, rounding in ((64, 64), (128, 128))
    ),
    *(Setting(Family.ROUNDUP, f"roundup_power2_divisions:{number}") for number in (4, 8, 16, 32)),
    Setting(Family.EXPANDABLE, "expandable_segments:True,roundup_power2_divisions:16"),
    Setting(Family.SEGMENT_SIZE, "large_segment_size_mb:64"),
    Setting(Family.SEGMENT_SIZE, "large_segment_size_mb:256"),
)
# These need a device with limited memory.
_TRIED_WHEN_LIMITED: Final = tuple(
    Setting(Family.COLLECTION, f"garbage_collection_threshold:{share}", fraction=1.0)
    for share in (0.6, 0.8)
)


def list_settings(recorded: str, *, is_limited: bool) -> tuple[Setting, ...]:
    """The settings to try: the recorded ones first, then all others.

    is_limited: whether the device can run out of memory.
    """
    tried = (*_TRIED, *(_TRIED_WHEN_LIMITED if is_limited else ()))
    others = tuple(setting for setting in tried if setting.text != recorded)
    return (Setting(Family.RECORDED, recorded), *others)


def recorded_settings(settings: Mapping[str, Any]) -> str:
    """The allocator settings of a snapshot, in the syntax of PYTORCH_ALLOC_CONF.

    This is the value of the variable if the snapshot has it, else the text of the single values,
    which the program may have set itself. Empty for the defaults, and for a file without settings.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        text = settings.get(name)
        if isinstance(text, str) and text.strip():
            return text.strip()
    parts = []
    if settings.get("expandable_segments") is True:
        parts.append("expandable_segments:True")
    size = settings.get("max_split_size")
    if isinstance(size, int) and 0 < size < _NO_LIMIT:
        parts.append(f"max_split_size_mb:{size // MIB}")
    threshold = settings.get("garbage_collection_threshold")
    if isinstance(threshold, float) and 0 < threshold < 1:
        parts.append(f"garbage_collection_threshold:{threshold:g}")
    divisions = settings.get("roundup_power2_divisions")
    if isinstance(divisions, Mapping) and any(divisions.values()):
        parts.append(f"roundup_power2_divisions:[{_divisions_text(divisions)}]")
    return ",".join(parts)


_NO_LIMIT: Final = 2**62


def _divisions_text(divisions: Mapping[str, Any]) -> str:
    """Formats {"1": 0, "2": 4, ...} for the variable; the last entry holds for all larger sizes."""
    pairs = sorted(
        (int(size), number)
        for size, number in divisions.items()
        if str(size).isdecimal() and isinstance(number, int)
    )
    texts = [f"{size}:{number}" for size, number in pairs[:-1]]
    return ",".join([*texts, f">:{pairs[-1][1]}"]) if pairs else ""


class UnknownSettingError(ValueError):
    """The rules do not know a setting, or a version of torch; the message names it."""


# The versions whose allocator the rules were held against.
_FIRST_RELEASE, _LAST_RELEASE = (2, 6), (2, 15)
# What changed between them, and was not seen in each: sizes of segments (pytorch/pytorch#172056,
# January 2026); in a list of divisions ">" held for the size before it, too; a memory fraction of 1
# was a limit.
_FIRST_AS_NOW = (2, 12)
_SIZES: Final = {
    "max_split_size_mb": "max_split",
    "max_non_split_rounding_mb": "max_unused",
    "large_segment_size_mb": "large_segment",
}
_LEAST_MB, _MOST_MB = 20, 2**20
_ITEM = re.compile(r"\s*([a-z0-9_]+)\s*:\s*(\[[^]]*\]|[^,\[\]]*)\s*(?:,|$)")


def parse_settings(text: str, release: tuple[int, int] | None) -> AllocatorSettings:
    """Reads the settings of torch's allocator from a value of PYTORCH_ALLOC_CONF.

    Raises:
        UnknownSettingError: what the rules do not know, or what that torch may refuse.
    """
    if release is None or not _FIRST_RELEASE <= release <= _LAST_RELEASE:
        raise UnknownSettingError(
            f"the rules are those of torch {_named(_FIRST_RELEASE)} to {_named(_LAST_RELEASE)}"
        )
    settings, place = make_settings(max_unused=-1), 0
    text = text.strip()
    while place < len(text):
        item = _ITEM.match(text, place)
        if item is None:
            raise UnknownSettingError(f"the rules cannot read {text[place:]!r}")
        place = item.end()
        try:
            _apply(settings, item[1], item[2].strip(), release)
        except ValueError:
            raise UnknownSettingError(f"the rules do not know {item[1]}:{item[2]}") from None
    if settings.max_unused < 0:
        settings.max_unused = settings.large_segment
    if min(settings.max_split, settings.max_unused) < settings.large_segment:
        raise UnknownSettingError(f"torch may refuse {text!r}")
    return settings


def is_no_limit(fraction: float, release: tuple[int, int] | None) -> bool:
    """True if torch.cuda.set_per_process_memory_fraction sets no limit.

    Raises:
        UnknownSettingError: it is not known of that torch.
    """
    if fraction < 1 or release == _FIRST_RELEASE:
        return False
    if release is None or release < _FIRST_AS_NOW:
        raise UnknownSettingError("what a memory fraction of 1 is to this torch is not known")
    return True


def is_released_in_pool(release: tuple[int, int] | None) -> bool:
    """True if the cache can be given back while a private pool is in use.

    Raises:
        UnknownSettingError: it is not known of that torch.
    """
    if release not in (_FIRST_RELEASE, _LAST_RELEASE):
        raise UnknownSettingError("what private pools do in this torch is not known")
    return release == _LAST_RELEASE


def _named(release: tuple[int, int]) -> str:
    return ".".join(map(str, release))


def _apply(settings: AllocatorSettings, key: str, value: str, release: tuple[int, int]) -> None:
    """Sets one; ValueError where it is not known."""
    if key in _SIZES:
        # A larger page of an expandable segment, or an odd segment, is left to torch.
        size, is_segment = int(value), key == "large_segment_size_mb"
        is_known = not is_segment or (size % 2 == 0 and release >= _FIRST_AS_NOW)
        if not _LEAST_MB < size <= _MOST_MB or not is_known:
            raise ValueError
        setattr(settings, _SIZES[key], size * MIB)
    elif key == "garbage_collection_threshold":
        settings.collection_share = float(value)
        if not 0 < settings.collection_share < 1:
            raise ValueError
    elif key == "roundup_power2_divisions":
        if "[" in value and release < _FIRST_AS_NOW:
            raise ValueError
        settings.divisions[:] = _parse_divisions(value)
    elif key == "expandable_segments":
        settings.is_expandable = ("False", "True").index(value)
    elif (key, value) != ("backend", "native"):
        raise ValueError


def _parse_divisions(value: str) -> list[int]:
    """ "8", or "[256:1,512:2,>:4]": of sizes from that MiB on; the first also of those below."""
    if not value.startswith("["):
        return [_division(value)] * NUM_DIVISIONS
    divisions, place = [0] * NUM_DIVISIONS, 0
    for number, item in enumerate(value.strip("[]").split(",")):
        name, _, part = (word.strip() for word in item.partition(":"))
        if name == ">":
            divisions[place:] = [_division(part)] * (NUM_DIVISIONS - place)
            continue
        size = int(name)
        if size <= 0 or size & (size - 1):
            raise ValueError
        at = min(size.bit_length() - 1, NUM_DIVISIONS - 1)
        divisions[0 if number == 0 else at : at + 1] = [_division(part)] * (
            at + 1 if number == 0 else 1
        )
        place = at + 1
    return divisions


def _division(text: str) -> int:
    number = int(text)
    if number and (number & (number - 1) or not 1 <= number <= 64):
        raise ValueError
    return number
