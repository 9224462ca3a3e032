"""The limits of `@pytest.mark.gpu_memory(...)`.

limits = parse_limits(("1.5 GiB",), {"growth": "0 B/iter", "gpu": "a10g"})
limits.peak_bytes, limits.growth_bytes, limits.gpu
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ullage.ground.errors import SpecError
from ullage.ground.units import parse_bytes

_SIZES = {"limit": "peak_bytes", "reserved": "reserved_bytes", "leak": "leak_bytes"}
_ARGUMENTS = (*_SIZES, "growth", "gpu")
_PER_ITERATION = "/iter"


@dataclass(frozen=True, slots=True)
class Limits:
    """The GPU memory that a test may use; None: no limit.

    Attributes:
        peak_bytes: the most that may be allocated at once.
        reserved_bytes: the most that the allocator may hold at once.
        growth_bytes: by how much more may be allocated after each iteration.
        leak_bytes: what may still be allocated after the test.
        gpu: the GPU to play, a slug of the catalogue; None is the one of the session.
    """

    peak_bytes: int | None = None
    reserved_bytes: int | None = None
    growth_bytes: int | None = None
    leak_bytes: int | None = None
    gpu: str | None = None

    @property
    def has_any(self) -> bool:
        """True if anything is limited."""
        limits = (self.peak_bytes, self.reserved_bytes, self.growth_bytes, self.leak_bytes)
        return any(limit is not None for limit in limits)


def parse_limits(arguments: Sequence[object], keywords: Mapping[str, object]) -> Limits:
    """The limits that a mark states.

    Raises:
        SpecError: an argument is not known, is given twice, or is not a size or a GPU.
    """
    if len(arguments) > 1:
        raise SpecError(
            f"it has {len(arguments)} arguments without a name; one is taken, the limit of the "
            'peak: gpu_memory("1.5 GiB", reserved="2 GiB")'
        )
    if arguments and "limit" in keywords:
        raise SpecError(
            f"the limit is given twice, as {arguments[0]!r} and as limit={keywords['limit']!r}; "
            "leave one of them out"
        )
    for name in keywords:
        if name not in _ARGUMENTS:
            raise SpecError(_unknown(name))
    values = dict(keywords) | ({"limit": arguments[0]} if arguments else {})
    sizes = {
        field: _parse_size(name, values[name]) for name, field in _SIZES.items() if name in values
    }
    return Limits(**sizes, growth_bytes=_parse_growth(values), gpu=_parse_gpu(values))


def _unknown(name: str) -> str:
    import difflib

    close = difflib.get_close_matches(name, _ARGUMENTS, 1)
    meant = f"; did you mean {close[0]!r}?" if close else ""
    return f"it has no argument {name!r}{meant}; there are {', '.join(_ARGUMENTS)}"


def _parse_size(name: str, value: object) -> int:
    if not isinstance(value, str | int):
        raise SpecError(f"{name}={value!r} is not a size; write one such as {name}='1.5 GiB'")
    try:
        return parse_bytes(value)
    except SpecError as error:
        raise SpecError(f"{name}={value!r}: {error}") from None


def _parse_growth(values: Mapping[str, object]) -> int | None:
    if "growth" not in values:
        return None
    value = values["growth"]
    if isinstance(value, str):
        value = value.strip().removesuffix(_PER_ITERATION)
    return _parse_size("growth", value)


def _parse_gpu(values: Mapping[str, object]) -> str | None:
    value = values.get("gpu")
    if value is None:
        return None
    if not isinstance(value, str):
        raise SpecError(f"gpu={value!r} is not the name of a GPU; `ullage gpus` lists them")
    return find_slug(value)


def find_slug(name: str) -> str:
    """The slug of a GPU of the catalogue.

    Raises:
        SpecError: there is none of that name that runs CUDA.
    """
    from ullage.facts.gpus.catalog import find_gpu

    try:
        return find_gpu(name).slug
    except SpecError as error:
        # What it offers beyond the catalogue are options of `ullage run`.
        raise SpecError(str(error).partition("; for another GPU")[0]) from None
