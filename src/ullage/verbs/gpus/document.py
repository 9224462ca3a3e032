"""The document of the catalogue of GPUs, schema "ullage.gpus/1".

json.dumps(gpus_document(gpus, others), indent=2)
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from ullage.facts.gpus import EstimateOnlyGpu, Gpu, sources_of
from ullage.facts.gpus.gpu import Entry
from ullage.facts.gpus.levels import memory_levels
from ullage.facts.gpus.measured_memory import stored_memory
from ullage.ground.protocol.plain import document_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ullage.facts.gpus import Source


SCHEMA: Final = "ullage.gpus/1"


def gpus_document(gpus: Sequence[Gpu], others: Sequence[EstimateOnlyGpu]) -> dict[str, object]:
    """The document `ullage.gpus/1`: each GPU with its figures and the sources of each figure."""
    entries: list[Entry] = [*gpus, *others]
    sources = {source.id: source for entry in entries for source in list_sources(entry)}
    return {
        "schema": SCHEMA,
        "gpus": [
            {
                **_sourced(gpu),
                "basis": {
                    "total_bytes": name_basis(is_exact=gpu.is_total_exact),
                    "context_bytes": name_basis(is_exact=False),
                },
                "measured_here": _measured(gpu),
                "memory_levels": [
                    {"name": level.name, "bytes": level.num_bytes, "bytes_per_s": level.bytes_per_s}
                    for level in memory_levels(gpu)
                ],
            }
            for gpu in gpus
        ],
        "estimate_only": [_sourced(other) for other in others],
        "sources": {
            key: {"title": s.title, "url": s.url, "opened": s.is_opened}
            for key, s in sources.items()
        },
    }


def _measured(gpu: Gpu) -> dict[str, Any] | None:
    """The figures that `ullage diff` has kept of a record on such a GPU."""
    memory = stored_memory(gpu.slug)
    return None if memory is None else {k: v for k, v in asdict(memory).items() if k != "gpu"}


def _sourced(entry: Entry) -> dict[str, Any]:
    sources = {name: [source.id for source in group] for name, group in sources_of(entry).items()}
    return {**document_of(entry), "sources": sources}


def list_sources(entry: Entry) -> list[Source]:
    """The sources of a GPU, each once, in the order of its figures."""
    return list(
        dict.fromkeys(source for sources in sources_of(entry).values() for source in sources)
    )


def name_basis(*, is_exact: bool) -> str:
    """Names the basis of a size: exact if a source gives it to the byte."""
    return "exact" if is_exact else "assumed"
