"""An index of embeddings: its bytes, shared out over machines and over tiers of memory.

index = Index("ivfpq", vectors=100_000_000, width=768, lists=65536, codes=96)
estimate = estimate_index(index, Tiers(gpu_bytes=24 * GIB, host_bytes=64 * GIB), shards=4)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import Final

from ullage.facts.families.architecture import read_model
from ullage.facts.families.find import find_config
from ullage.facts.gpus.gpu import Entry
from ullage.ground.errors import SpecError
from ullage.players.eager.term import Term, exact
from ullage.players.eager.workloads.answer import Place, WorkloadEstimate
from ullage.players.eager.workloads.option_values import Settings

KINDS: Final = ("flat", "hnsw", "ivf", "ivfpq")
_LEVEL_BYTES: Final = 4  # of each vector: the number of its levels
_OFFSET_BYTES: Final = 8  # of each vector: where its neighbours begin
_ID_BYTES: Final = 8
_HEADROOM: Final = 0.2


def flat_bytes(vectors: int, width: int, element: int = 4) -> int:
    """A flat index: every vector unchanged.

    Counts: vectors x width x element. Ignores: ids and payloads. Error: none.
    Source: faiss, IndexFlat.
    """
    return vectors * width * element


def hnsw_bytes(vectors: int, links: int = 32) -> int:
    """The graph of an HNSW index, without its vectors.

    Counts: 2 x links neighbours of 4 bytes on the lowest level, and links on each level above, in
    which a vector is with probability 1 / links: 1 / (links - 1) levels on average; the number of
    levels and the offset of each vector.
    Ignores: headroom for growth and deletions.
    Error: 1 % of the links, as levels are drawn at random.
    Source: Malkov and Yashunin 2016, arXiv:1603.09320; faiss, impl/HNSW.cpp.

    Raises:
        SpecError: a graph needs two links.
    """
    if links < 2:
        raise SpecError(f"links: found {links}, expected at least 2")
    above = links * 4 / (links - 1)
    return round(vectors * (2 * links * 4 + above + _LEVEL_BYTES + _OFFSET_BYTES))


def ivf_bytes(vectors: int, width: int, lists: int, element: int = 4) -> tuple[int, int]:
    """Inverted lists of whole vectors: the lists, and their centroids.

    Counts: a vector and an id of 8 bytes each; lists x width in 32 bits.
    Ignores: the room that lists have to grow while they are filled, up to as much again.
    Error: none once the lists are trimmed. Source: faiss, IndexIVFFlat.
    """
    return vectors * (width * element + _ID_BYTES), lists * width * 4


def ivf_pq_bytes(
    vectors: int, width: int, *, lists: int, codes: int = 64, bits: int = 8
) -> tuple[int, int]:
    """Product codes in inverted lists: the lists; centroids and codebooks.

    Counts: codes x bits and an id for each vector; lists x width and 2^bits x width in 32 bits.
    Ignores: the room that lists have to grow; tables of distances of a query (codes x 2^bits x 4
    bytes each).
    Error: none once the lists are trimmed.
    Source: Jegou et al. 2011, doi:10.1109/TPAMI.2010.57; faiss, IndexIVFPQ.

    Raises:
        SpecError: codes do not divide the width.
    """
    if width % codes:
        raise SpecError(f"codes={codes} does not divide width={width}; take a divisor")
    each = ceil(codes * bits / 8) + _ID_BYTES
    return vectors * each, lists * width * 4 + (1 << bits) * width * 4


@dataclass(frozen=True, slots=True)
class Index:
    """An index.

    Attributes:
        kind: one of KINDS.
        vectors: how many.
        width: elements of a vector.
        element: bytes of an element.
        links: of HNSW, the neighbours of a vector on a level (M).
        lists: of IVF, the inverted lists; None: the square root of the vectors, times four.
        codes: of IVF-PQ, the codes of a vector.
        bits: of a code.
        is_reranked: whole vectors are kept beside the codes, to rank the best again.
        headroom: share that is left for growth.
    """

    kind: str
    vectors: int
    width: int
    element: int = 4
    links: int = 32
    lists: int | None = None
    codes: int = 64
    bits: int = 8
    is_reranked: bool = False
    headroom: float = _HEADROOM

    def __post_init__(self) -> None:
        """Refuses an index that is not possible."""
        if self.kind not in KINDS:
            raise SpecError(f"index: found {self.kind!r}, expected {', '.join(KINDS)}")
        if self.is_reranked and self.kind != "ivfpq":
            raise SpecError(f"rerank: {self.kind} holds whole vectors already; leave it out")
        if not 1 <= self.bits <= 16:
            raise SpecError(f"bits: found {self.bits}, expected from 1 to 16")

    def parts(self, shards: int) -> Iterator[Term]:
        """The parts of one shard, those that a query reads most first."""
        vectors = ceil(self.vectors / shards)
        if self.kind == "flat":
            yield exact(
                "vectors", flat_bytes(vectors, self.width, self.element), "faiss, IndexFlat"
            )
        elif self.kind == "hnsw":
            graph, source = hnsw_bytes(vectors, self.links), "arXiv:1603.09320"
            yield Term("graph", graph, round(0.99 * graph), round(1.01 * graph),
                       f"{self.links} neighbours on a level", source)  # fmt: skip
            yield exact(
                "vectors", flat_bytes(vectors, self.width, self.element), "faiss, IndexFlat"
            )
        else:
            yield from self._inverted(vectors)

    def _inverted(self, vectors: int) -> Iterator[Term]:
        lists = self.lists or max(1, round(4 * vectors**0.5))
        if self.kind == "ivf":
            lists_bytes, centroids = ivf_bytes(vectors, self.width, lists, self.element)
            yield exact("centroids", centroids, f"{lists:,} lists")
            yield exact("lists", lists_bytes, "faiss, IndexIVFFlat")
            return
        lists_bytes, centroids = ivf_pq_bytes(
            vectors, self.width, lists=lists, codes=self.codes, bits=self.bits
        )
        yield exact("centroids and codebooks", centroids, f"{lists:,} lists")
        yield exact("codes", lists_bytes, "faiss, IndexIVFPQ")
        if self.is_reranked:
            whole = flat_bytes(vectors, self.width, self.element)
            yield exact("whole vectors, for ranking again", whole, "vectors x width x element")


@dataclass(frozen=True, slots=True)
class Tiers:
    """Memory of one machine, fastest first; None: there is none of that kind."""

    gpu_bytes: int | None = None
    host_bytes: int | None = None
    nvme_bytes: int | None = None

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """Those that there are."""
        rows = (("GPU", self.gpu_bytes), ("host", self.host_bytes), ("NVMe", self.nvme_bytes))
        return tuple((name, size) for name, size in rows if size is not None)


def parse_index(text: str, gpu_bytes: int | None) -> tuple[Index, Tiers, int]:
    """Reads an index, its tiers and its shards, such as "hnsw:vectors=10M,width=768,host=64GiB".

    Args:
        text: the kind, and its settings; the width is a number, or a model that makes embeddings.
        gpu_bytes: memory of the GPU; None: there is none.

    Raises:
        SpecError: a setting is not known, missing or not possible.
    """
    settings = Settings.parse("index", text)
    headroom = settings.text("headroom", f"{_HEADROOM:.0%}")
    if not (headroom.endswith("%") and headroom[:-1].isdecimal()):
        raise SpecError(f"index: headroom: found {headroom!r}, expected such as 20%")
    index = Index(
        settings.kind,
        settings.count("vectors"),
        _read_width(settings),
        settings.count("element", 4),
        settings.count("links", 32),
        settings.count("lists", 0) or None,
        settings.count("codes", 64),
        settings.count("bits", 8),
        settings.switch("rerank", "off"),
        int(headroom[:-1]) / 100,
    )
    tiers = Tiers(gpu_bytes, settings.size("host"), settings.size("nvme"))
    shards = settings.count("shards", 1)
    settings.check()
    return index, tiers, shards


def _read_width(settings: Settings) -> int:
    text = settings.text("width", "")
    if not text or text[0].isdecimal():
        return settings.count("width")
    return read_model(find_config(text).config).hidden


def estimate_index(
    index: Index,
    tiers: Tiers,
    shards: int = 1,
    *,
    gpu: Entry | None = None,
    context: Term | None = None,
) -> WorkloadEstimate:
    """Estimates the memory of an index on each machine with a shard, and each part's tier.

    Counts: the parts with headroom; each goes to the fastest tier that has room for all of it,
    those that a query reads most first. A part that no tier holds is left on the last.
    Ignores: buffers of queries, a part that is split over two tiers, replicas.
    Error: that of the parts; headroom is assumed.
    Source: the parts'; the order of placing is a rule that is derived here.

    Args:
        index: the index.
        tiers: memory of a machine; none: no verdict.
        shards: machines that share the vectors evenly.
        gpu: the GPU, for the answer.
        context: the driver's, which the first tier holds besides.
    """
    if shards < 1:
        raise SpecError(f"shards: found {shards}, expected at least 1")
    parts = [_with_headroom(term, index.headroom) for term in index.parts(shards)]
    sizes = tiers.sizes
    placed: dict[str, list[Term]] = {name: [] for name, _ in sizes} or {"memory": []}
    if context is not None and sizes:
        placed[sizes[0][0]].append(context)
    for term in parts:
        placed[_choose(term, placed, sizes)].append(term)
    capacities = dict(sizes)
    places = tuple(
        Place(name, capacities.get(name), tuple(terms)) for name, terms in placed.items() if terms
    )
    total = sum(term.bytes for term in parts)
    return WorkloadEstimate(
        "index",
        f"{index.kind} index of {index.vectors:,} vectors of {index.width:,}",
        None if gpu is None else gpu.slug,
        places,
        (
            ("a shard", total, "bytes"),
            ("all shards", total * shards, "bytes"),
            ("a vector", round(total * shards / index.vectors), "bytes"),
        ),
        (
            f"{shards} machine{'s' if shards > 1 else ''} with equal shards",
            f"{index.headroom:.0%} of each part is left for growth",
            "lists are trimmed; while they are filled they may take twice as much",
            *(() if gpu is None else gpu.assumptions),
        ),
    )


def _choose(term: Term, placed: dict[str, list[Term]], sizes: tuple[tuple[str, int], ...]) -> str:
    """The fastest tier with room for all of a part; else the last."""
    for name, size in sizes:
        if sum(each.high_bytes for each in placed[name]) + term.high_bytes <= size:
            return name
    return next(reversed(placed))


def _with_headroom(term: Term, share: float) -> Term:
    low, likely, high = (
        round(size * (1 + share)) for size in (term.low_bytes, term.bytes, term.high_bytes)
    )
    return Term(term.name, likely, low, high, term.what, term.source)
