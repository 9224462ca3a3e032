"""The GPUs that ullage knows, read from catalog.toml and the tables beside it.

`find_gpu` finds a GPU by its slug, an alias or CUDA's name for it. `sources_of` gives the sources
of its figures:

    >>> gpu = find_gpu("NVIDIA H100 80GB HBM3")
    >>> gpu.slug, gpu.total_bytes
    ('h100-80gb', 85028896768)
    >>> [source.id for source in sources_of(gpu)["clock_khz"]]
    ['thamada-h100']

catalog.toml states the rules that turn a row into a GPU; rows.py applies them. A row is parsed when
its GPU is asked for: all of them take a tenth of the time of an estimate.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ullage.facts.gpus.gpu import Entry, EstimateOnlyGpu, Gpu, Segment, Source, TensorRates
from ullage.facts.gpus.rows import GROUPS, make_estimate_only_gpu, make_gpu
from ullage.ground.errors import SpecError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["EstimateOnlyGpu", "Gpu", "Segment", "Source", "TensorRates"]

_SEGMENT_OF_FILE: Final = {
    "data_center.toml": Segment.DATA_CENTER,
    "workstation.toml": Segment.WORKSTATION,
    "consumer.toml": Segment.CONSUMER,
    "embedded.toml": Segment.EMBEDDED,
}
_ESTIMATE_ONLY: Final = "estimate_only.toml"
_ROW: Final = re.compile(r"^\[\[gpu\]\]\nslug = \"(.+)\"$", re.MULTILINE)
_TOTALS: Final = (
    "total_bytes",
    "total_low_bytes",
    "total_high_bytes",
    "is_total_exact",
    "total_note",
)
_CONTEXTS: Final = ("context_bytes", "context_low_bytes", "context_high_bytes")
_HOW_TO_GO_ON: Final = "`ullage gpus` lists all"


@cache
def load_catalog() -> tuple[Gpu, ...]:
    """Returns every GPU that runs CUDA, in the order of the files."""
    return tuple(entry for entry in map(_entry, _row_texts()) if isinstance(entry, Gpu))


@cache
def load_estimate_only() -> tuple[EstimateOnlyGpu, ...]:
    """Returns every GPU that is listed for estimates only, in the order of the file."""
    return tuple(entry for entry in map(_entry, _row_texts()) if isinstance(entry, EstimateOnlyGpu))


def sources_of(gpu: Entry) -> Mapping[str, tuple[Source, ...]]:
    """Returns the sources of each figure of a GPU, by the figure's name.

    Raises:
        SpecError: if the GPU is not in the catalogue.
    """
    if gpu.slug not in _row_texts():
        raise SpecError(f"{gpu.slug!r} is not in the catalogue, so its figures have no sources")
    row = _row(gpu.slug)
    if _is_estimate_only(gpu.slug):
        fields = (name for name in EstimateOnlyGpu.__slots__ if name not in {"slug", "aliases"})
        ids = dict.fromkeys(fields, _listed(row["source"]))
    else:
        ids = _source_ids(row)
    return {figure: tuple(map(_source, dict.fromkeys(sources))) for figure, sources in ids.items()}


def find_gpu(name: str) -> Gpu:
    """Finds a GPU that runs CUDA by its slug, an alias, or CUDA's name for it.

    Args:
        name: case is ignored; spaces, hyphens and underscores are equal; "NVIDIA" is optional.

    Raises:
        SpecError: if there is no such GPU (the message offers the nearest names), if several have
            that name, or if the GPU is listed for estimates only.
    """
    entry = find_entry(name)
    if isinstance(entry, EstimateOnlyGpu):
        raise SpecError(
            f"{entry.name} is in the catalogue for estimates only: the phantom stands in for CUDA, "
            f"which does not run on a GPU of {entry.vendor}'s"
        )
    return entry


def label(slug: str) -> str:
    """A GPU as a headline names it: one without CUDA is counted as if it had it."""
    return f"{slug}, counted as CUDA" if _is_estimate_only(slug) else slug


def find_by_device(name: str, total_bytes: int) -> Gpu:
    """The GPU of the catalogue that CUDA calls so; of several, that whose memory is nearest.

    Raises:
        SpecError: there is none.
    """
    alike = [gpu for gpu in load_catalog() if gpu.name == name]
    if not alike:
        raise SpecError(
            f"the catalogue has no {name!r}, so that nothing is known of its rates; `ullage gpus` "
            "lists its GPUs"
        )
    return min(alike, key=lambda gpu: abs(gpu.total_bytes - total_bytes))


def find_entry(name: str) -> Entry:
    """Finds a GPU by any of its names, including the GPUs for estimates only.

    Raises:
        SpecError: as find_gpu, for an unknown name or a name of several GPUs.
    """
    key = _key(name)
    if key in _row_texts():
        return _entry(key)
    entries_by_key = _entries_by_key()
    gpus = entries_by_key.get(key, ())
    if len(gpus) == 1:
        return gpus[0]
    if gpus:
        slugs = " and ".join(entry.slug for entry in gpus)
        raise SpecError(f"{name!r} is the name of {slugs}; give one of these")
    offers = _nearest_slugs(key, entries_by_key)
    did_you_mean = f"; did you mean {' or '.join(offers)}?" if offers else "."
    raise SpecError(f"unknown GPU {name!r}{did_you_mean} {_HOW_TO_GO_ON}")


def find_group(
    name: str | None,
) -> tuple[tuple[Gpu, ...], tuple[EstimateOnlyGpu, ...]]:
    """Finds the GPUs of a group: those that run CUDA, and those for estimates only.

    Args:
        name: an architecture, a compute capability, a segment or a maker, such as "hopper", "8.9",
            "data center" or "amd"; None means all. An unknown name finds none.
    """
    if name is None:
        return load_catalog(), load_estimate_only()
    key = _key(name) or name.strip().lower()
    gpus = tuple(gpu for gpu in load_catalog() if key in _groups_of(gpu))
    others = tuple(other for other in load_estimate_only() if key in _groups_of(other))
    return gpus, others


def _groups_of(entry: Entry) -> set[str]:
    if isinstance(entry, Gpu):
        capability = ".".join(map(str, entry.compute_capability))
        return {_key(entry.architecture), _key(entry.segment.value), capability, "nvidia"}
    return {_key(entry.architecture), _key(entry.segment.value), _key(entry.vendor)}


def _nearest_slugs(key: str, entries_by_key: Mapping[str, tuple[Entry, ...]]) -> list[str]:
    """Slugs of GPUs with a name that begins with the key; if there is none, with a similar name."""
    begins = [known for known in entries_by_key if key and known.startswith(f"{key}-")]
    like = begins or difflib.get_close_matches(key, entries_by_key, n=6, cutoff=0.6)
    return list(dict.fromkeys(entry.slug for known in like for entry in entries_by_key[known]))[:4]


def _key(name: str) -> str:
    return re.sub(r"[\s_-]+", "-", name.strip().lower()).removeprefix("nvidia-")


@cache
def _entries_by_key() -> dict[str, tuple[Entry, ...]]:
    entries: dict[str, tuple[Entry, ...]] = {}
    every: list[Entry] = [*load_catalog(), *load_estimate_only()]
    for entry in every:
        for key in dict.fromkeys(map(_key, (entry.slug, entry.name, *entry.aliases))):
            entries[key] = (*entries.get(key, ()), entry)
    return entries


@cache
def _row_texts() -> dict[str, tuple[str, str]]:
    """The file of each row and its text, by its slug."""
    texts: dict[str, tuple[str, str]] = {}
    for file in (*_SEGMENT_OF_FILE, _ESTIMATE_ONLY):
        _, *parts = _ROW.split(Path(__file__).with_name(file).read_text(encoding="utf-8"))
        texts |= {slug: (file, text) for slug, text in zip(parts[::2], parts[1::2], strict=True)}
    return texts


def _is_estimate_only(slug: str) -> bool:
    return _row_texts().get(slug, ("",))[0] == _ESTIMATE_ONLY


@cache
def _row(slug: str) -> dict[str, Any]:
    file, text = _row_texts()[slug]
    return {"slug": slug, **tomllib.loads(text), "segment": _SEGMENT_OF_FILE.get(file)}


@cache
def _entry(slug: str) -> Entry:
    if _is_estimate_only(slug):
        return make_estimate_only_gpu(_row(slug))
    return make_gpu(_row(slug), _row, _rules())


@cache
def _rules() -> dict[str, Any]:
    return _read_toml("catalog.toml")


def _read_toml(file: str) -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name(file).read_text(encoding="utf-8"))


def _source_ids(row: Mapping[str, Any]) -> dict[str, list[str]]:
    rules = _rules()
    limits = rules["capability"][row["capability"]]
    siblings: list[Mapping[str, Any]] = [*map(_row, row["total"].get("as", ()))]
    total = [key for sibling in siblings or [row] for key in _total_ids(sibling["total"])]
    context = rules["context"]["source"] + _listed(row.get("context", []))
    tensor = row.get("tensor", {})
    if "per_clock" in tensor:
        tensor = {"source": rules["tensor"][tensor["per_clock"]]["source"]}
    ids = {field: _listed(limits["source"]) for field in limits if field != "source"}
    for group, figures in GROUPS.items():
        ids.update((field, _group_ids(row, group)) for field, _ in figures.values())
    ids.update(dict.fromkeys(_TOTALS, total))
    ids.update(dict.fromkeys(_CONTEXTS, context))
    return ids | {
        "name": _group_ids(row, "chip"),
        "segment": _group_ids(row, "memory"),
        "compute_capability": _listed(rules["compute_capability"]["source"]),
        "tensor_ops_per_s": _listed(tensor.get("source", limits["source"])),
    }


def _group_ids(row: Mapping[str, Any], group: str) -> list[str]:
    return _listed(row[group].get("source", row.get("source", [])))


def _total_ids(total: Mapping[str, Any]) -> list[str]:
    # A search for the exact number finds the file, so the file needs no name here.
    return _listed(total.get("source", [f"github:{reading}" for reading in total.get("read", ())]))


def _listed(ids: str | list[str]) -> list[str]:
    return [ids] if isinstance(ids, str) else list(ids)


def _source(key: str) -> Source:
    sources = _read_sources()
    prefix, is_prefix, rest = key.partition(":")
    entry = sources["prefix" if is_prefix else "source"][prefix]
    if not is_prefix:
        return Source(key, entry["title"], entry["url"], entry["opened"])
    title = entry["title"].replace("{}", rest)
    return Source(key, title, entry["url"].replace("{}", quote(rest, safe="")), entry["opened"])


@cache
def _read_sources() -> dict[str, Any]:
    # Read separately, because a run needs the figures but not their sources.
    return _read_toml("sources.toml")
