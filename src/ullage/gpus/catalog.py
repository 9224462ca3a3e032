"""The GPUs that ullage knows, read from catalog.toml.

A GPU is found by its slug, an alias or the name CUDA gives it; each of its figures has a source
that can be looked up:

    >>> gpu = find_gpu("NVIDIA H100 80GB HBM3")
    >>> gpu.slug, gpu.total_bytes
    ('h100-80gb', 85028896768)
    >>> [source.id for source in sources_of(gpu)["bandwidth_bytes_per_s"]]
    ['nvidia-h100']
"""

from __future__ import annotations

import difflib
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ullage.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Gpu", "Source", "find_gpu", "load_catalog", "sources_of"]


@dataclass(frozen=True, slots=True)
class Gpu:
    """One model of GPU, as CUDA describes it to a program.

    Attributes:
        slug: the stable name, such as "h100-80gb".
        name: as CUDA's device properties have it, such as "NVIDIA H100 80GB HBM3".
        aliases: other names that find it.
        architecture: NVIDIA's name for the generation.
        compute_capability: (major, minor).
        memory_type: such as "HBM3".
        nominal_size: the size on the box, such as "80 GB"; CUDA reports less.
        form: such as "SXM5".
        host_link: how it is connected to the host.
        total_bytes: the device's memory as CUDA reports it.
        total_low_bytes: the least that a reading found allows; drivers differ a little.
        total_high_bytes: the most that a reading found allows.
        is_total_exact: total_bytes was read to the byte; otherwise it is assumed, between the two.
        total_note: under what driver, and what others gave.
        context_low_bytes: the least that the driver holds for one PyTorch process. This and the
            next two are assumed.
        context_bytes: what it holds with the kernels of an ordinary job loaded.
        context_high_bytes: the most.
        num_multiprocessors: SMs.
        registers_per_multiprocessor: 32-bit registers of one SM.
        threads_per_multiprocessor: the most that can be resident on one SM.
        blocks_per_multiprocessor: the most that can be resident on one SM.
        shared_bytes_per_multiprocessor: shared memory of one SM.
        shared_bytes_per_block_optin: the most shared memory that one block can ask for.
        l2_bytes: L2 cache.
        memory_bus_bits: width of the memory bus.
        bandwidth_bytes_per_s: of the memory, as the maker states it.
        memory_clock_khz: half the data rate.
        clock_khz: the highest of the SMs.
    """

    slug: str
    name: str
    aliases: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    memory_type: str
    nominal_size: str
    form: str
    host_link: str
    total_bytes: int
    total_low_bytes: int
    total_high_bytes: int
    is_total_exact: bool
    total_note: str
    context_low_bytes: int
    context_bytes: int
    context_high_bytes: int
    num_multiprocessors: int
    registers_per_multiprocessor: int
    threads_per_multiprocessor: int
    blocks_per_multiprocessor: int
    shared_bytes_per_multiprocessor: int
    shared_bytes_per_block_optin: int
    l2_bytes: int
    memory_bus_bits: int
    bandwidth_bytes_per_s: int
    memory_clock_khz: int
    clock_khz: int


class Source(NamedTuple):
    """Where a figure comes from."""

    id: str
    title: str
    url: str


class _Catalog(NamedTuple):
    gpus: tuple[Gpu, ...]
    sources_by_slug: Mapping[str, Mapping[str, tuple[Source, ...]]]


# Figures that share the source of another: the ends of an interval that of its middle, and so on.
_SOURCED_AS: Final = {
    "total_low_bytes": "total_bytes",
    "total_high_bytes": "total_bytes",
    "is_total_exact": "total_bytes",
    "total_note": "total_bytes",
    "context_low_bytes": "context_bytes",
    "context_high_bytes": "context_bytes",
}
_HOW_TO_GO_ON: Final = (
    "`ullage gpus` lists all; for another GPU give --memory 24GiB --capability 8.9"
)


def load_catalog() -> tuple[Gpu, ...]:
    """Gives every GPU of the catalogue, in the order of its file."""
    return _read_catalog().gpus


def sources_of(gpu: Gpu) -> Mapping[str, tuple[Source, ...]]:
    """Gives the sources of each figure of a GPU, by the figure's name.

    Raises:
        SpecError: if the GPU is not of the catalogue.
    """
    try:
        return _read_catalog().sources_by_slug[gpu.slug]
    except KeyError:
        raise SpecError(
            f"{gpu.slug!r} is not in the catalogue, so its figures have no sources"
        ) from None


def find_gpu(name: str) -> Gpu:
    """Finds a GPU by its slug, an alias, or the name that CUDA gives it.

    Args:
        name: upper and lower case are the same, as are spaces, hyphens and underscores; "NVIDIA"
            may be left out.

    Raises:
        SpecError: if there is none; the message offers the nearest names.
    """
    gpus_by_key = _gpus_by_key()
    key = _key(name)
    if key in gpus_by_key:
        return gpus_by_key[key]
    offers = _nearest_slugs(key, gpus_by_key)
    did_you_mean = f"; did you mean {' or '.join(offers)}?" if offers else "."
    raise SpecError(f"unknown GPU {name!r}{did_you_mean} {_HOW_TO_GO_ON}")


def _nearest_slugs(key: str, gpus_by_key: Mapping[str, Gpu]) -> list[str]:
    """Slugs of GPUs one of whose names begins with the key, or failing that looks like it."""
    begins = [known for known in gpus_by_key if key and known.startswith(f"{key}-")]
    like = begins or difflib.get_close_matches(key, gpus_by_key, n=6, cutoff=0.6)
    return list(dict.fromkeys(gpus_by_key[known].slug for known in like))[:3]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower()).removeprefix("nvidia-")


@cache
def _gpus_by_key() -> dict[str, Gpu]:
    return {
        _key(name): gpu for gpu in load_catalog() for name in (gpu.slug, gpu.name, *gpu.aliases)
    }


@cache
def _read_catalog() -> _Catalog:
    text = resources.files("ullage.gpus").joinpath("catalog.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    sources = {key: Source(key, **entry) for key, entry in document["sources"].items()}
    entries = [(entry, document["capability"][entry["capability"]]) for entry in document["gpu"]]
    return _Catalog(
        gpus=tuple(_gpu(entry, limits) for entry, limits in entries),
        sources_by_slug={
            entry["slug"]: _sources(entry, limits, sources) for entry, limits in entries
        },
    )


def _gpu(entry: Mapping[str, Any], limits: Mapping[str, Any]) -> Gpu:
    figures = {**limits, **entry}
    major, minor = figures.pop("capability").split(".")
    figures.update(compute_capability=(int(major), int(minor)), aliases=tuple(figures["aliases"]))
    del figures["source"]
    return Gpu(**figures)


def _sources(
    entry: Mapping[str, Any], limits: Mapping[str, Any], sources: Mapping[str, Source]
) -> dict[str, tuple[Source, ...]]:
    ids = dict.fromkeys((figure for figure in limits if figure != "source"), limits["source"])
    ids.update(entry["source"])
    ids["compute_capability"] = ids.pop("capability")
    ids.update((figure, ids[shared]) for figure, shared in _SOURCED_AS.items())
    # One id is written as a string, several as a list.
    return {
        figure: tuple(sources[key] for key in ([written] if isinstance(written, str) else written))
        for figure, written in ids.items()
    }
